"""Torrents that come to a folder for incomplete ones, and go to their own once they are whole."""

import asyncio
import logging
import os
import shutil
import time

from tunnel_pool.daemon.changes.moves import Moves
from tunnel_pool.daemon.errors import RequestError
from tunnel_pool.daemon.torrents.library import Library
from tunnel_pool.daemon.torrents.torrent import Torrent

AGAIN_AFTER_S = 60.0  # a move that failed is tried again
ROOM_BYTES = 64 << 20  # that are left on the disk of the torrent's own folder

logger = logging.getLogger(__name__)


class Incomplete:
    """Moves what is whole: call `look` once a second."""

    def __init__(self, library: Library, moves: Moves) -> None:
        self._library = library
        self._moves = moves
        self._tried_s: dict[int, float] = {}  # monotonic, by the torrent's number

    def look(self) -> None:
        now_s = time.monotonic()
        for torrent in self._library.torrents.values():
            if torrent.record.folder_when_done and self._may_go(torrent, now_s):
                self._tried_s[torrent.record.number] = now_s
                self._library.background.spawn(self._bring(torrent))

    def _may_go(self, torrent: Torrent, now_s: float) -> bool:
        if not torrent.is_finished or torrent.is_moving or torrent.is_missing or torrent.is_between_sessions:
            return False
        if self._library.places.is_gone(torrent.record.folder_when_done):
            return False
        return now_s >= self._tried_s.get(torrent.record.number, float("-inf")) + AGAIN_AFTER_S

    async def _bring(self, torrent: Torrent) -> None:
        record = torrent.record
        size = torrent.summary.total_done
        if not await asyncio.to_thread(_has_room, record.folder, record.folder_when_done, size):
            self._tell(torrent, "there is too little room where it is to go")
            return
        try:
            await self._moves.bring_home(torrent)
        except RequestError as error:
            self._tell(torrent, str(error))
        else:
            torrent.notify("")

    def _tell(self, torrent: Torrent, why: str) -> None:
        torrent.notify(f"it stays in the folder for incomplete ones: {why}")
        logger.warning("A torrent that is whole stays in the folder for incomplete ones; clients show why")


def _has_room(before: str, after: str, size: int) -> bool:
    """Return whether so many bytes can go from one folder to another, which may not be there yet."""
    while not os.path.isdir(after) and after != os.path.dirname(after):
        after = os.path.dirname(after)
    try:
        is_same_disk = os.stat(before).st_dev == os.stat(after).st_dev
        return is_same_disk or shutil.disk_usage(after).free >= size + ROOM_BYTES
    except OSError:
        return True  # the move says why it fails
