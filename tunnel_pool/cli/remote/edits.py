"""tunnel-pool set, move and verify: changes to torrents of a running daemon."""

import argparse
from collections.abc import Callable
from typing import Any

from tunnel_pool.cli.arguments import options, values
from tunnel_pool.cli.arguments.rpc_options import add_rpc_options
from tunnel_pool.cli.remote.remote import add_ids, ask, describe
from tunnel_pool.daemon.record import LimitMode
from tunnel_pool.daemon.rules.groups import MAX_KB_PER_S
from tunnel_pool.daemon.storage.settings import MAX_COUNT
from tunnel_pool.overlay.ground.config import MAX_HOPS
from tunnel_pool.system.errors import UsageError

__all__ = ["add_options", "describe"]  # what a command has

NONE, USUAL = "none", "usual"
DESCRIPTIONS = {
    "set": "Change hop count, labels and limits of torrents of a running daemon.",
    "move": "Move torrents of a running daemon to another folder, with their files.",
    "verify": "Have a running daemon check the files of torrents, and download what is missing.",
}
SPEEDS = {"down": "download_limit", "up": "upload_limit"}
SEEDING = {"ratio": "seed_ratio", "idle": "seed_idle"}


def add_options(parser: argparse.ArgumentParser) -> None:
    command = parser.prog.split()[-1]
    parser.description = DESCRIPTIONS[command]
    add_ids(parser)
    if command == "set":
        _add_settings(parser)
    elif command == "move":
        parser.add_argument(
            "--to", type=values.folder, metavar="DIR", required=True, help="Folder on the daemon's machine."
        )
        parser.add_argument(
            "--find", action="store_true", help="The files are there already: look for them, and move nothing."
        )
    add_rpc_options(parser)
    options.add_output_options(parser)
    parser.set_defaults(run={"set": _set, "move": _move, "verify": _verify}[command])


def _add_settings(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--hops", type=values.whole_number(0, MAX_HOPS), metavar="H", help="Hop count, 0 (plain) to 3.")
    parser.add_argument(
        "--fewer-hops",
        action="store_true",
        help="Lower the hop count, too: who sees the torrent then can find out more than before.",
    )
    parser.add_argument(
        "--label", action="append", metavar="LABEL", help="Label in place of those that are there; may be repeated."
    )
    speed = _number_or(values.whole_number(0, MAX_KB_PER_S), NONE)
    for name, what in (("down", "downloaded"), ("up", "uploaded")):
        parser.add_argument(
            f"--{name}", type=speed, metavar="KB", help=f"Most kB that are {what} in a second, or {NONE}."
        )
    parser.add_argument(
        "--ratio",
        type=_number_or(_ratio, NONE, USUAL),
        metavar="R",
        help=f"Ratio at which seeding ends; {NONE}, or {USUAL}: that of all torrents.",
    )
    parser.add_argument(
        "--idle",
        type=_number_or(values.whole_number(0, MAX_COUNT), NONE, USUAL),
        metavar="MINUTES",
        help=f"Minutes without a peer after which seeding ends; {NONE}, or {USUAL}: those of all torrents.",
    )
    parser.add_argument(
        "--peers", type=values.whole_number(1, MAX_COUNT), metavar="N", help="Most peers that are connected."
    )


def _number_or(parse: Callable[[str], Any], *words: str) -> Callable[[str], Any]:
    return lambda text: text if text in words else parse(text)


def _ratio(text: str) -> float:
    try:
        ratio = float(text)
    except ValueError:
        ratio = -1.0
    if not 0 <= ratio <= MAX_COUNT:
        raise argparse.ArgumentTypeError(f"{text!r} is not a ratio like 1.5")
    return ratio


def settings_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of torrent-set. Raises UsageError when nothing is to be changed."""
    given: dict[str, Any] = {"hops": arguments.hops, "labels": arguments.label, "peer_limit": arguments.peers}
    for option, name in SPEEDS.items():
        value = getattr(arguments, option)
        given[f"{name}ed"] = None if value is None else value != NONE
        given[name] = None if value in (None, NONE) else value
    for option, name in SEEDING.items():
        value = getattr(arguments, option)
        modes = {None: None, NONE: LimitMode.UNLIMITED, USUAL: LimitMode.GLOBAL}
        mode = modes.get(value, LimitMode.SINGLE)
        given[f"{name}_mode"] = None if mode is None else int(mode)
        given[f"{name}_limit"] = value if mode is LimitMode.SINGLE else None
    changes = {name: value for name, value in given.items() if value is not None}
    if not changes:
        raise UsageError("say what to change: --hops, --label, --down, --up, --ratio, --idle or --peers")
    if arguments.fewer_hops:
        changes["confirm_fewer_hops"] = True
    return changes


async def _set(arguments: argparse.Namespace) -> dict[str, Any]:
    return await ask(arguments, "torrent_set", **settings_of(arguments))


async def _move(arguments: argparse.Namespace) -> dict[str, Any]:
    folder = str(arguments.to.absolute())
    return await ask(arguments, "torrent_set_location", location=folder, move=not arguments.find)


async def _verify(arguments: argparse.Namespace) -> dict[str, Any]:
    return await ask(arguments, "torrent_verify")
