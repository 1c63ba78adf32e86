"""The files of a torrent, and what is there of each. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import NamedTuple

import libtorrent as lt


class Entry(NamedTuple):
    """A file that a torrent has or is to have: its path, and its size in bytes."""

    path: str
    size: int


class Part(NamedTuple):
    """A file of a torrent that was checked: whether any and whether each of its pieces is there.

    One that is not wanted counts, too: it would be moved and deleted with the others.
    """

    entry: Entry
    has_any: bool
    is_whole: bool


def real_files(layout: lt.file_storage) -> list[int]:
    """Return the indexes of a torrent's files, without those that only pad."""
    return [i for i in range(layout.num_files()) if not layout.file_flags(i) & lt.file_flags_t.flag_pad_file]


def kept_name(renamed: Mapping[int, str], layout: lt.file_storage, index: int) -> str:
    """Return the path of a file in the torrent's folder, as it was renamed."""
    return str(renamed.get(index) or layout.file_path(index))


def entries_in(parameters: lt.add_torrent_params) -> list[tuple[int, Entry]]:
    """Return a torrent's files by their indexes, each by its path in the torrent's folder."""
    if parameters.ti is None:
        return []
    layout, renamed = parameters.ti.layout(), dict(parameters.renamed_files)
    return [(i, Entry(kept_name(renamed, layout, i), layout.file_size(i))) for i in real_files(layout)]


def places_in(parameters: lt.add_torrent_params, folder: str) -> list[tuple[int, Entry]]:
    """Return a torrent's files by their indexes, each by its whole path."""
    return [(index, Entry(str(PurePosixPath(folder, path)), size)) for index, (path, size) in entries_in(parameters)]


def parts_of(layout: lt.file_storage, entries: Iterable[tuple[int, Entry]], has: Sequence[bool]) -> list[Part]:
    """Return what is there of files, which are named by their indexes and whole paths, by the pieces that are there."""
    parts = []
    for index, entry in entries:
        if entry.size:
            pieces = [piece < len(has) and has[piece] for piece in pieces_of(layout, index)]
            parts.append(Part(entry, any(pieces), all(pieces)))
    return parts


def pieces_of(layout: lt.file_storage, index: int) -> range:
    """Return the pieces that a file has a part in."""
    if not layout.file_size(index):
        return range(0)
    offset, piece_bytes = layout.file_offset(index), layout.piece_length()
    return range(offset // piece_bytes, (offset + layout.file_size(index) - 1) // piece_bytes + 1)
