"""A torrent that another program had, and how its files are read."""

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import libtorrent as lt

from tunnel_pool.daemon.storage.settings import MAX_COUNT
from tunnel_pool.system.errors import UserError
from tunnel_pool.torrent.entries import parts_of, places_in
from tunnel_pool.torrent.metainfo import MAX_TORRENT_FILE_BYTES, read_metainfo
from tunnel_pool.torrent.takeover import size_of

BLOCK_BYTES = 16384


@dataclass(slots=True)
class Found:
    """A torrent with all that is known of it. `parameters` say where its files are, and which pieces are there."""

    parameters: lt.add_torrent_params
    labels: list[str] = field(default_factory=list)
    is_stopped: bool = False
    changes: dict[str, Any] = field(default_factory=dict)  # arguments of torrent-set
    name: str = ""  # as its owner called it
    renames: list[tuple[str, str]] = field(default_factory=list)  # of files named as not whole: path, and usual name
    guesses: list[dict[int, str]] = field(default_factory=list)  # other names of its files
    folder_when_done: str = ""  # where its files go once it is whole, by its program; empty where they stay
    hops: int | None = None  # None where its program has none

    def go_home(self, folder: str) -> None:
        """Have the files go to another folder once they are whole, unless they are."""
        is_elsewhere = os.path.normpath(folder) != os.path.normpath(self.parameters.save_path)
        if os.path.isabs(folder) and is_elsewhere and not all(self.parameters.have_pieces or [False]):
            self.folder_when_done = folder


class BadTorrentError(Exception):
    """Says why one torrent can't be read."""


def attempted(what: str, make: Callable[[], Found]) -> Found | BadTorrentError:
    """Return a torrent, or why it can't be read, whatever is in its files."""
    try:
        return make()
    except BadTorrentError as error:
        return error
    except OSError as error:
        return BadTorrentError(f"what is kept of {what} can't be read: {error.strerror}")
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError, MemoryError):
        return BadTorrentError(f"what is kept of {what} can't be read")


def content_of(path: Path, most: int = MAX_TORRENT_FILE_BYTES) -> bytes:
    """Raises BadTorrentError."""
    try:
        if path.stat().st_size > most:
            raise BadTorrentError(f"{path.name} is too large")
        return path.read_bytes()
    except OSError as error:
        raise BadTorrentError(f"{path.name}: {error.strerror}") from None


def torrent_of(path: Path) -> lt.add_torrent_params:
    """Return the parameters of a torrent file. Raises BadTorrentError."""
    try:
        return read_metainfo(content_of(path))
    except (RuntimeError, ValueError):
        raise BadTorrentError(f"{path.name} is no torrent file") from None


def dictionary_of(content: bytes, what: str) -> dict[bytes, Any]:
    """Return a bencoded dictionary (BEP 3). Raises BadTorrentError."""
    try:
        decoded: Any = lt.bdecode(content)
    except (RuntimeError, ValueError):
        decoded = None
    if not isinstance(decoded, dict):
        raise BadTorrentError(f"{what} can't be read")
    return decoded


def text(value: object) -> str:
    """Return bytes as text; what is of another kind is an empty text."""
    return value.decode(errors="replace") if isinstance(value, bytes) else ""


def unquoted(value: str) -> str:
    """Return a value of a configuration without the quotes around it; one that only ends with a quote has it."""
    is_quoted = len(value) > 1 and value[0] in "\"'" and value[0] == value[-1]
    return value[1:-1] if is_quoted else value


def number(value: object) -> int:
    """Return a number as it was kept, which may be a text; 0 for what is none."""
    try:
        return int(float(value.decode("ascii"))) if isinstance(value, bytes) else int(value)  # type: ignore[call-overload]
    except (TypeError, ValueError, OverflowError):
        return 0


def counted(value: object) -> int:
    """Return a number as the daemon takes one for a count, a limit or minutes."""
    return min(MAX_COUNT, max(0, number(value)))


def bits(content: bytes, count: int) -> list[bool]:
    """Return the bits of a bitfield, the highest of each byte first; those that are missing are not set."""
    return [_bit(content, at) for at in range(count)]


def pieces_of_blocks(blocks: bytes, info: lt.torrent_info) -> list[bool]:
    """Return which pieces are there whole, by a bitfield of blocks of 16 KiB."""
    each, size = info.piece_length(), info.total_size()
    is_set = [
        (piece * each // BLOCK_BYTES, (min((piece + 1) * each, size) - 1) // BLOCK_BYTES)
        for piece in range(info.num_pieces())
    ]
    return [all(_bit(blocks, at) for at in range(first, last + 1)) for first, last in is_set]


def _bit(content: bytes, at: int) -> bool:
    return at >> 3 < len(content) and bool(content[at >> 3] >> (7 - at % 8) & 1)


def renamed(parameters: lt.add_torrent_params, paths: Iterable[str]) -> dict[int, str]:
    """Return those of these paths, which are all in order, that are not as the torrent file has them."""
    layout = info_of(parameters).layout()
    names = (str(layout.file_path(index)) for index in range(layout.num_files()))
    return {index: path for index, (name, path) in enumerate(zip(names, paths, strict=False)) if name != path}


def paths_of(parameters: lt.add_torrent_params) -> dict[int, str]:
    """Return the paths of a torrent's files in its folder, as they were renamed."""
    layout = info_of(parameters).layout()
    return {
        index: str(parameters.renamed_files.get(index, layout.file_path(index))) for index in range(layout.num_files())
    }


def choose_names(found: Found) -> None:
    """Have the files of a torrent the names by which some of them are there, if there are such."""
    parameters, usual = found.parameters, dict(found.parameters.renamed_files)
    for names in (usual, *found.guesses):
        parameters.renamed_files = names
        if any(os.path.lexists(os.path.join(parameters.save_path, path)) for path in paths_of(parameters).values()):
            return
    parameters.renamed_files = usual


def missing_files(parameters: lt.add_torrent_params) -> int | None:
    """Return how many files that should be whole are not there, by their sizes; None where nobody can see that."""
    if not os.path.isdir(parameters.save_path):
        return None
    places = places_in(parameters, parameters.save_path)
    parts = parts_of(info_of(parameters).layout(), places, list(parameters.have_pieces))
    return sum(part.is_whole and size_of(part.entry.path) != part.entry.size for part in parts)


def usual_names(parameters: lt.add_torrent_params, end: str) -> list[tuple[str, str]]:
    """Return path and usual name of each file whose name ends with what says that it is not whole."""
    paths = (path for path in paths_of(parameters).values() if path.endswith(end))
    return [(path, os.path.basename(path).removesuffix(end)) for path in paths]


def info_of(parameters: lt.add_torrent_params) -> lt.torrent_info:
    assert parameters.ti is not None
    return parameters.ti


def below(folder: str, parameters: lt.add_torrent_params) -> dict[int, str]:
    """Return the paths of a torrent's files where its own folder has this name."""
    layout = info_of(parameters).layout()
    old = (str(layout.file_path(index)) for index in range(layout.num_files()))
    return renamed(parameters, (f"{folder}/{path.partition('/')[2]}" if "/" in path else folder for path in old))


def put_into(parameters: lt.add_torrent_params, directory: str) -> None:
    """Say that the files are in a directory, which is the torrent's own folder where it has one."""
    layout = info_of(parameters).layout()
    has_folder = any("/" in str(layout.file_path(index)) for index in range(layout.num_files()))
    if has_folder and directory:
        parameters.save_path, name = os.path.split(directory.rstrip("/"))
        parameters.renamed_files = below(name, parameters)
    else:
        parameters.save_path = directory


def mapped(folder: str, folders: Mapping[str, str]) -> str:
    """Return a folder as the daemon knows it: the longest of these beginnings is replaced."""
    for old in sorted(folders, key=len, reverse=True):
        beginning = old.rstrip("/")
        if folder == beginning or folder.startswith(beginning + "/"):
            return os.path.normpath(folders[old] + "/" + folder[len(beginning) :])
    return folder


def first_of(folders: Iterable[Path], program: str) -> Path:
    """Return the first folder that is there. Raises UserError."""
    known = list(folders)
    for folder in known:
        if os.path.isdir(folder):  # Path.is_dir raises where the folder above may not be entered
            return folder
    usual = " and ".join(str(folder) for folder in known)
    raise UserError(f"{program} has kept nothing in {usual}: name its folder by --from")
