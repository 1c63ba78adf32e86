"""A request to a program of the owner's on this machine or its network, when a torrent was downloaded."""

import asyncio
import logging
import time
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import aiohttp

from tunnel_pool.daemon.private_urls import address_of, is_private
from tunnel_pool.daemon.torrents.torrent import Torrent

TIMEOUT_S = 10.0
AGAIN_AFTER_S = (5.0, 60.0)
MAX_WAITING = 1000

logger = logging.getLogger(__name__)


def checked_url(text: str) -> str:
    """Return the URL, if it names an address of this machine or of a private network. Raises ValueError.

    Names are not looked up, and nothing goes to the internet, which would hear from this machine what was downloaded.
    """
    parts = urlsplit(text)
    host, port = parts.hostname or "", parts.port
    if parts.scheme not in ("http", "https") or not host or port == 0 or "@" in parts.netloc:
        raise ValueError("not like http://192.168.1.5:8123/api/webhook/done")
    address = address_of(host)
    if address is None:
        raise ValueError("it has to name an IP address, as names are not looked up")
    if not is_private(address):
        raise ValueError("it is not in a private network: others would see what you have downloaded")
    place = f"[{address}]" if address.version == 6 else str(address)
    return urlunsplit(parts._replace(netloc=place if port is None else f"{place}:{port}"))


def told_of(torrent: Torrent, now_s: float) -> dict[str, Any]:
    """Return what is told of a torrent that was downloaded."""
    record = torrent.record
    return {
        "event": "done",
        "time_s": round(now_s),
        "infohash": record.infohash,
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

    def __init__(self, url: str) -> None:
        self._url = url
        self._waiting: asyncio.Queue[dict[str, Any]] = asyncio.Queue(MAX_WAITING)
        self._task = asyncio.get_running_loop().create_task(self._post_all())

    def run_for(self, torrent: Torrent) -> None:
        try:
            self._waiting.put_nowait(told_of(torrent, time.time()))
        except asyncio.QueueFull:
            logger.error("--webhook-done does not answer, and is not told of a torrent")

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _post_all(self) -> None:
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        async with aiohttp.ClientSession(timeout=timeout, trust_env=False) as http:
            while True:
                told = await self._waiting.get()
                for wait_s in (*AGAIN_AFTER_S, 0.0):
                    if not (why := await self._post(http, told)):
                        break
                    logger.warning("--webhook-done was not told of a torrent: %s", why)
                    await asyncio.sleep(wait_s)

    async def _post(self, http: aiohttp.ClientSession, told: dict[str, Any]) -> str:
        """Return why it failed, nothing if it did not. A redirection is not followed: it could lead anywhere."""
        try:
            async with http.post(self._url, json=told, allow_redirects=False) as response:
                return "" if response.status < 300 else f"it answers {response.status}"
        except TimeoutError:
            return f"no answer within {TIMEOUT_S:.0f} s"
        except Exception as error:  # what else aiohttp may raise must not end what waits
            return type(error).__name__
