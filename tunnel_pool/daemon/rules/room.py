"""Decides which downloads may write to a disk, so that a part of it stays free. Pure."""

from collections.abc import Container, Mapping
from typing import NamedTuple

# What a download may write until somebody looks at its disk again: two seconds at full speed.
AHEAD_BYTES = 512 << 20


class FreeSpace(NamedTuple):
    """Says how much is free on the disk of a folder; folders on one disk share it."""

    disk: int
    free_bytes: int


NOT_TOLD = FreeSpace(-1, 1 << 62)
"""A disk that does not say how much is free; libtorrent finds out."""


class Budget:
    """Shares out what may be written to disks, first come, first served."""

    def __init__(self, spaces: Mapping[str, FreeSpace], full: Container[str], min_free_bytes: int) -> None:
        """`spaces` are known by folder; where libtorrent found no room, the folder is in `full`."""
        self._spaces = spaces
        self._full = full
        self._left = {space.disk: space.free_bytes - min_free_bytes for space in spaces.values()}

    def is_tight(self, folder: str) -> bool:
        """Return whether a download could fill the disk of the folder before anybody looks again."""
        space = self._spaces.get(folder)
        return space is None or self._left[space.disk] < AHEAD_BYTES

    def allot(self, folder: str, left_bytes: int, is_waiting: bool) -> bool:
        """Return whether a download that lacks so many bytes may write to the folder now.

        One that fits always may; one that does not is stopped before it can fill the disk, and once it is waiting
        goes on only when there is twice as much room, so that it does not start and stop all the time.
        """
        if not left_bytes:
            return True  # nothing is known to be missing: its metadata is not there, or its files are checked
        if folder in self._full:
            return False
        if (space := self._spaces.get(folder)) is None:
            return True  # nobody has looked yet, and will within a moment
        if min(left_bytes, 2 * AHEAD_BYTES if is_waiting else AHEAD_BYTES) > self._left[space.disk]:
            return False
        self._left[space.disk] -= min(left_bytes, AHEAD_BYTES)
        return True
