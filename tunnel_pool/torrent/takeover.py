"""Files that are there already when a torrent comes: which of them can be its own.

What can't be is left alone. What may be, by its size, is checked before anything is written: where nothing of it is
right, it is somebody else's.
"""

import contextlib
import os
import stat
from collections.abc import Iterable
from pathlib import Path

from tunnel_pool.torrent.entries import Entry, Part


def look_at(places: Iterable[Entry]) -> tuple[bool, str]:
    """Return whether a file is at one of these places, and the first of them that is not the torrent's for certain.

    Where a file of a torrent can't be: at something that is no file, below a file, and at one that is longer.
    """
    is_any_there = False
    are_folders: dict[str, bool] = {}
    for path, size in places:
        folder = os.path.dirname(path)
        while folder not in are_folders:
            are_folders[folder] = not os.path.lexists(folder) or os.path.isdir(folder)
            if not are_folders[folder]:
                return is_any_there, folder
            folder = os.path.dirname(folder)
        try:
            found = os.stat(path)
        except OSError:
            if os.path.lexists(path):  # a link to nothing, or to what may not be seen
                return is_any_there, path
            continue
        if not stat.S_ISREG(found.st_mode) or found.st_size > size:
            return is_any_there, path
        is_any_there = is_any_there or found.st_size > 0
    return is_any_there, ""


def stranger(parts: Iterable[Part]) -> str:
    """Return the path of a file that is there and has nothing of the torrent; empty if there is none."""
    return next((part.entry.path for part in parts if not part.has_any and size_of(part.entry.path)), "")


def size_of(path: str) -> int | None:
    """Return how long a file is; None when it can't be found, or its disk can't be read."""
    try:
        return os.stat(path).st_size
    except OSError:
        return None


def bring(source: Path, target: Path) -> None:
    """Move what a run that was killed has left of a torrent to where the rest of it is; nothing there is replaced."""
    for path in source.rglob("*"):
        place = target / path.relative_to(source)
        with contextlib.suppress(OSError):
            if path.is_file() and not path.is_symlink():
                place.parent.mkdir(parents=True, exist_ok=True)
                os.link(path, place)
