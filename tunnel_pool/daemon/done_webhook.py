"""A request to a program or a service of the owner's choice, when a torrent was downloaded."""

import asyncio
import logging
import time
from collections.abc import Callable

from tunnel_pool.daemon.outside.client import WebClient
from tunnel_pool.daemon.outside.urls import OutsideError, Place
from tunnel_pool.daemon.torrents.view import TorrentView

AGAIN_AFTER_S = (5.0, 60.0)
MAX_WAITING = 1000

logger = logging.getLogger(__name__)


def told_of(torrent: TorrentView, now_s: float) -> dict[str, object]:
    """Return what is told of a torrent that was downloaded."""
    record = torrent.record
    return {
        "event": "done",
        "time_s": round(now_s),
        "infohash": torrent.hash_string,
        "number": record.number,
        "name": record.name,
        "folder": record.folder,
        "labels": record.labels,
        "hops": record.hops,
        "size_bytes": torrent.summary.total_wanted,
        "downloaded_bytes": torrent.totals.downloaded,
    }


class DoneWebhook:
    """Posts JSON to a URL for each torrent, one after another, and tries again twice; `close` forgets what waits."""

    def __init__(self, place: Place, client: WebClient, hops: Callable[[], int]) -> None:
        """`hops`: over how many hops it is told, unless it is in a private network."""
        self._place = place
        self._client = client
        self._hops = hops
        self._waiting: asyncio.Queue[dict[str, object]] = asyncio.Queue(MAX_WAITING)
        self._task = asyncio.get_running_loop().create_task(self._post_all())

    def run_for(self, torrent: TorrentView) -> None:
        try:
            self._waiting.put_nowait(told_of(torrent, time.time()))
        except asyncio.QueueFull:
            logger.error("--webhook-done does not answer, and is not told of a torrent")

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _post_all(self) -> None:
        while True:
            told = await self._waiting.get()
            for wait_s in (*AGAIN_AFTER_S, 0.0):
                if not (why := await self._post(told)):
                    break
                then = f"it is tried again in {wait_s:.0f} s" if wait_s else "it is given up"
                logger.warning("--webhook-done was not told of torrent %d: %s; %s", told["number"], why, then)
                await asyncio.sleep(wait_s)

    async def _post(self, told: dict[str, object]) -> str:
        """Return why it failed, nothing if it did not. A redirection is not followed: it could lead anywhere."""
        try:
            async with self._client.session(self._hops()) as session:
                await session.post(self._place, told)
        except OutsideError as error:
            return str(error)
        except Exception as error:  # what else may be raised must not end what waits
            return type(error).__name__
        return ""
