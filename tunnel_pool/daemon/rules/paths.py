"""Chooses the paths of a torrent's files in its folder. Pure.

libtorrent changes names so that every file system can hold them: of two that differ in case alone, one gets a number
(`resolve_duplicate_filenames` in its src/torrent_info.cpp); a name ends at 240 bytes, and marks that turn the direction
of writing are left out (`sanitize_append_path_element`). Other programs write such files under the torrent's own names.
"""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, NamedTuple

import libtorrent as lt

from tunnel_pool.daemon.record import Layout
from tunnel_pool.torrent.entries import Entry, real_files

MAX_NAME_BYTES = 255  # NAME_MAX of Linux's own file systems


class Spellings(NamedTuple):
    """Holds the paths that each file of a torrent may have, all in the order of its files.

    `own` are those of the torrent, with libtorrent's numbers where one path would be another's; `portable` have
    numbers where two differ in case alone, too; `unchanged` are as other programs spell them, by the file's index,
    where libtorrent does otherwise.
    """

    own: Sequence[str]
    portable: Sequence[str]
    unchanged: Mapping[int, str]


def spellings_of(info: lt.torrent_info, repaired: Mapping[int, str], layout: Layout, infohash: str) -> Spellings:
    """Return the paths that a torrent's files may have; `repaired` are libtorrent's (add_torrent_params.renamed_files).

    Only the files of a torrent that libtorrent has just read have them there.
    """
    files = info.layout()
    named = [str(files.file_path(index)) for index in range(files.num_files())]
    is_in_folder = any("/" in path for path in named)

    def laid_out(path: str) -> str:
        if layout is Layout.SUBFOLDER and not is_in_folder:
            stem = str(files.name()).rpartition(".")[0]
            return f"{stem if stem.strip('.') else infohash}/{path}"
        if layout is Layout.NO_SUBFOLDER and is_in_folder:
            return path.partition("/")[2] or path
        return path

    clashing = _clashing(named)
    own = [repaired.get(index, path) if index in clashing else path for index, path in enumerate(named)]
    portable = [repaired.get(index, path) for index, path in enumerate(named)]
    unchanged = _unchanged(info, files, named)
    return Spellings(
        [laid_out(path) for path in own],
        [laid_out(path) for path in portable],
        {index: laid_out(path) for index, path in unchanged.items()},
    )


def final_paths(
    spellings: Spellings, wished: Mapping[int, str], is_there: Callable[[str], bool], is_case_sensitive: bool
) -> list[str] | None:
    """Return the path of each file: as its owner wishes, else as it is there, else as its file system can hold it.

    None where two of them would be one, by the owner's wish.
    """
    first = spellings.own if is_case_sensitive else spellings.portable
    found: list[str] = []
    for index, (own, portable) in enumerate(zip(spellings.own, spellings.portable, strict=True)):
        unchanged = spellings.unchanged.get(index, own)
        if wished.get(index, portable) != portable:
            found.append(wished[index])
        elif own == portable == unchanged:
            found.append(own)
        else:
            found.append(next(filter(is_there, (own, unchanged, portable)), first[index]))
    if not clash(found, is_case_sensitive):
        return found
    usual = [wished.get(index, path) for index, path in enumerate(spellings.portable)]
    return None if clash(usual, is_case_sensitive) else usual


def clash(paths: Sequence[str], is_case_sensitive: bool = True) -> bool:
    """Return whether two of these paths are one, or one is a folder of another."""
    return bool(_clashing([path if is_case_sensitive else path.casefold() for path in paths]))


def _clashing(paths: Sequence[str]) -> set[int]:
    """Return the indexes of the paths that are another's as well, or a folder of another."""
    places: dict[str, list[int]] = {}
    for index, path in enumerate(paths):
        places.setdefault(path, []).append(index)
    folders = {folder for path in places for folder in folders_above(path)}
    return {
        index
        for path, indexes in places.items()
        if len(indexes) > 1 or path in folders
        for index in indexes
    }  # fmt: skip


def folders_above(path: str) -> list[str]:
    """Return the folders that a path is in, without the topmost."""
    parts = path.split("/")
    return ["/".join(parts[:end]) for end in range(1, len(parts)) if parts[end - 1]]


def renames(info: lt.torrent_info, repaired: Container[int], paths: Iterable[str]) -> dict[int, str]:
    """Return those of a torrent's paths that libtorrent has to be told, as it would take others."""
    files = info.layout()
    return {index: path for index, path in enumerate(paths) if index in repaired or path != files.file_path(index)}


def is_inside(path: str) -> bool:
    """Return whether a path stays in the folder that it begins in."""
    parts = PurePosixPath(path).parts
    return bool(parts) and not path.startswith("/") and ".." not in parts and "\0" not in path


def _unchanged(info: lt.torrent_info, files: lt.file_storage, named: Sequence[str]) -> dict[int, str]:
    """Return the paths as they stand in the metainfo (BEP 3, BEP 52), where libtorrent's are others.

    None of a torrent of more than some 250,000 files: libtorrent's Python decodes at most 2,000,000 tokens.
    """
    try:
        decoded: object = lt.bdecode(info.info_section())
    except RuntimeError:
        return {}
    paths = _paths_in(decoded)
    real = real_files(files)
    if [size for _, size in paths] != [files.file_size(index) for index in real]:
        return {}
    spelled = ((index, _text(parts)) for index, (parts, _) in zip(real, paths, strict=True))
    return {index: path for index, path in spelled if path is not None and path != named[index]}


def _paths_in(info: Any) -> list[tuple[list[bytes], int]]:
    """Return path and size of each file of an info dictionary that does not only pad, in libtorrent's order."""
    name = info.get(b"name.utf-8") or info.get(b"name")
    try:
        if b"length" in info:
            return [([name], info[b"length"])]
        if b"files" in info:
            real = (file for file in info[b"files"] if b"p" not in file.get(b"attr", b""))
            return [([name, *(file.get(b"path.utf-8") or file[b"path"])], file[b"length"]) for file in real]
        paths = list(_paths_of_tree(info[b"file tree"], [name]))
        return [([name], paths[0][1])] if [path for path, _ in paths] == [[name, name]] else paths
    except (AttributeError, KeyError, TypeError):
        return []


def _paths_of_tree(tree: Any, above: list[bytes]) -> Iterable[tuple[list[bytes], int]]:
    waiting = [(above, tree)]
    while waiting:
        path, node = waiting.pop()
        if b"" in node:
            yield path, node[b""][b"length"]
        else:
            waiting += [([*path, key], node[key]) for key in sorted(node, reverse=True)]


def _text(parts: Sequence[bytes]) -> str | None:
    """Return a path of these names; None where a file can't have one of them."""
    try:
        names = [part.decode() for part in parts]
    except (AttributeError, UnicodeDecodeError):
        return None
    for name, raw in zip(names, parts, strict=True):
        if name in ("", ".", "..") or "/" in name or "\0" in name or len(raw) > MAX_NAME_BYTES:
            return None
    return "/".join(names)


def first_clash(entries: Iterable[Entry], others: Iterable[Entry], may_share: bool) -> str:
    """Return the first path of `entries` that is in the way of others' files; empty where none is.

    With `may_share`, files of one path and one size are not in each other's way.
    """
    sizes = {entry.path: entry.size for entry in others}
    folders = {folder for path in sizes for folder in folders_above(path)}
    for path, size in entries:
        if path in folders or not sizes.keys().isdisjoint(folders_above(path)):
            return path
        if path in sizes and not (may_share and sizes[path] == size):
            return path
    return ""
