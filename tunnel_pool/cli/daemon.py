"""tunnel-pool daemon: many torrents, driven by the clients of Transmission."""

import argparse
import asyncio
import contextlib
import logging
import os
import re
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tunnel_pool.cli.arguments import options, values
from tunnel_pool.cli.arguments.layers import Parse, config_model, layered
from tunnel_pool.cli.arguments.pairs import folder_hop_pairs, hop_pairs, pairs, watches
from tunnel_pool.cli.arguments.rpc_options import PASSWORD_VARIABLE, add_rpc_options, credentials
from tunnel_pool.cli.arguments.secret_text import FROM_ELSEWHERE, secret_text
from tunnel_pool.daemon.config import DaemonConfig
from tunnel_pool.daemon.daemon import Daemon, DaemonOptions, running
from tunnel_pool.daemon.outside.urls import OutsideError, Place, kept_to_device, place_of
from tunnel_pool.daemon.server.guard import may_listen
from tunnel_pool.daemon.server.web import RPC_PATH, WebOptions
from tunnel_pool.daemon.torrents.sessions import ANYWHERE, SessionOptions
from tunnel_pool.node.config import parse_bytes
from tunnel_pool.overlay.ground.config import MAX_HOPS
from tunnel_pool.overlay.wire.device import DeviceIsAnotherError, index_of
from tunnel_pool.system import systemd
from tunnel_pool.system.deadline import ends_within
from tunnel_pool.system.errors import UsageError, UserError
from tunnel_pool.system.priority import MAX_NICE
from tunnel_pool.system.proxies import Network, networks_in
from tunnel_pool.system.state import state_of_our_own
from tunnel_pool.torrent.blocklist import read as read_blocklists
from tunnel_pool.torrent.isolation import Isolation
from tunnel_pool.torrent.sessions.lockdown import LockdownMode

DESCRIPTION = f"""Download and seed until told to stop (Ctrl-C or SIGTERM).

Any client of Transmission drives it: transmission-remote, Sonarr, Radarr, Flood
and others, at http://IP:PORT{RPC_PATH}. A label `hops:2` gives a torrent
its hop count; --hops holds for the others. All of it survives a crash.
A page to look at it is at http://IP:PORT/, an API of its own under /api.
SIGHUP reads --config again."""

STOP_WITHIN_S = 45.0
DEVICE_POLL_S = 1.0

logger = logging.getLogger(__name__)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "--hops",
        type=values.whole_number(0, MAX_HOPS),
        default=1,
        metavar="H",
        help="Hop count of torrents that are added without one: 1 to 3, or 0, which is plain and not anonymous "
        "(default: %(default)s).",
    )
    parser.add_argument(
        "--folder",
        type=values.folder,
        metavar="DIR",
        help="Folder that downloads go to (default: the one that a client has set, else the current one).",
    )
    parser.add_argument(
        "--min-free",
        type=_bytes,
        default=1 << 30,
        metavar="SIZE",
        help="Room that is left on a disk, like '5 GB'; with less, downloads to it wait (default: 1 GiB).",
    )
    parser.add_argument(
        "--settle",
        type=values.whole_number(0, 3600),
        default=5,
        metavar="SECONDS",
        help="Seconds for which a torrent that was added without a hop count contacts nobody, since clients send its "
        "labels a moment later (default: %(default)s).",
    )
    parser.add_argument(
        "--script-done",
        type=Path,
        metavar="FILE",
        help="Program that runs when a torrent was downloaded, without a shell; its environment says which, as "
        "Transmission's does (TR_TORRENT_NAME, TR_TORRENT_DIR, ...). What it sends does not go by the tunnels.",
    )
    parser.add_argument(
        "--script-limit",
        type=values.whole_number(1, 7 * 24 * 3600),
        default=3600,
        metavar="SECONDS",
        help="Seconds after which that program is ended (default: %(default)s).",
    )
    parser.add_argument(
        "--webhook-done",
        type=secret_text,
        metavar="URL",
        help="URL to which JSON is posted when a torrent was downloaded: at an address of this machine or of a private "
        "network, like http://192.168.1.5:8123/done, or by https:// anywhere else, through the tunnels. "
        f"{FROM_ELSEWHERE}",
    )
    parser.add_argument(
        "--blocklist",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="List of addresses that torrents without hops have nothing to do with: P2P, DAT or CIDR lines, packed by "
        "gzip or not; it may be given several times.",
    )
    parser.add_argument(
        "--umask",
        type=_umask,
        metavar="MODE",
        help="Permissions that files of torrents do not get, in octal: 0027 lets the group read them (default: those "
        "of whoever starts the daemon).",
    )
    add_rpc_options(
        parser, "Address at which clients find the daemon; beyond loopback it needs a password (default: %(default)s)."
    )
    options.add_host_name_option(parser, "clients", "localhost and its addresses")
    parser.add_argument(
        "--trusted-proxy",
        type=_networks,
        default=[],
        metavar="ADDRESS[,ADDRESS...]",
        help="Reverse proxies, by address or network, whose word is taken on who asks (X-Forwarded-For) and by which "
        "name (X-Forwarded-Host): wrong passwords are counted by client then. See docs/PROXY.md.",
    )
    parser.add_argument(
        "--web-root",
        type=Path,
        metavar="DIR",
        help="Folder with a page that speaks Transmission's RPC, or qBittorrent's API below itself (VueTorrent); it is "
        "served at /transmission/web/.",
    )
    parser.add_argument(
        "--plain-listen",
        type=values.host_port,
        default=ANYWHERE,
        metavar="IP:PORT",
        help="Address at which peers of torrents without hops come in (default: %(default)s).",
    )
    options.add_dht_option(parser)
    options.add_lockdown_option(parser)
    options.add_isolate_option(parser)
    options.add_offer_option(parser)
    options.add_path_options(parser)
    options.add_workers_option(parser, default="auto")
    options.add_circuits_option(parser)
    parser.add_argument(
        "--nice",
        type=values.whole_number(0, MAX_NICE),
        default=10,
        metavar="N",
        help="How much nicer workers and libtorrent's threads are than what answers clients (Linux; default: "
        "%(default)s).",
    )
    options.add_network_options(parser)
    options.add_output_options(parser, log_level="info")
    parser.add_argument(
        "--hops-of-labels",
        type=hop_pairs,
        default={},
        metavar="LABEL=H[,...]",
        help="Hop counts by label; they replace those of [hops.labels] in --config.",
    )
    parser.add_argument(
        "--hops-of-folders",
        type=folder_hop_pairs,
        default={},
        metavar="DIR=H[,...]",
        help="Hop counts by the folder that is downloaded to; they replace those of [hops.folders].",
    )
    parser.add_argument(
        "--folders-of-labels",
        type=pairs,
        default={},
        metavar="LABEL=DIR[,...]",
        help="Folders by label; they replace those of [folders].",
    )
    parser.add_argument(
        "--watch",
        type=watches,
        action="extend",
        default=[],
        metavar="DIR[;hops=H][;labels=A+B][;download_to=DIR][;stopped=true][,...]",
        help="Folders from which torrents are added, beside those of [[watch]]; it may be given several times.",
    )
    options.add_device_option(parser, "Torrents have hops then, and the owner's own network is asked for nothing.")
    parser.add_argument(
        "--log-file",
        type=values.folder,
        metavar="FILE",
        help="Log to this file instead of stderr; a new one begins every 10 MB, and 5 are kept.",
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="TOML file with these options, and with rules.")
    parser.set_defaults(run=run, config_read=DaemonConfig(), sources={})


def with_config(arguments: argparse.Namespace, parse: Parse, argv: Sequence[str]) -> argparse.Namespace:
    """Raises UserError."""
    return layered(arguments, parse, argv)


def _umask(text: str) -> str:
    if not re.fullmatch("0?[0-7]{3}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not like 0027")
    return text


def _bytes(text: str) -> int:
    try:
        return parse_bytes(int(text) if text.isdigit() else text, per_second=False)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


async def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Run until stopped, and return a report of what was carried. Raises UserError."""
    options.check_device(arguments)
    if arguments.umask is not None:
        os.umask(int(arguments.umask, 8))
    with state_of_our_own(arguments.state.absolute()):
        while (report := await _run_on_device(arguments)) is None:
            try:
                while not index_of(arguments.device):  # noqa: ASYNC110
                    await asyncio.sleep(DEVICE_POLL_S)
            except asyncio.CancelledError:  # stopped while there is no device
                return {"ok": True, "seconds": 0.0, "torrents": 0}
            arguments = _read_again(arguments)
        return report


def _read_again(arguments: argparse.Namespace) -> argparse.Namespace:
    """Return the options by the configuration as it is now; those of before where it is wrong."""
    try:
        again: argparse.Namespace = arguments.again() if arguments.config is not None else arguments
        options_of(again)
    except UserError as error:
        logger.error("The configuration stays as it was: %s", error)
        return arguments
    return again


async def _run_on_device(arguments: argparse.Namespace) -> dict[str, Any] | None:
    """Run until stopped, and return a report; None where the device is another by now. Raises UserError."""
    daemon_options, started_s = options_of(arguments), time.monotonic()
    with contextlib.ExitStack() as ending:
        try:
            async with running(daemon_options) as daemon:
                logger.info(
                    "%d torrents; clients find them at http://%s%s",
                    len(daemon.library.torrents),
                    daemon.address,
                    RPC_PATH,
                )
                if arguments.config is not None:
                    reloading = Reloading(daemon, arguments)
                    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reloading.begin)
                systemd.tell("READY=1")
                with contextlib.suppress(asyncio.CancelledError):  # being told to stop is how a daemon ends well
                    try:
                        await daemon.until_stopped()
                    except DeviceIsAnotherError:
                        return None
                systemd.tell("STOPPING=1")
                ending.enter_context(ends_within(STOP_WITHIN_S))
                return _report(daemon, started_s)
        except asyncio.CancelledError:  # stopped while it began
            return {"ok": True, "seconds": round(time.monotonic() - started_s, 3), "torrents": 0}
        except UserError:
            if not arguments.device or index_of(arguments.device):
                raise
            return None  # the device went while the sockets were bound


def _networks(text: str) -> list[Network]:
    """Raises ArgumentTypeError."""
    try:
        return networks_in(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{error}; a proxy is named by its address or network") from None


def options_of(arguments: argparse.Namespace) -> DaemonOptions:
    """Raises UserError."""
    secret = credentials(arguments)
    if not may_listen(arguments.rpc.host, secret):
        raise UsageError(
            f"--rpc {arguments.rpc} is open to others: set a password by --rpc-password-file or {PASSWORD_VARIABLE}"
        )
    script = arguments.script_done
    if script is not None and not (script.is_absolute() and script.is_file() and os.access(script, os.X_OK)):
        raise UsageError(f"--script-done: {script} is no program; name it by its whole path, and make it executable")
    if arguments.web_root is not None and not (arguments.web_root / "index.html").is_file():
        raise UsageError(f"--web-root: there is no index.html in {arguments.web_root}")
    if arguments.device and not arguments.hops:
        raise UsageError("--device: without hops nothing leaves then; take --hops 1 or more")
    config: DaemonConfig = arguments.config_read
    dht_nodes = options.dht_nodes(arguments)
    return DaemonOptions(
        node=options.node_options(arguments),
        folder=arguments.folder.absolute() if arguments.folder is not None else None,
        web=WebOptions(arguments.rpc, secret, tuple(arguments.host_name), arguments.web_root, arguments.trusted_proxy),
        sessions=SessionOptions(
            steering=arguments.steering == "auto",
            private=arguments.allow_private,
            dht_nodes=dht_nodes,
            plain_listen=arguments.plain_listen,
            plain_dht_nodes=",".join(f"{host}:{port}" for host, port in dht_nodes),
            nice=arguments.nice,
            lockdown=LockdownMode(arguments.lockdown),
            isolation=Isolation(arguments.isolate),
        ),
        rules=config.rules(arguments.hops, arguments.hops_of_labels, arguments.hops_of_folders),
        folders_by_label={**config.folders, **arguments.folders_of_labels},
        watches=[*config.watch, *arguments.watch],
        min_free_bytes=arguments.min_free,
        script_done=script,
        script_limit_s=arguments.script_limit,
        webhook_done=_webhook(arguments),
        blocked=read_blocklists(arguments.blocklist),
        settle_s=arguments.settle,
        config=config_model(arguments),
    )


def _webhook(arguments: argparse.Namespace) -> Place | None:
    """Raises UsageError."""
    if not arguments.webhook_done:
        return None
    try:
        place = place_of(arguments.webhook_done, tunnel_all_tls=arguments.allow_private)
        return kept_to_device(place, arguments.device or "")
    except OutsideError as error:
        raise UsageError(f"--webhook-done: {error}") from None


class Reloading:
    """Applies what the configuration says now; where it is wrong, what it said before goes on holding."""

    def __init__(self, daemon: Daemon, arguments: argparse.Namespace) -> None:
        self._daemon = daemon
        self._arguments = arguments
        self._in_turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self) -> None:
        systemd.tell_reloading()
        task = asyncio.get_running_loop().create_task(self._reload())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _reload(self) -> None:
        async with self._in_turn:
            try:
                # A thread reads it, as a block list may be long.
                again, read = await asyncio.to_thread(self._read)
                left = self._daemon.apply(read)
                logging.getLogger().setLevel(again.log_level.upper())
            except UserError as error:
                logger.error("The configuration stays as it was: %s", error)
            else:
                after = f"; these hold after a restart: {', '.join(left)}" if left else ""
                logger.info("The configuration was read again%s", after)
            systemd.tell("READY=1")

    def _read(self) -> tuple[argparse.Namespace, DaemonOptions]:
        """Raises UserError."""
        again = self._arguments.again()
        return again, options_of(again)


def _report(daemon: Daemon, started_s: float) -> dict[str, Any]:
    torrents = daemon.library.torrents.values()
    return {
        "ok": True,
        "seconds": round(time.monotonic() - started_s, 3),
        "torrents": len(torrents),
        "downloaded_bytes": sum(torrent.status.total_payload_download for torrent in torrents),
        "uploaded_bytes": sum(torrent.status.total_payload_upload for torrent in torrents),
        "dropped": dict(daemon.library.sessions.dropped() + daemon.tunnels.dropped()),
    }


def describe(report: dict[str, Any]) -> str:
    return f"stopped after {report['seconds']:.0f} s with {report['torrents']} torrents"
