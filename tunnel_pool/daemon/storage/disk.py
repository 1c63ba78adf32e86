"""The daemon's own work on files: free space, files that are given up, moves that were cut short."""

import contextlib
import errno
import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import libtorrent as lt

from tunnel_pool.daemon.rules.room import NOT_TOLD, FreeSpace
from tunnel_pool.daemon.storage.store import Deletion
from tunnel_pool.torrent.entries import Entry, entries_in

COMPARED_BYTES = 1 << 16
MOST_LEFT = 1000  # files of a removed torrent that are remembered; one with more is checked like a stranger's
CLOSED_WITHIN_S = 15.0  # libtorrent writes to the files of a removed torrent for no longer
Identity = tuple[int, int]
"""The device and the inode of a file or folder."""


def free_spaces(folders: Iterable[str]) -> dict[str, FreeSpace]:
    """Return what is free on the disks that these folders are, or would be, on."""
    return {folder: _free_space(Path(folder)) for folder in folders}


def _free_space(path: Path) -> FreeSpace:
    try:
        while not path.exists() and path != path.parent:
            path = path.parent
        return FreeSpace(path.stat().st_dev, shutil.disk_usage(path).free)
    except OSError:
        return NOT_TOLD


def files_in(folder: str, names: Iterable[str]) -> list[Deletion]:
    """Return the files of a torrent in its folder."""
    return [Deletion(os.path.join(folder, name), folder) for name in names if is_inside(folder, name)]


def names_of(parameters: lt.add_torrent_params) -> list[str]:
    """Return a torrent's files, as they were renamed."""
    if parameters.ti is None:
        return []
    return [*(entry.path for _, entry in entries_in(parameters)), parts_name(parameters.info_hashes)]


def parts_name(infohashes: lt.info_hash_t) -> str:
    """Return the name of the file where libtorrent keeps pieces that wanted files share with unwanted ones."""
    return f".{infohashes.get_best()}.parts"


def has_parts(folder: str, parameters: lt.add_torrent_params) -> bool:
    """Return whether a torrent has a file of such pieces in this folder."""
    return (Path(folder) / parts_name(parameters.info_hashes)).exists()


def is_inside(folder: str, name: str) -> bool:
    """Return whether a name in a torrent stays in its folder."""
    path = os.path.normpath(os.path.join(folder, name))
    return path != os.path.normpath(folder) and Path(path).is_relative_to(os.path.normpath(folder))


def is_case_sensitive(folder: str) -> bool:
    """Return whether two files whose names differ in case alone can be in a folder, which may not be there yet."""
    while not os.path.isdir(folder) and folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)
    try:
        with tempfile.NamedTemporaryFile(prefix=".case-", dir=folder) as probe:
            name = os.path.basename(probe.name)
            return not os.path.lexists(os.path.join(folder, name.upper()))
    except OSError:
        return True  # nothing is written where nothing can be


Left = dict[str, float]
"""The files that a torrent has left: by device and inode, or by the path of one that may still come, when the torrent
was seen there last (since the epoch)."""


def left_at(places: Iterable[Entry], before: Left, *, may_come: bool = False) -> Left:
    """Return which files a torrent leaves: those that are at these places now, and others that it had left before.

    With `may_come`, libtorrent has not closed the torrent yet, and may create the files that are not there.
    """
    now_s = time.time()
    found = {_key_of(each): now_s for _, each in _found_at(places)}
    if may_come:
        there = {path for path, _ in _found_at(places)}
        found = {path: now_s for path, _ in places if path not in there} | found  # of too many, the last are kept
    else:
        closed = {path for path, _ in places}
        before = {key: at_s for key, at_s in before.items() if key not in closed}
    kept = {**{key: at_s for key, at_s in before.items() if key not in found}, **found}
    return dict(list(kept.items())[-MOST_LEFT:])


def are_left(places: Iterable[Entry], left: Left) -> bool:
    """Return whether all files at these places are those, untouched: a new file may have the inode of one that is gone.

    What an archive holds comes with an old time of modification; nobody chooses the time of a file's last change.
    """
    never_s = float("-inf")
    return all(
        max(found.st_mtime, found.st_ctime)
        <= max(left.get(_key_of(found), never_s), left.get(path, never_s)) + CLOSED_WITHIN_S
        for path, found in _found_at(places)
    )


def strangers(paths: Iterable[str], left: Left) -> Iterator[str]:
    """Yield those of these paths at which there is something that the torrent has not left."""
    return (path for path in paths if not are_left([Entry(path, 0)], left))


def _key_of(found: os.stat_result) -> str:
    return f"{found.st_dev}:{found.st_ino}"


def _found_at(places: Iterable[Entry]) -> Iterator[tuple[str, os.stat_result]]:
    for path, _ in places:
        with contextlib.suppress(OSError):
            if (found := os.stat(path)).st_size:
                yield path, found


def without(deletions: Iterable[Deletion], kept: Iterable[Deletion]) -> list[Deletion]:
    """Return the deletions without those whose path resolves to a file that is kept."""
    others = {os.path.realpath(file.path) for file in kept}
    return [deletion for deletion in deletions if os.path.realpath(deletion.path) not in others]


def delete(deletions: Iterable[Deletion]) -> list[Deletion]:
    """Delete these files, and folders that are empty then; returns those that are gone."""
    gone = []
    for deletion in deletions:
        path = Path(deletion.path)
        try:
            path.unlink(missing_ok=True)
        except (IsADirectoryError, NotADirectoryError):
            pass  # the file is not ours
        except OSError:
            continue
        gone.append(deletion)
        remove_empty_folders(path, Path(deletion.root))
    return gone


def remove_empty_folders(path: Path, root: Path) -> None:
    """Remove empty folders above a file that is gone, up to `root`, which stays."""
    with contextlib.suppress(OSError):  # the folder is not empty, or not there
        for parent in path.parents:
            if parent == root:
                break
            parent.rmdir()


def finish_move(names: Iterable[str], source: str, target: str) -> None:
    """Finish a move that was cut short by `kill -9`: what is still in `source` goes to `target`.

    A file that is still in `source` is whole there: it is deleted only when its copy is. What is in its way in `target`
    is replaced only if it is the beginning of a copy. Raises OSError.
    """
    left = [name for name in names if is_inside(source, name) and (Path(source) / name).is_file()]
    for name in left:
        if not _may_arrive(Path(source) / name, Path(target) / name):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(Path(target) / name))
    for name in left:
        destination = Path(target) / name
        destination.parent.mkdir(parents=True, exist_ok=True)
        arriving = destination.with_name(f".{destination.name}.moving")
        shutil.move(Path(source) / name, arriving)
        os.replace(arriving, destination)
        remove_empty_folders(Path(source) / name, Path(source))


def undo_move(names: Iterable[str], source: str, target: str) -> None:
    """Leave nothing of a torrent in `target` after a move there that failed, as libtorrent leaves what it has copied.

    A copy of what is still in `source` is deleted, what is in `target` alone goes back, and what is neither stays.
    Raises OSError.
    """
    for name in names:
        copy, own = Path(target) / name, Path(source) / name
        if not (is_inside(target, name) and copy.is_file()) or copy.is_symlink():
            continue
        if not os.path.lexists(own):
            own.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(copy, own)
        elif _may_arrive(own, copy):
            copy.unlink()
        remove_empty_folders(copy, Path(target))


def is_in_the_way(file: Deletion, source: str, target: str) -> bool:
    """Return whether a file is in the target of a move that has not ended, and is no copy of the one in the source."""
    if not target or file.root != target or source == target:
        return False
    path = Path(source) / os.path.relpath(file.path, target)
    try:
        return path.is_file() and not _may_arrive(path, Path(file.path))
    except OSError:
        return True


def _may_arrive(path: Path, destination: Path) -> bool:
    """Return whether nothing is at the destination, or a copy of the file that was cut short: what is missing is zeros.

    libtorrent gives a copy its whole length first. Raises OSError.
    """
    if not os.path.lexists(destination):
        return True
    if destination.is_symlink() or not destination.is_file():
        return False
    with path.open("rb") as whole, destination.open("rb") as begun:
        while piece := begun.read(COMPARED_BYTES):
            there = whole.read(len(piece))
            if len(there) < len(piece) or not there.startswith(piece.rstrip(b"\0")):
                return False
    return True
