"""tunnel-pool info, files and peers: what a running daemon knows of torrents, and which of their files it wants."""

import argparse
import datetime
from collections.abc import Iterator
from typing import Any

from tunnel_pool.cli.arguments import options
from tunnel_pool.cli.arguments.rpc_options import add_rpc_options
from tunnel_pool.cli.remote.remote import STATES, add_ids, chosen, printable, remote_of, table_of
from tunnel_pool.system.errors import UsageError

DESCRIPTIONS = {
    "info": "Show all that is known of torrents of a running daemon.",
    "files": "Show the files of torrents of a running daemon, and choose among them.",
    "peers": "Show the peers of torrents of a running daemon.",
}
FIELDS = {
    "info": (
        "id", "name", "hash_string", "status", "error_string", "hops", "labels", "download_dir", "percent_done",
        "size_when_done", "total_size", "downloaded_ever", "uploaded_ever", "upload_ratio", "rate_download",
        "rate_upload", "peers_connected", "is_private", "added_date", "done_date", "comment", "tracker_stats",
    ),
    "files": ("id", "name", "files", "file_stats"),
    "peers": ("id", "name", "peers"),
}  # fmt: skip
CHOICES = {
    "want": ("files_wanted", "Files to download"),
    "skip": ("files_unwanted", "Files not to download"),
    "high": ("priority_high", "Files to download before others"),
    "normal": ("priority_normal", "Files to download as usual"),
    "low": ("priority_low", "Files to download after others"),
}
PRIORITIES = {-1: "low", 0: "normal", 1: "high"}
MOST_FILES = 1 << 20


def add_options(parser: argparse.ArgumentParser) -> None:
    command = parser.prog.split()[-1]
    parser.description = DESCRIPTIONS[command]
    add_ids(parser)
    if command == "files":
        for name, (_, what) in CHOICES.items():
            parser.add_argument(
                f"--{name}", type=numbers, metavar="N[,N-M...]", help=f"{what}, by the numbers that are shown, or all."
            )
    add_rpc_options(parser)
    options.add_output_options(parser)
    parser.set_defaults(run=run, what=command)


def numbers(text: str) -> list[int]:
    """Parse 0,3-5 into the numbers that it names; `all` is an empty list, as in Transmission's RPC."""
    if text == "all":
        return []
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        try:
            start, end = int(first), int(last if dash else first)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not like 0,3-5 or all") from None
        if not 0 <= start <= end < MOST_FILES:
            raise argparse.ArgumentTypeError(f"{text!r} is not like 0,3-5 or all")
        found += range(start, end + 1)
    return found


async def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Raises UserError."""
    choices = {
        field: getattr(arguments, name)
        for name, (field, _) in CHOICES.items()
        if getattr(arguments, name, None) is not None
    }
    async with remote_of(arguments) as remote:
        ids = await chosen(remote, arguments.ids)
        if choices and len(ids) > 1:
            raise UsageError("choose the files of one torrent at a time")
        if choices:
            await remote.call("torrent_set", ids=ids, **choices)
        torrents = (await remote.call("torrent_get", ids=ids, fields=FIELDS[arguments.what]))["torrents"]
    return {"ok": True, "what": arguments.what, "torrents": torrents}


def describe(report: dict[str, Any]) -> str:
    shown = {"info": _info, "files": _files, "peers": _peers}[report["what"]]
    return "\n\n".join("\n".join(shown(torrent)) for torrent in report["torrents"])


def _info(torrent: dict[str, Any]) -> Iterator[str]:
    rows = {
        "name": torrent["name"],
        "number": torrent["id"],
        "infohash": torrent["hash_string"],
        "state": STATES[torrent["status"]],
        "error": torrent["error_string"] or "none",
        "hops": torrent["hops"],
        "labels": ", ".join(torrent["labels"]),
        "folder": torrent["download_dir"],
        "done": f"{100 * torrent['percent_done']:.1f} % of {_megabytes(torrent['size_when_done'])}",
        "whole size": _megabytes(torrent["total_size"]),
        "downloaded": _megabytes(torrent["downloaded_ever"]),
        "uploaded": f"{_megabytes(torrent['uploaded_ever'])}, ratio {max(0.0, torrent['upload_ratio']):.2f}",
        "speed": f"{torrent['rate_download'] / 1000:.0f} kB/s down, {torrent['rate_upload'] / 1000:.0f} kB/s up",
        "peers": torrent["peers_connected"],
        "private": "yes" if torrent["is_private"] else "no",
        "added": _moment(torrent["added_date"]),
        "finished": _moment(torrent["done_date"]),
        "comment": torrent["comment"] or "none",
    }
    yield from (f"{name:12}{printable(str(value))}" for name, value in rows.items())
    for tracker in torrent["tracker_stats"]:
        heard = f"{_moment(tracker['last_announce_time'])}: {tracker['last_announce_result'] or 'no answer'}"
        yield f"{'tracker':12}{printable(tracker['announce'])}, {printable(heard)}"


def _files(torrent: dict[str, Any]) -> Iterator[str]:
    yield printable(torrent["name"])
    files = zip(torrent["files"] or (), torrent["file_stats"] or (), strict=True)
    yield table_of(
        ("number", "done", "size", "priority", "name"),
        (
            (
                number,
                f"{100 * stat['bytes_completed'] / max(1, file['length']):.0f} %" if file["length"] else "100 %",
                _megabytes(file["length"]),
                PRIORITIES[stat["priority"]] if stat["wanted"] else "skipped",
                file["name"],
            )
            for number, (file, stat) in enumerate(files)
        ),
    )


def _peers(torrent: dict[str, Any]) -> Iterator[str]:
    yield printable(torrent["name"])
    yield table_of(
        ("address", "done", "down kB/s", "up kB/s", "by", "client"),
        (
            (
                f"{peer['address']}:{peer['port']}",
                f"{100 * peer['progress']:.0f} %",
                f"{peer['rate_to_client'] / 1000:.0f}",
                f"{peer['rate_to_peer'] / 1000:.0f}",
                "uTP" if peer["is_utp"] else "TCP",
                peer["client_name"],
            )
            for peer in torrent["peers"] or ()
        ),
    )


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"


def _moment(at_s: int) -> str:
    return datetime.datetime.fromtimestamp(at_s).strftime("%Y-%m-%d %H:%M:%S") if at_s else "not yet"
