"""Which folders have room for what is downloaded to them."""

import asyncio
import logging
from collections.abc import Mapping

from tunnel_pool.daemon.storage import disk

AHEAD_S = 3.0  # seconds of download at the present rate that must fit: until the next look, and while it is written
ROOM_TO_GO_ON = 1.5  # how many times the minimum must be free before paused downloads go on
LEAST_TO_GO_ON = 16 << 20  # bytes, also where --min-free asks for none

logger = logging.getLogger(__name__)


class Room:
    """Watches the room on disks: call `look` every second."""

    def __init__(self, min_free_bytes: int) -> None:
        """`min_free_bytes` are to stay free on each disk."""
        self.min_free_bytes = min_free_bytes
        self._full: set[str] = set()
        self._looking = False

    @property
    def full(self) -> frozenset[str]:
        """Return the folders without room, as far as is known."""
        return frozenset(self._full)

    def is_in(self, folder: str) -> bool:
        """Return whether there is room in the folder, as far as is known."""
        return folder not in self._full

    def found_none(self, folder: str) -> None:
        """Note that libtorrent could not write to the folder."""
        self._say_full(folder)

    async def look(self, rates: Mapping[str, int]) -> None:
        """Look at these folders, into each of which so many bytes a second come.

        A disk that takes long to answer is not asked twice at a time.
        """
        if self._looking:
            return
        self._looking = True
        try:
            self._full &= rates.keys()
            for folder, bytes_per_s in rates.items():
                try:
                    free = await asyncio.to_thread(disk.free_bytes, folder)
                except OSError:
                    continue
                self._judge(folder, free, bytes_per_s)
        finally:
            self._looking = False

    def _judge(self, folder: str, free_bytes: int, bytes_per_s: int) -> None:
        if folder in self._full:
            if free_bytes >= max(ROOM_TO_GO_ON * self.min_free_bytes, LEAST_TO_GO_ON):
                logger.info("There is room on the disk again: what downloads to it goes on")
                self._full.discard(folder)
        elif free_bytes < self.min_free_bytes + AHEAD_S * bytes_per_s:
            self._say_full(folder)

    def _say_full(self, folder: str) -> None:
        if folder not in self._full:
            logger.warning("A disk is nearly full: what downloads to it waits until there is room")
            self._full.add(folder)
