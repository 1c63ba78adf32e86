"""tunnel-pool status, add, remove, pause and resume: what a running daemon has, and is to do."""

import argparse
import base64
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tunnel_pool.cli.arguments import options, values
from tunnel_pool.cli.arguments.rpc_options import add_rpc_options, credentials
from tunnel_pool.cli.arguments.secret_text import FROM_ELSEWHERE, secret_text
from tunnel_pool.daemon.remote import Remote
from tunnel_pool.overlay.ground.config import MAX_HOPS
from tunnel_pool.system.errors import UsageError, UserError
from tunnel_pool.torrent.links import is_link, links_in
from tunnel_pool.torrent.metainfo import magnet_link, parse_torrent

ALL = "all"
FIELDS = (
    "id", "name", "status", "percent_done", "rate_download", "rate_upload", "peers_connected", "hops", "error_string",
    "hash_string", "labels", "download_dir",
)  # fmt: skip
STATES = ("stopped", "check queued", "checking", "queued", "downloading", "queued", "seeding")


def add_options(parser: argparse.ArgumentParser) -> None:
    command = parser.prog.split()[-1]
    parser.description = DESCRIPTIONS[command]
    if command == "add":
        parser.add_argument(
            "what",
            nargs="+",
            type=secret_text,
            metavar="WHAT",
            help=f"A .torrent file, a magnet link or an infohash. {FROM_ELSEWHERE}",
        )
        parser.add_argument(
            "--hops", type=values.whole_number(0, MAX_HOPS), metavar="H", help="Hop count, 0 (plain) to 3."
        )
        parser.add_argument(
            "--label", action="append", default=[], metavar="LABEL", help="Label of the torrents; may be repeated."
        )
        parser.add_argument(
            "--to", type=values.folder, metavar="DIR", help="Folder on the daemon's machine to download to."
        )
        parser.add_argument("--paused", action="store_true", help="Do not start the torrents yet.")
        options.add_peer_option(parser, "by the way that the torrents go")
    elif command != "status":
        add_ids(parser)
    if command == "remove":
        parser.add_argument("--delete-data", action="store_true", help="Delete the files as well.")
    add_rpc_options(parser)
    options.add_output_options(parser)
    parser.set_defaults(run=COMMANDS[command])


def add_ids(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "ids", nargs="+", type=_torrent_id, metavar="ID", help=f"Number or infohash of a torrent, or {ALL}."
    )


def _torrent_id(text: str) -> int | str:
    return int(text) if text.isdigit() and len(text) < 20 else text.lower()


def remote_of(arguments: argparse.Namespace) -> Remote:
    return Remote(arguments.rpc, credentials(arguments))


async def _status(arguments: argparse.Namespace) -> dict[str, Any]:
    async with remote_of(arguments) as remote:
        torrents = (await remote.call("torrent_get", fields=FIELDS))["torrents"]
    return {"ok": True, "torrents": [{**torrent, "status": STATES[torrent["status"]]} for torrent in torrents]}


async def _add(arguments: argparse.Namespace) -> dict[str, Any]:
    wishes: dict[str, Any] = {"labels": arguments.label, "paused": arguments.paused}
    if arguments.peer:
        wishes["peers"] = [str(peer) for peer in arguments.peer]
    if arguments.hops is not None:
        wishes["hops"] = arguments.hops
    if arguments.to is not None:
        wishes["download_dir"] = str(arguments.to.absolute())
    sources = [_source(what) for what in arguments.what]
    added = []
    async with remote_of(arguments) as remote:
        for source in sources:
            result = await remote.call("torrent_add", **source, **wishes)
            added += [{**told, "new": kind == "torrent_added"} for kind, told in result.items()]
    return {"ok": True, "added": added}


def _source(what: str) -> dict[str, str]:
    """Return the torrent for torrent-add, read here as the daemon may run elsewhere. Raises UserError."""
    parameters = parse_torrent(what)
    if parameters.ti is None:
        (link,) = links_in(what)
        return {"filename": link if is_link(link) else magnet_link(parameters)}
    return {"metainfo": base64.b64encode(Path(what).read_bytes()).decode()}


async def chosen(remote: Remote, ids: Sequence[int | str]) -> list[int]:
    """Raises UserError when one is not there."""
    if ALL in ids and len(ids) > 1:
        raise UsageError(f"{ALL}, or some of them")
    torrents = (await remote.call("torrent_get", fields=["id", "hash_string"]))["torrents"]
    numbers = {known: torrent["id"] for torrent in torrents for known in (torrent["id"], torrent["hash_string"])}
    if ALL in ids:
        return [torrent["id"] for torrent in torrents]
    missing = [name for name in ids if name not in numbers]
    if missing:
        raise UserError(f"there is no torrent {missing[0]}; `tunnel-pool status` lists them")
    return list(dict.fromkeys(numbers[name] for name in ids))


async def ask(arguments: argparse.Namespace, method: str, **more: Any) -> dict[str, Any]:
    async with remote_of(arguments) as remote:
        ids = await chosen(remote, arguments.ids)
        result = await remote.call(method, ids=ids, **more)
    return {"ok": True, "torrents": len(ids), **(result or {})}


async def _remove(arguments: argparse.Namespace) -> dict[str, Any]:
    return await ask(arguments, "torrent_remove", delete_local_data=arguments.delete_data)


async def _pause(arguments: argparse.Namespace) -> dict[str, Any]:
    return await ask(arguments, "torrent_stop")


async def _resume(arguments: argparse.Namespace) -> dict[str, Any]:
    return await ask(arguments, "torrent_start")


COMMANDS = {"status": _status, "add": _add, "remove": _remove, "pause": _pause, "resume": _resume}
DESCRIPTIONS = {
    "status": "List the torrents of a running daemon.",
    "add": "Add torrents to a running daemon.",
    "remove": "Remove torrents from a running daemon; their files stay, unless --delete-data.",
    "pause": "Stop torrents of a running daemon.",
    "resume": "Start torrents of a running daemon.",
}


def describe(report: dict[str, Any]) -> str:
    if "added" in report:
        added = (f"{t['id']}: {t['name']}{'' if t['new'] else ' (was there)'}" for t in report["added"])
        return "\n".join(map(printable, added))
    if isinstance(report["torrents"], int):
        return "; ".join(filter(None, (f"{report['torrents']} torrents", report.get("notice"))))
    rows = []
    for torrent in report["torrents"]:
        rates = (f"{torrent[rate] / 1000:.0f}" for rate in ("rate_download", "rate_upload"))
        state = torrent["error_string"] or torrent["status"]
        done = f"{100 * torrent['percent_done']:.0f} %"
        rows.append([torrent["id"], done, *rates, torrent["peers_connected"], torrent["hops"], state, torrent["name"]])
    return table_of(("id", "done", "down kB/s", "up kB/s", "peers", "hops", "state", "name"), rows)


def table_of(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """Return a table as text, of whose cells only what prints is shown."""
    table = Table(*head, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*(printable(str(cell)) for cell in row))
    text = io.StringIO()
    Console(file=text, width=160, markup=False, highlight=False).print(table)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())


def printable(text: str) -> str:
    """Replace what does not print: a stranger's name must not move the cursor."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)
