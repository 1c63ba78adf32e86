"""Files and folders of a torrent that get other names."""

import asyncio
import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from tunnel_pool.daemon.changes.edits import Rename
from tunnel_pool.daemon.changes.moves import NOT_ITS_OWN, rename_file
from tunnel_pool.daemon.errors import RequestError
from tunnel_pool.daemon.rules.renames import clashes, renames_of
from tunnel_pool.daemon.storage import disk
from tunnel_pool.daemon.torrents.library import Library
from tunnel_pool.daemon.torrents.torrent import Torrent
from tunnel_pool.torrent.entries import Entry


class Renamed(NamedTuple):
    """Says what a renaming is to make of a torrent's files."""

    files: list[tuple[int, str]]  # their indexes, and their new paths in its folder
    before: list[str]  # the paths of all its files
    title: str  # its new title; empty where that stays


async def check_rename(library: Library, torrent: Torrent, edit: Rename) -> Renamed:
    """Return what an edit renames, as libtransmission's tr_torrentRenamePath does. Raises RequestError."""
    path, name, layout = edit.path, edit.name, torrent.layout
    if layout is None:
        raise RequestError("the torrent's files are not known yet")
    if not name or "/" in name or name in (".", ".."):
        raise RequestError("that can't be the name of a file")
    if torrent.record.moving_to or not library.records.is_here(torrent):
        raise RequestError("the torrent is being moved")
    if torrent.record.taking_over:
        raise RequestError(NOT_ITS_OWN)
    await library.paths.check_own(torrent)
    indexes = torrent.file_indexes()
    paths = dict(zip(indexes, torrent.file_paths(indexes), strict=True))
    renames = renames_of(paths, path, name)
    if not renames:
        raise RequestError("the torrent has no such file or folder")
    new = [Entry(new, layout.file_size(index)) for index, new in renames if new != paths[index]]
    folder = torrent.record.folder
    if clashes(paths, dict(renames)) or await asyncio.to_thread(_is_any_there, folder, new):
        raise RequestError("cannot rename: there is something of that name")
    await library.paths.check(torrent.record, folder, new, may_share=False)
    is_whole = "/" not in path and path == torrent.record.name  # its title goes with its folder while they are one
    return Renamed(renames, list(paths.values()), name if is_whole else "")


async def rename(library: Library, torrent: Torrent, renamed: Renamed) -> None:
    """Do it, and keep it once libtorrent has done it. Raises RequestError and StoreError."""
    for index, path in renamed.files:
        await rename_file(torrent, index, path)
    await asyncio.to_thread(_leave_folders, torrent.record.folder, renamed.before)
    torrent.update(torrent.handle.status())
    await library.records.put_with_resume(torrent, name=renamed.title or torrent.record.name)
    library.paths.note(torrent)


def _is_any_there(folder: str, entries: Iterable[Entry]) -> bool:
    return any(os.path.lexists(os.path.join(folder, entry.path)) for entry in entries)


def _leave_folders(folder: str, names: Iterable[str]) -> None:
    """Remove the folders that files were in, where nothing is left in them."""
    for name in names:
        disk.remove_empty_folders(Path(folder) / name, Path(folder))
