"""Looks how much room there is on the disks that torrents are downloaded to."""

import asyncio
import logging
import time
from collections.abc import Collection

from tunnel_pool.daemon.rules.room import Budget, FreeSpace
from tunnel_pool.daemon.storage import disk

GO_ON_BYTES = 16 << 20  # once libtorrent found no room, so much must be free beyond the minimum
AGAIN_S = 5.0  # and it is left alone for so long: not every file system tells what is free
QUOTA_AGAIN_S = 60.0  # none tells how much a quota leaves

logger = logging.getLogger(__name__)


class Room:
    """Watches the room on disks: call `look` every second."""

    def __init__(self, min_free_bytes: int) -> None:
        """`min_free_bytes` are to stay free on each disk."""
        self.min_free_bytes = min_free_bytes
        self._spaces: dict[str, FreeSpace] = {}  # by folder, as of the last look
        self._full: dict[str, float] = {}  # until when nothing is written where libtorrent found no room (monotonic)
        self._looking = False

    def state(self) -> object:
        """Return what the budget is made of, in steps of some megabytes."""
        spaces = [(folder, space.free_bytes >> 22) for folder, space in self._spaces.items()]
        return self.min_free_bytes, tuple(self._full), tuple(spaces)

    def knows(self, folders: Collection[str]) -> bool:
        """Return whether it is known how much room there is in each of these folders."""
        return self._spaces.keys() >= set(folders)

    def budget(self) -> Budget:
        return Budget(self._spaces, self._full, self.min_free_bytes)

    def found_none(self, folder: str, is_quota: bool = False) -> None:
        """Note that libtorrent could not write to the folder."""
        if folder not in self._full:
            logger.warning("A disk or a quota is full: what downloads to it waits until there is room")
        self._full[folder] = time.monotonic() + (QUOTA_AGAIN_S if is_quota else AGAIN_S)

    async def look(self, folders: Collection[str]) -> None:
        """Look at the disks of these folders. A disk that takes long to answer is not asked twice at a time."""
        if self._looking:
            return
        self._looking = True
        try:
            self._spaces = await asyncio.to_thread(disk.free_spaces, folders)
            for folder in list(self._full):
                if folder not in folders or self._has_room_again(folder):
                    del self._full[folder]
        finally:
            self._looking = False

    def _has_room_again(self, folder: str) -> bool:
        space = self._spaces.get(folder)
        has_room = space is not None and space.free_bytes >= self.min_free_bytes + GO_ON_BYTES
        return has_room and time.monotonic() >= self._full[folder]
