"""Tells what has happened between two looks. Pure."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from tunnel_pool.daemon.server.api.model import Happening

GONE = "gone"


class Seen(NamedTuple):
    """Remembers the states that were last seen, by name."""

    torrents: Mapping[str, str]
    circuits: Mapping[str, str]
    children: Mapping[str, str]


def happenings(before: Seen, now: Seen) -> list[Happening]:
    kinds = ("torrent", before.torrents, now.torrents), ("circuit", before.circuits, now.circuits)
    found: list[Happening] = []
    for kind, old, new in (*kinds, ("child", before.children, now.children)):
        found += (Happening(kind=kind, what=what, now=state) for what, state in _changes(old, new))
    return found


def _changes(old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for what, state in new.items():
        if old.get(what) != state:
            yield what, state
    for what in old.keys() - new.keys():
        yield what, GONE
