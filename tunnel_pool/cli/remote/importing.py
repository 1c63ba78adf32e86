"""tunnel-pool import: a running daemon takes over the torrents of another program."""

import argparse
import base64
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import libtorrent as lt

from tunnel_pool.cli.arguments import options, values
from tunnel_pool.cli.arguments.rpc_options import add_rpc_options
from tunnel_pool.cli.remote.remote import printable, remote_of, table_of
from tunnel_pool.daemon.remote import Remote
from tunnel_pool.importing import deluge, qbittorrent, rqbit, rtorrent, transmission, tribler
from tunnel_pool.importing.model import BadTorrentError, Found, choose_names, first_of, info_of, mapped, missing_files
from tunnel_pool.overlay.ground.config import MAX_HOPS
from tunnel_pool.system.errors import UserError

PROGRAMS: dict[str, ModuleType] = {
    "transmission": transmission,
    "qbittorrent": qbittorrent,
    "deluge": deluge,
    "rtorrent": rtorrent,
    "rqbit": rqbit,
    "tribler": tribler,
}
SEEN_BEFORE = (
    "their trackers and peers have seen this machine's address with them, and may remember it: hops hide what is done "
    "from now on"
)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Have a running daemon take over the torrents of another program, with what they have, their limits and "
        "labels. Stop that program first. Files stay where they are, and are not checked again unless their sizes are "
        "wrong."
    )
    parser.add_argument("program", choices=list(PROGRAMS), help="The program that had them.")
    parser.add_argument(
        "--from",
        dest="source",
        type=Path,
        metavar="DIR",
        help="Folder of what it keeps: its configuration, or rTorrent's session (default: the usual one).",
    )
    parser.add_argument(
        "--hops",
        type=values.whole_number(0, MAX_HOPS),
        metavar="H",
        help="Hop count (default: Tribler's own of each, and for others the daemon's rules).",
    )
    parser.add_argument(
        "--map",
        type=_mapping,
        action="append",
        default=[],
        metavar="OLD=NEW",
        help="Where the daemon finds the files of a folder that the other program knew as OLD; may be repeated.",
    )
    parser.add_argument("--paused", action="store_true", help="Start none of them.")
    parser.add_argument("--dry-run", action="store_true", help="Say what there is, and ask the daemon for nothing.")
    add_rpc_options(parser)
    options.add_output_options(parser)
    parser.set_defaults(run=_import)


def _mapping(text: str) -> tuple[str, str]:
    old, equals, new = text.partition("=")
    if not equals or not old.startswith("/") or not new.startswith("/"):
        raise argparse.ArgumentTypeError(f"{text!r} is not OLD=NEW, two folders by their whole paths")
    return old, new


async def _import(arguments: argparse.Namespace) -> dict[str, Any]:
    program = PROGRAMS[arguments.program]
    folder = arguments.source or first_of((path.expanduser() for path in program.USUAL), program.NAME)
    if not folder.is_dir():
        raise UserError(f"{folder} is no folder")
    found = list(program.read(folder))
    torrents = [each for each in found if isinstance(each, Found)]
    failed = [str(each) for each in found if isinstance(each, BadTorrentError)]
    if not found:
        raise UserError(f"{program.NAME} has kept no torrents in {folder}: name another folder by --from")
    folders = dict(arguments.map)
    for torrent in torrents:
        torrent.parameters.save_path = mapped(torrent.parameters.save_path, folders)
        torrent.folder_when_done = mapped(torrent.folder_when_done, folders)
        choose_names(torrent)
    rows = [_row(torrent) for torrent in torrents]
    if not arguments.dry_run:
        async with remote_of(arguments) as remote:
            await remote.call("session_get", fields=["version"])  # who does not answer is told of once
            if program is qbittorrent:
                for name, place in qbittorrent.categories(folder).items():
                    try:
                        await remote.make_category(name, mapped(place, folders))
                    except UserError as error:
                        failed.append(f"the category {name}: {error}")
            for torrent, row in zip(torrents, rows, strict=True):
                try:
                    row["new"], row["hops"] = await _hand_over(remote, torrent, arguments)
                except UserError as error:
                    row["error"] = str(error)
                    failed.append(f"{row['name']}: {error}")
    return {"ok": not failed, "torrents": rows, "failed": failed, "dry_run": arguments.dry_run}


def _row(torrent: Found) -> dict[str, Any]:
    has = torrent.parameters.have_pieces
    return {
        "name": torrent.name or info_of(torrent.parameters).name(),
        "progress": sum(map(bool, has)) / len(has) if has else 0.0,
        "folder": torrent.parameters.save_path,
        "folder_when_done": torrent.folder_when_done,
        "missing": missing_files(torrent.parameters),
        "stopped": torrent.is_stopped,
        "labels": torrent.labels,
    }


async def _hand_over(remote: Remote, torrent: Found, arguments: argparse.Namespace) -> tuple[bool, int]:
    """Add a torrent, and then what torrent-add does not take; return whether it is new, and its hop count.

    It is started last, so that nothing is sent for it before its limits hold. Raises UserError.
    """
    hops = arguments.hops if arguments.hops is not None else torrent.hops
    wish = {
        "resume": base64.b64encode(lt.write_resume_data_buf(torrent.parameters)).decode(),
        "folder": torrent.parameters.save_path,
        **({"folder_when_done": torrent.folder_when_done} if torrent.folder_when_done else {}),
        "labels": torrent.labels,
        "stopped": True,
        **({"hops": hops} if hops is not None else {}),
    }
    answer = await remote.add(wish)
    added = answer["torrent"]
    if answer["new"]:
        try:
            await _finish(remote, torrent, added["number"], not (torrent.is_stopped or arguments.paused))
        except BaseException:  # so that a second run begins anew
            await remote.call("torrent_remove", ids=[added["number"]], delete_local_data=False)
            raise
    return bool(answer["new"]), int(added["hops"])


async def _finish(remote: Remote, torrent: Found, number: int, is_to_run: bool) -> None:
    """Raises UserError."""
    changes: Mapping[str, Any] = {**torrent.changes, **({"name": torrent.name} if torrent.name else {})}
    if changes:
        await remote.call("torrent_set", ids=[number], **changes)
    for path, name in torrent.renames:
        await remote.call("torrent_rename_path", ids=[number], path=path, name=name)
    if is_to_run:
        await remote.call("torrent_start", ids=[number])


def describe(report: dict[str, Any]) -> str:
    rows = [
        [
            f"{100 * row['progress']:.0f} %",
            "?" if row["missing"] is None else f"{row['missing']} missing" if row["missing"] else "there",
            "stopped" if row["stopped"] else "runs",
            _outcome(row),
            f"{row['folder']}, then {row['folder_when_done']}" if row["folder_when_done"] else row["folder"],
            row["name"],
        ]
        for row in report["torrents"]
    ]
    lines = [table_of(("done", "files", "state", "import", "folder", "name"), rows)]
    lines += [f"not taken over: {printable(why)}" for why in report["failed"]]
    if any(row.get("new") and row.get("hops") for row in report["torrents"]):
        lines.append(f"Note that {SEEN_BEFORE}.")
    return "\n".join(lines)


def _outcome(row: dict[str, Any]) -> str:
    if "error" in row:
        return "failed"
    if "new" not in row:
        return "-"
    return f"{row['hops']} hops" if row["new"] else "was there"
