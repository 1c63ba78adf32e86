"""Edits: all that the owner of torrents can ask for. Each face turns its words into these; `Changes.apply` makes them.

An edit that depends on what there is (a label is added to others, a tracker taken out) is a function: it is called when
nobody else changes anything.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from tunnel_pool.contract import Address
from tunnel_pool.daemon.record import Layout
from tunnel_pool.daemon.torrents.torrent import Torrent

Tiers = list[list[str]]
"""Announce URLs by tier (BEP 12)."""

QueueEnd = Literal["top", "up", "down", "bottom"]


@dataclass(frozen=True, slots=True)
class AddRequest:
    """Says how a torrent is to be added; None leaves it to rules and settings."""

    folder: str | None = None
    folder_when_done: str = ""  # where its files go once it is whole; empty where they stay
    hops: int | None = None
    labels: Sequence[str] = ()
    stopped: bool | None = None
    file_priorities: Sequence[int] = ()
    renamed: Mapping[int, str] = field(default_factory=dict)  # paths of files, by their indexes
    layout: Layout = Layout.ORIGINAL
    others: dict[str, Any] = field(default_factory=dict)  # fields of the record


@dataclass(frozen=True, slots=True)
class Relabel:
    """Gives a torrent other labels; a hop count is none of them."""

    edit: Callable[[list[str]], list[str]]

    @classmethod
    def to(cls, labels: Sequence[str]) -> "Relabel":
        return cls(lambda _: list(labels))


@dataclass(frozen=True, slots=True)
class SetHops:
    """Changes the hop count. What labels say (`at_least`) can only raise it; fewer hops have to be `confirmed`."""

    hops: int | None = None
    at_least: int | None = None
    confirmed: bool = False


@dataclass(frozen=True, slots=True)
class SetFields:
    """Sets limits, the order of pieces, the title: fields of the record that libtorrent or the queue goes by."""

    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ToggleSequential:
    """Has pieces come in their order, or no longer."""


@dataclass(frozen=True, slots=True)
class Select:
    """Chooses which files are wanted, and how much: returns libtorrent's priorities by the file's index."""

    priorities: Callable[[Torrent], list[int]]


@dataclass(frozen=True, slots=True)
class EditTrackers:
    edit: Callable[[Tiers], Tiers]


@dataclass(frozen=True, slots=True)
class Enqueue:
    """Puts a torrent at a place in the queue, from 0."""

    position: int


@dataclass(frozen=True, slots=True)
class Move:
    """Has the files in another folder: they are moved there, or else are there already."""

    folder: str
    with_files: bool = True


@dataclass(frozen=True, slots=True)
class Rename:
    """Renames a file or folder of a torrent, named by its path in the torrent's folder; it stays where it is."""

    path: str
    name: str


@dataclass(frozen=True, slots=True)
class Requeue:
    """Moves all the torrents that are edited together in the queue: to the `top`, `up`, `down`, or to the `bottom`."""

    where: QueueEnd


@dataclass(frozen=True, slots=True)
class Verify:
    """Has all files read, of a torrent whose metadata is known and that stays where it is; else it does nothing."""


@dataclass(frozen=True, slots=True)
class Reannounce:
    """Has trackers and the DHT asked now."""


@dataclass(frozen=True, slots=True)
class AddPeers:
    """Names peers of a torrent, which are tried now and after each start."""

    peers: Sequence[Address]


@dataclass(frozen=True, slots=True)
class Remove:
    """Removes a torrent, and its own files where that is wanted: no other edit goes with it."""

    delete_files: bool = False


@dataclass(frozen=True, slots=True)
class Run:
    """Starts a torrent; with `now`, past the queue."""

    now: bool = False


@dataclass(frozen=True, slots=True)
class Stop:
    """Stops a torrent."""


Edit = (
    Relabel
    | SetHops
    | SetFields
    | ToggleSequential
    | Select
    | EditTrackers
    | Enqueue
    | Requeue
    | Move
    | Rename
    | Run
    | Stop
    | Verify
    | Reannounce
    | AddPeers
    | Remove
)
