"""Tells by their sizes, which is quick, whether the files of a torrent are where it left them."""

import os
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from functools import partial
from typing import NamedTuple

import libtorrent as lt

from tunnel_pool.daemon.record import UNWANTED, Record
from tunnel_pool.daemon.rules.selection import priority_of
from tunnel_pool.daemon.storage.disk import Identity
from tunnel_pool.torrent.entries import kept_name, real_files
from tunnel_pool.torrent.takeover import size_of


class Presence(Enum):
    """Says what is there of the files of a torrent."""

    THERE = "each file is there, and long enough"
    SHORT = "some file is missing, or shorter than it was"
    GONE = "none of its files is there"


class Part(NamedTuple):
    """A file, and how many bytes of it there must be at least."""

    path: str
    least_bytes: int


def not_found(folder: str) -> str:
    """Return what the owner of a torrent is told when none of its files is there."""
    return (
        f"no data found in {folder}: connect its disk or set its location, and it goes on by itself; to download it "
        "again, verify it"
    )


def expected_parts(
    record: Record, layout: lt.file_storage, name_of: Callable[[int], str], has: Sequence[bool]
) -> list[Part]:
    """Return the files that a torrent must find in its folder when it has these pieces.

    What it has of files that nobody wants, or wanted until lately, may be in libtorrent's file of such parts.
    """
    parts = []
    for index in real_files(layout):
        if priority_of(record.file_priorities, index) == UNWANTED or index in record.exporting:
            continue
        if least_bytes := _bytes_up_to_last_piece(layout, index, has):
            parts.append(Part(os.path.join(record.folder, name_of(index)), least_bytes))
    return parts


def kept_parts(record: Record, parameters: lt.add_torrent_params) -> list[Part]:
    """Return the files that a torrent must find in its folder, by its resume data."""
    if parameters.ti is None:
        return []
    layout, has = parameters.ti.layout(), parameters.have_pieces
    if parameters.flags & lt.torrent_flags.seed_mode:
        has = [True] * layout.num_pieces()
    return expected_parts(record, layout, partial(kept_name, dict(parameters.renamed_files), layout), has)


def _bytes_up_to_last_piece(layout: lt.file_storage, index: int, has: Sequence[bool]) -> int:
    """Return how long a file is at least, by the last of its pieces that is there; 0 when none is."""
    offset, size, piece_bytes = layout.file_offset(index), layout.file_size(index), layout.piece_length()
    if not size:
        return 0
    first, last = offset // piece_bytes, (offset + size - 1) // piece_bytes
    for piece in range(min(last, len(has) - 1), first - 1, -1):
        if has[piece]:
            return min(size, (piece + 1) * piece_bytes - offset)
    return 0


def presence_of(parts: Iterable[Part]) -> Presence:
    """Look at the files. Where no part is expected, nothing can be missing."""
    sizes = [(size_of(part.path), part.least_bytes) for part in parts]
    if sizes and all(size is None for size, _ in sizes):
        return Presence.GONE
    if any(size is None or size < least_bytes for size, least_bytes in sizes):
        return Presence.SHORT
    return Presence.THERE


def identities(folders: Iterable[str]) -> dict[str, Identity | None]:
    """Return which folders these are, None for those that are not there."""
    return {folder: _identity(folder) for folder in folders}


def _identity(folder: str) -> Identity | None:
    try:
        found = os.stat(folder)
    except OSError:
        return None
    return found.st_dev, found.st_ino
