"""Torrents that come to a folder for incomplete ones, and go to their own once they are whole."""

import logging
import time

from tunnel_pool.daemon.errors import RequestError
from tunnel_pool.daemon.torrents.library import Library
from tunnel_pool.daemon.torrents.moves import Moves
from tunnel_pool.daemon.torrents.torrent import Torrent

AGAIN_AFTER_S = 60.0  # a move that failed is tried again

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
        return now_s >= self._tried_s.get(torrent.record.number, float("-inf")) + AGAIN_AFTER_S

    async def _bring(self, torrent: Torrent) -> None:
        try:
            await self._moves.move([torrent], torrent.record.folder_when_done, True)
        except RequestError as error:
            logger.warning("A torrent that is whole stays in the folder for incomplete ones: %s", error)
