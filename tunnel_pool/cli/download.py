"""tunnel-pool download: a user's own torrents, anonymously."""

import argparse
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import libtorrent as lt

from tunnel_pool.cli.arguments import options, values
from tunnel_pool.cli.arguments.secret_text import FROM_ELSEWHERE, secret_text
from tunnel_pool.cli.progress import ProgressDisplay
from tunnel_pool.cli.report import run_report
from tunnel_pool.system.errors import UserError
from tunnel_pool.system.measure import Meter
from tunnel_pool.system.state import state_of_our_own
from tunnel_pool.torrent.client import TorrentClient
from tunnel_pool.torrent.isolation import Isolation
from tunnel_pool.torrent.metainfo import parse_torrent
from tunnel_pool.torrent.sessions.lockdown import LockdownMode

DESCRIPTION = """Download torrents over onion-routed circuits.

Nothing leaves outside the tunnels: without a circuit, the download waits.
Hidden seeders are found without tracker or exit; all others through exits.
Interrupted, it goes on where it was when started again with the same --state
and --save."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "what",
        nargs="+",
        type=secret_text,
        metavar="WHAT",
        help=f"A magnet link, a .torrent file or an infohash. {FROM_ELSEWHERE}",
    )
    parser.add_argument(
        "--save",
        type=values.folder,
        default=Path(),
        metavar="DIR",
        help="Folder to download to (default: the current one).",
    )
    options.add_peer_option(parser, "through the tunnels")
    options.add_dht_option(parser)
    options.add_lockdown_option(parser)
    options.add_isolate_option(parser, labels=False)
    options.add_path_options(parser)
    options.add_hops_option(parser)
    options.add_workers_option(parser, default="auto")
    options.add_network_options(parser)
    options.add_output_options(parser)
    parser.set_defaults(run=run)


def writable_folder(folder: Path) -> Path:
    """Return the folder, made if it is not there. Raises UserError."""
    folder = folder.absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot save in {folder}: {error.strerror}") from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UserError(f"cannot save in {folder}: not writable")
    return folder


async def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the download's report. Raises UserError."""
    torrents = [parse_torrent(what) for what in arguments.what]
    folder = writable_folder(arguments.save)
    with state_of_our_own(arguments.state.absolute()):
        return await _download(arguments, torrents, folder)


async def _download(
    arguments: argparse.Namespace, torrents: Sequence[lt.add_torrent_params], folder: Path
) -> dict[str, Any]:
    """Raises UserError."""
    node = options.node_options(arguments)
    meter = Meter()
    lockdown, isolation = LockdownMode(arguments.lockdown), Isolation(arguments.isolate)
    dht_nodes = options.dht_nodes(arguments)
    async with TorrentClient(
        node, arguments.hops, dht_nodes=dht_nodes, lockdown=lockdown, isolation=isolation
    ) as client:

        def pids() -> dict[str, list[int]]:
            return {"main": [os.getpid()], "workers": list(client.pool_pids.values())}

        with ProgressDisplay(pids) as display:
            for torrent in torrents:
                client.download(torrent, folder, arguments.peer)
            await client.wait_circuits(display)
            meter.sample(pids())
            start_s = time.monotonic()
            await client.wait_finished(display)
            seconds = time.monotonic() - start_s
        meter.sample(pids())
        await client.tunnels.update_statistics()
        size_bytes = sum(status.wanted_bytes for status in client.statuses)
        downloaded_bytes = sum(status.downloaded_bytes for status in client.statuses)
        return {
            "ok": True,
            "bytes": size_bytes,
            "seconds": round(seconds, 3),
            "mb_per_s": round(downloaded_bytes / 1e6 / seconds, 2),
            "torrents": [
                {
                    "infohash": status.infohash,
                    "name": status.name,
                    "bytes": status.wanted_bytes,
                    "downloaded_bytes": status.downloaded_bytes,
                }
                for status in client.statuses
            ],
            "cpu_seconds": meter.cpu_seconds(),
            "lockdown": client.is_locked_down,
            **run_report(client, meter),
        }


def describe(report: dict[str, Any]) -> str:
    names = ", ".join(torrent["name"] for torrent in report["torrents"])
    downloaded_bytes = sum(torrent["downloaded_bytes"] for torrent in report["torrents"])
    return (
        f"{names}: {report['bytes'] / 1e6:.1f} MB complete, {downloaded_bytes / 1e6:.1f} MB of it "
        f"downloaded now in {report['seconds']:.1f} s, {report['mb_per_s']:.1f} MB/s"
    )
