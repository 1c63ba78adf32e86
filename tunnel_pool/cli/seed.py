"""tunnel-pool seed: a user's own files, hidden: nobody learns where they come from."""

import argparse
import asyncio
import hashlib
import logging
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import libtorrent as lt
from rich.console import Console
from rich.progress import Progress

from tunnel_pool.cli.arguments import options
from tunnel_pool.system.errors import UsageError, UserError
from tunnel_pool.system.files import write_atomically
from tunnel_pool.system.state import state_of_our_own
from tunnel_pool.torrent.client import TorrentClient
from tunnel_pool.torrent.isolation import Isolation
from tunnel_pool.torrent.metainfo import infohash_of, magnet_link, make_torrent, read_metainfo, reason_of
from tunnel_pool.torrent.sessions.lockdown import LockdownMode
from tunnel_pool.tunnels import NodeOptions

TORRENTS_DIR = "torrents"
CHECK_INTERVAL_S = 1.0
REPORT_INTERVAL_S = 60.0

DESCRIPTION = """Seed files and folders hidden until told to stop (Ctrl-C or SIGTERM).

Downloaders meet us at a relay, over H hops on our side and as many as they
like on theirs; no exit and no tracker is in between. Each PATH becomes a
torrent of its own, whose magnet link is printed; `tunnel-pool download` finds
it, and so does Tribler. The torrent is kept with --state, so that a second
start with the same files is quick."""

logger = logging.getLogger(__name__)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("path", nargs="+", type=_whole_path, metavar="PATH", help="File or folder to seed.")
    options.add_hops_option(parser, exits=False)
    options.add_lockdown_option(parser)
    options.add_isolate_option(parser, labels=False)
    options.add_offer_option(parser)
    options.add_path_options(parser)
    options.add_workers_option(parser, default="auto")
    options.add_network_options(parser)
    options.add_output_options(parser, log_level="info")
    parser.set_defaults(run=run)


def _whole_path(text: str) -> Path:
    """Parse a path; refuse the empty one, which an unset shell variable leaves."""
    if not text:
        raise argparse.ArgumentTypeError("an empty path names no file")
    return Path(os.path.abspath(text))


async def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Run until stopped, and return a report of what was seeded. Raises UserError."""
    node = options.node_options(arguments)
    for path in arguments.path:
        if path.name and node.state_dir.is_relative_to(path):
            raise UsageError(f"cannot seed {path}: {node.state_dir} is in it, with our key; choose another --state")
    with state_of_our_own(node.state_dir):
        return await _seed(arguments, node)


async def _seed(arguments: argparse.Namespace, node: NodeOptions) -> dict[str, Any]:
    """Raises UserError."""
    started_s = time.monotonic()
    seeded: dict[str, tuple[Path, lt.add_torrent_params]] = {}
    for path in dict.fromkeys(arguments.path):
        torrent = await _torrent_of(path, node.state_dir / TORRENTS_DIR)
        seeded[infohash_of(torrent)] = path, torrent
    lockdown, isolation = LockdownMode(arguments.lockdown), Isolation(arguments.isolate)
    async with TorrentClient(node, arguments.hops, exits=False, lockdown=lockdown, isolation=isolation) as client:
        for path, torrent in seeded.values():
            client.seed(torrent, path.parent)
            print(magnet_link(torrent), flush=True)
        try:
            await _watch(client)
        except asyncio.CancelledError:
            # Being told to stop is how seeding ends well.
            return _report(arguments, client, time.monotonic() - started_s)
    raise AssertionError("nobody told it to stop")


async def _watch(client: TorrentClient) -> None:
    reachable = False
    next_report_s = time.monotonic() + REPORT_INTERVAL_S
    while True:
        await client.wait_changed(CHECK_INTERVAL_S)
        if (offered := client.is_offered) != reachable:
            reachable = offered
            logger.info("%s", "Reachable: every torrent has its introduction point" if reachable else "Not reachable")
        if time.monotonic() >= next_report_s:
            next_report_s += REPORT_INTERVAL_S
            uploaded = sum(status.uploaded_bytes for status in client.statuses)
            peers = sum(status.peers for status in client.statuses)
            logger.info("Uploaded %.1f MB in all; %d peers now", uploaded / 1e6, peers)


def _report(arguments: argparse.Namespace, client: TorrentClient, seconds: float) -> dict[str, Any]:
    return {
        "ok": True,
        "seconds": round(seconds, 3),
        "hops": arguments.hops,
        "workers": arguments.workers.as_json(),
        "uploaded_bytes": sum(status.uploaded_bytes for status in client.statuses),
        "torrents": [{"infohash": status.infohash, "name": status.name} for status in client.statuses],
        "worker_restarts": client.restarts,
        "dropped": dict(client.dropped()),
    }


def describe(report: dict[str, Any]) -> str:
    return f"stopped after {report['seconds']:.0f} s: uploaded {report['uploaded_bytes'] / 1e6:.1f} MB"


# Torrents of what is seeded


async def _torrent_of(path: Path, kept_in: Path) -> lt.add_torrent_params:
    """Return the path's torrent, made now unless one was made of the same files before. Raises UserError."""
    if not path.name:
        raise UserError(f"cannot seed {path}: name a file or folder in it")
    kept = kept_in / f"{_fingerprint(path)}.torrent"
    try:
        return read_metainfo(kept.read_bytes())
    except (OSError, RuntimeError):
        pass  # it is not there, or damaged: it is made again
    data = await _hash(path)
    try:
        torrent = read_metainfo(data)
    except RuntimeError as error:
        raise UserError(f"cannot seed {path}: {reason_of(error)}") from None
    await asyncio.to_thread(_keep, kept, data)
    return torrent


def _keep(torrent: Path, data: bytes) -> None:
    try:
        torrent.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(torrent, data)
    except OSError as error:
        raise UserError(
            f"cannot keep state in {torrent.parent}: {error.strerror}; choose another with --state"
        ) from None


def _fingerprint(path: Path) -> str:
    """Return a name that changes with the name, size or time of any file in the path. Raises UserError."""
    digest = hashlib.sha256(str(path).encode(errors="surrogateescape"))
    try:
        for file in _files_in(path):
            status = file.stat()
            digest.update(f"{file.relative_to(path)} {status.st_size} {status.st_mtime_ns}\n".encode(errors="replace"))
    except OSError as error:
        raise UserError(f"cannot seed {error.filename or path}: {error.strerror}") from None
    return digest.hexdigest()[:16]


def _files_in(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        yield path
        return
    for inside in sorted(path.rglob("*")):
        if not inside.is_dir():
            yield inside


async def _hash(path: Path) -> bytes:
    """Hash the path off the loop, with a bar on a terminal; a cancelled hashing ends at the next piece."""
    cancelled = threading.Event()
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task(f"hashing {path.name}", total=None)

        def on_piece(piece: int, pieces: int) -> None:
            if cancelled.is_set():
                raise InterruptedError
            progress.update(bar, completed=piece + 1, total=pieces)

        hashing = asyncio.ensure_future(asyncio.to_thread(make_torrent, path, on_piece))
        try:
            return await asyncio.shield(hashing)
        except asyncio.CancelledError:
            cancelled.set()
            await asyncio.gather(hashing, return_exceptions=True)
            raise
