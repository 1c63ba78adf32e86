"""Futures of those who wait for libtorrent's answers about a torrent."""

import asyncio
from collections import deque
from typing import Any

from tunnel_pool.daemon.storage.store import StoreError


class Waiting:
    """Holds a future for each question to libtorrent; its alerts answer them."""

    __slots__ = ("_arrival", "_reading", "_resuming", "is_writing", "moved", "renamed")

    def __init__(self) -> None:
        self.moved: asyncio.Future[str] | None = None
        self.renamed: asyncio.Future[None] | None = None
        self.is_writing = False  # whether some of what libtorrent says is there has yet to be written to its files
        self._arrival: asyncio.Event | None = None  # set once its files have their places; None where none is awaited
        self._resuming: deque[asyncio.Future[bytes]] = deque()  # who waits for resume data, in order
        self._reading: dict[int, set[asyncio.Future[bytes]]] = {}  # who waits for a piece's bytes

    def expect_arrival(self) -> None:
        """Have others wait from now on until the torrent's files, which are just known, have their places."""
        if self._arrival is None:
            self._arrival = asyncio.Event()

    def arrived(self) -> None:
        """Let those go on: the files have their places, or can't have them."""
        if self._arrival is not None:
            self._arrival.set()
            self._arrival = None

    async def arrival(self) -> None:
        """Wait for the files' places where these are on their way."""
        if self._arrival is not None:
            await self._arrival.wait()

    def move(self) -> "asyncio.Future[str]":
        """Return the future of a move of the files, or of its error (OSError)."""
        self.moved = asyncio.get_running_loop().create_future()
        return self.moved

    def rename(self) -> "asyncio.Future[None]":
        """Return the future of a renamed file, or of its error (OSError)."""
        self.renamed = asyncio.get_running_loop().create_future()
        return self.renamed

    def resume_data(self) -> "asyncio.Future[bytes]":
        """Return the future of resume data that libtorrent was asked for just now."""
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._resuming.append(future)
        return future

    def next_resuming(self) -> "asyncio.Future[bytes] | None":
        """Return the future that the next answer about resume data is for."""
        return self._resuming.popleft() if self._resuming else None

    def piece(self, number: int) -> "asyncio.Future[bytes]":
        """Return a future of the piece's bytes, or its error (OSError, StoreError); `no_more` ends it."""
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._reading.setdefault(number, set()).add(future)
        return future

    def no_more(self, number: int, future: "asyncio.Future[bytes]") -> None:
        """Forget a future that `piece` gave."""
        future.cancel()
        waiting = self._reading.get(number, set())
        waiting.discard(future)
        if not waiting:
            self._reading.pop(number, None)

    def is_for_piece(self, number: int) -> bool:
        return any(not future.done() for future in self._reading.get(number, ()))

    def take_for_piece(self, number: int) -> list["asyncio.Future[bytes]"]:
        """Return the futures that still wait for the piece."""
        return [future for future in self._reading.pop(number, ()) if not future.done()]

    def give_up(self, why: str) -> None:
        """Fail everything that was asked of libtorrent, as no answer comes any more."""
        readers = [future for waiting in self._reading.values() for future in waiting]
        asked: list[asyncio.Future[Any] | None] = [*self._resuming, *readers, self.moved, self.renamed]
        for future in asked:
            if future is not None and not future.done():
                future.set_exception(StoreError(why))
                future.exception()  # keeps asyncio from complaining when nobody waits
        self._resuming.clear()
        self._reading.clear()
