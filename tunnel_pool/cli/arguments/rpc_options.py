"""The options that say where a daemon's RPC is, and give the password to it."""

import argparse
import os
from pathlib import Path

from tunnel_pool.cli.arguments import values
from tunnel_pool.daemon.server.guard import Credentials
from tunnel_pool.daemon.server.web import USUAL_ADDRESS
from tunnel_pool.overlay.ground.config import HostPort
from tunnel_pool.system.errors import UserError

PASSWORD_VARIABLE = "TUNNEL_POOL_RPC_PASSWORD"  # noqa: S105


def add_rpc_options(
    parser: argparse.ArgumentParser, what: str = "Address of the daemon (default: %(default)s)."
) -> None:
    parser.add_argument("--rpc", type=rpc_address, default=USUAL_ADDRESS, metavar="IP:PORT", help=what)
    parser.add_argument("--rpc-user", default="tunnel-pool", metavar="NAME", help="User name (default: %(default)s).")
    parser.add_argument(
        "--rpc-password-file",
        type=Path,
        metavar="FILE",
        help=f"File whose first line is the password (default: the environment variable {PASSWORD_VARIABLE}).",
    )


def rpc_address(text: str) -> HostPort:
    """Parse IP:PORT, where an IPv6 address is in brackets, or localhost:PORT, which is not looked up."""
    host, _, port = text.rpartition(":")
    if host.startswith("["):
        return values.destination(text)
    return values.host_port(f"127.0.0.1:{port}" if host == "localhost" else text)


def credentials(arguments: argparse.Namespace) -> Credentials | None:
    """Raises UserError."""
    path = arguments.rpc_password_file
    if path is None:
        password = os.environ.get(PASSWORD_VARIABLE, "")
        return Credentials(arguments.rpc_user, password) if password else None
    try:
        password = path.read_text().split("\n", 1)[0].rstrip("\r")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the password in {path}: {getattr(error, 'strerror', 'not text')}") from None
    if not password:
        raise UserError(f"there is no password in {path}")
    return Credentials(arguments.rpc_user, password)
