"""tunnel-pool private-network: the configuration of a network of one's own."""

import argparse
import ipaddress
import os
import secrets
from pathlib import Path
from typing import Any

from tunnel_pool.cli.arguments import options, values
from tunnel_pool.overlay.ground.config import MAX_HOPS, TRIBLER_COMMUNITY_ID, HostPort
from tunnel_pool.private_swarm.recipe import MORE_NODES, files_of, least_nodes, nodes_of
from tunnel_pool.system.errors import UsageError, UserError

MAX_NODES = 100


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Write the configuration of a private network to DIR: relays, exits and a daemon, and in README how to start "
        "them and a seeder. Nothing is started, and nobody is asked."
    )
    parser.add_argument("folder", type=values.folder, metavar="DIR", help="Folder to write to, which is new or empty.")
    parser.add_argument(
        "--hops",
        type=values.whole_number(1, MAX_HOPS),
        default=2,
        metavar="H",
        help="Most hops that torrents are to have (default: %(default)s).",
    )
    number = values.whole_number(0, MAX_NODES)
    parser.add_argument(
        "--relays",
        type=number,
        metavar="N",
        help=f"Number of relays (default: as many as that hop count needs, and {MORE_NODES} more).",
    )
    parser.add_argument("--exits", type=number, default=1, metavar="N", help="Number of exits (default: %(default)s).")
    parser.add_argument(
        "--hosts",
        type=_hosts,
        default=["127.0.0.1"],
        metavar="IP[,IP...]",
        help="Machines of the nodes, which are spread over them (default: 127.0.0.1).",
    )
    parser.add_argument(
        "--port",
        type=values.whole_number(1, values.MAX_PORT - MAX_NODES),
        default=7000,
        metavar="PORT",
        help="First UDP port on each machine (default: %(default)s).",
    )
    parser.add_argument(
        "--rpc",
        type=values.peer_address,
        default=HostPort("127.0.0.1", 9091),
        metavar="IP:PORT",
        help="Address at which the daemon is driven (default: %(default)s).",
    )
    options.add_output_options(parser)
    parser.set_defaults(run=run)


def _hosts(text: str) -> list[str]:
    return [values.host_port(f"{host}:0").host for host in text.split(",")]


async def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Raises UserError."""
    least = least_nodes(arguments.hops)
    relays = max(0, least + MORE_NODES - arguments.exits) if arguments.relays is None else arguments.relays
    if relays + arguments.exits < least:
        raise UsageError(f"{arguments.hops} hops need {least} nodes: --relays {least - arguments.exits}, or more exits")
    if not ipaddress.ip_address(arguments.rpc.host).is_loopback:
        raise UsageError(f"--rpc {arguments.rpc}: a daemon that listens beyond this machine needs a password file")
    folder: Path = arguments.folder.absolute()
    nodes = nodes_of(arguments.hosts, arguments.port, relays, arguments.exits)
    if max(node.address.port for node in nodes) > values.MAX_PORT:
        raise UsageError(f"--port {arguments.port} leaves no ports for so many nodes on one machine")
    community_id = secrets.token_hex(len(TRIBLER_COMMUNITY_ID))
    files = files_of(nodes, community_id, arguments.hops, str(folder), arguments.rpc)
    try:
        (folder / "downloads").mkdir(parents=True, exist_ok=True)
        if any((folder / name).exists() for name in files):
            raise UserError(f"there is a network in {folder} already: name another folder")
        for name, content in files.items():
            _write(folder / name, content)
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {error.strerror}") from None
    return {"ok": True, "folder": str(folder), "nodes": len(nodes), "hops": arguments.hops, "files": sorted(files)}


def _write(path: Path, content: str) -> None:
    """Write a new file, which its owner alone may read. Raises OSError."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(content)


def describe(report: dict[str, Any]) -> str:
    return (
        f"{report['folder']} has the configuration of {report['nodes']} nodes, for up to {report['hops']} hops; "
        f"{report['folder']}/README says how to start them"
    )
