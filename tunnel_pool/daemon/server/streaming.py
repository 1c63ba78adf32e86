"""Bytes of a torrent's file in order, while it downloads: the pieces that its readers need next come first.

libtorrent is given a deadline for each piece of a reader's window (set_piece_deadline),
and tells the piece's bytes when it has them (read_piece_alert).
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import suppress
from typing import NamedTuple

import libtorrent as lt

from tunnel_pool.daemon.rules.queue import Activity
from tunnel_pool.daemon.storage.store import StoreError
from tunnel_pool.daemon.torrents.torrent import Torrent

AHEAD_BYTES = 8 << 20
MIN_AHEAD = 2  # the fewest pieces, however large
MAX_AHEAD = 512  # the most pieces, however small
ENDS_BYTES = 1 << 20  # how much of the file's end, where many formats have their index
STEP_MS = 50  # from a piece's deadline to the next one's
ENDS_MS = 500
TELL = int(lt.deadline_flags_t.alert_when_available)
LOOK_S = 0.05  # between two looks whether the reader is still there
ASK_AGAIN_S = 5.0  # libtorrent forgets deadlines when it checks files


class GoneError(Exception):
    """Says that nobody reads any more, or that nothing more comes."""


class Piece(NamedTuple):
    """Names the bytes that are wanted of a piece, from `skip` up to `stop`."""

    number: int
    skip: int
    stop: int


def pieces_of(start: int, end: int, piece_bytes: int) -> Iterator[Piece]:
    """Yield, in order, the pieces of the torrent's bytes from `start` up to `end`."""
    while start < end:
        number, skip = divmod(start, piece_bytes)
        stop = min(piece_bytes, skip + end - start)
        yield Piece(number, skip, stop)
        start += stop - skip


class Reader:
    def __init__(self, torrent: Torrent, index: int) -> None:
        """Prepare to read the file with this index; its metadata has to be known."""
        layout = torrent.layout
        assert layout is not None
        self._torrent = torrent
        self._handle = torrent.handle
        self._piece_bytes = layout.piece_length()
        self._offset = layout.file_offset(index)
        self.size = layout.file_size(index)

    def may_wait(self) -> bool:
        """Return whether what is missing comes by itself."""
        torrent = self._torrent
        return torrent.is_finished or (torrent.activity is Activity.RUNNING and not torrent.error)

    async def read(self, start: int, end: int, is_read: Callable[[], bool]) -> AsyncGenerator[bytes, None]:
        """Yield the bytes from `start` up to `end`, while `is_read`. Raises GoneError."""
        last = (self._offset + end - 1) // self._piece_bytes
        ahead = min(max(MIN_AHEAD, AHEAD_BYTES // self._piece_bytes), MAX_AHEAD)
        unasked = (self._offset + start) // self._piece_bytes
        waiting: dict[int, asyncio.Future[bytes]] = {}
        if start == 0:
            self._want_ends()
        try:
            for piece in pieces_of(self._offset + start, self._offset + end, self._piece_bytes):
                asked_up_to = min(piece.number + ahead, last + 1)
                for number in range(unasked, asked_up_to):
                    waiting[number] = self._torrent.waiting.piece(number)
                    self._set_deadline(number, (number - piece.number) * STEP_MS)
                unasked = asked_up_to
                data = await self._wait(piece.number, waiting[piece.number], is_read)
                del waiting[piece.number]
                yield data[piece.skip : piece.stop]
        finally:
            self._leave(waiting)

    def _set_deadline(self, number: int, milliseconds: int, flags: int = TELL) -> None:
        """Raises GoneError."""
        try:
            self._handle.set_piece_deadline(number, milliseconds, flags)
        except RuntimeError:
            raise GoneError("the torrent is gone") from None

    def _want_ends(self) -> None:
        """Ask for the end of the file, which players look at before its beginning. Raises GoneError."""
        if not self._torrent.is_finished and self.size:
            end = self._offset + self.size
            from_here = max(self._offset, end - min(ENDS_BYTES, MAX_AHEAD * self._piece_bytes))
            for piece in pieces_of(from_here, end, self._piece_bytes):
                # Of one that is waited for, the alert would be forgotten with the deadline before.
                if not self._torrent.waiting.is_for_piece(piece.number):
                    self._set_deadline(piece.number, ENDS_MS, 0)

    async def _wait(self, number: int, future: "asyncio.Future[bytes]", is_read: Callable[[], bool]) -> bytes:
        """Raises GoneError."""
        ask_again_s = time.monotonic() + ASK_AGAIN_S
        while not (await asyncio.wait([future], timeout=LOOK_S))[0]:
            if not is_read():
                raise GoneError("nobody reads any more")
            if not self.may_wait():
                raise GoneError("what is missing does not download now")
            if time.monotonic() >= ask_again_s:
                ask_again_s += ASK_AGAIN_S
                self._set_deadline(number, 0)
        try:
            return future.result()
        except (StoreError, OSError) as error:
            raise GoneError(str(error)) from None

    def _leave(self, waiting: dict[int, "asyncio.Future[bytes]"]) -> None:
        """Take urgency from pieces that nobody else waits for, as a reader that seeks must not wait for them."""
        for number, future in waiting.items():
            self._torrent.waiting.no_more(number, future)
            if not self._torrent.waiting.is_for_piece(number):
                with suppress(RuntimeError):
                    self._handle.reset_piece_deadline(number)
