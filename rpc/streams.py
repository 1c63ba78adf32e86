"""Thin shells that move data frames over inherited descriptors on an asyncio loop.

Used by both sides: the main process runs Twisted on that same loop. A writer
never blocks and never grows beyond its limit: what does not fit is dropped
and counted, as UDP would.
"""

import asyncio
import contextlib
import fcntl
import logging
import os
from collections.abc import Callable

from tunnel_pool.rpc import data as dataframe
from tunnel_pool.rpc.errors import BrokenStreamError

PIPE_BYTES = 1 << 20  # /proc/sys/fs/pipe-max-size of an unchanged Linux
PENDING_BYTES = 1 << 20
READ_BYTES = 1 << 14  # about 11 datagrams, then the loop's other work has its turn


def enlarge_pipe(fd: int) -> None:
    """Ask for PIPE_BYTES; a system that gives less works too, dropping earlier."""
    set_size = getattr(fcntl, "F_SETPIPE_SZ", None)
    if set_size is not None:
        with contextlib.suppress(OSError):
            fcntl.fcntl(fd, set_size, PIPE_BYTES)


class DatagramWriter:
    """Sends datagrams into the data stream, in batches of one loop turn."""

    def __init__(self, fd: int, loop: asyncio.AbstractEventLoop, pending_bytes: int = PENDING_BYTES) -> None:
        os.set_blocking(fd, False)
        self._fd = fd
        self._loop = loop
        self._limit = pending_bytes
        self._frames: list[bytes] = []
        self._queued_bytes = 0
        self._flush_scheduled = False
        self._waiting = False
        self._closed = False
        self.dropped = 0
        self.sent = 0

    @property
    def pending_bytes(self) -> int:
        return self._queued_bytes

    def send(self, circuit_id: int, address: bytes, payload: bytes) -> bool:
        """Queue one datagram; False when it was dropped because the stream is full or closed."""
        if self._closed or self._queued_bytes >= self._limit:
            self.dropped += 1
            return False
        frame = dataframe.encode(circuit_id, address, payload)
        self._frames.append(frame)
        self._queued_bytes += len(frame)
        self.sent += 1
        if not self._flush_scheduled and not self._waiting:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)
        return True

    def _flush(self) -> None:
        self._flush_scheduled = False
        if self._closed or not self._frames:
            return
        batch = b"".join(self._frames)
        try:
            written = os.write(self._fd, batch)
        except BlockingIOError:
            written = 0
        except OSError:  # the reader is gone; the pool learns that from the exit stream
            self.close()
            return
        rest = batch[written:]
        self._frames = [rest] if rest else []
        self._queued_bytes = len(rest)
        self._wait_until_writable(bool(rest))

    def _wait_until_writable(self, wanted: bool) -> None:
        if wanted and not self._waiting:
            self._loop.add_writer(self._fd, self._flush)
        elif not wanted and self._waiting:
            self._loop.remove_writer(self._fd)
        self._waiting = wanted

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._wait_until_writable(False)
            self._frames.clear()
            self._queued_bytes = 0
            os.close(self._fd)


class DatagramReader:
    """Calls `on_datagram(circuit_id, address, payload)` for each frame that arrives.

    `on_lost(why)` is called once, at end of file or when the stream broke.
    """

    def __init__(
        self,
        fd: int,
        loop: asyncio.AbstractEventLoop,
        on_datagram: Callable[[int, bytes, bytes], object],
        on_lost: Callable[[str], object],
    ) -> None:
        os.set_blocking(fd, False)
        enlarge_pipe(fd)
        self._fd = fd
        self._loop = loop
        self._on_datagram = on_datagram
        self._on_lost = on_lost
        self._decoder = dataframe.DataDecoder()
        self._closed = False
        loop.add_reader(fd, self._readable)

    def _readable(self) -> None:
        try:
            data = os.read(self._fd, READ_BYTES)
            datagrams = self._decoder.feed(data)
        except BlockingIOError:
            return
        except (OSError, BrokenStreamError) as error:
            self._lose(str(error))
            return
        if not data:
            self._lose("end of file")
            return
        for datagram in datagrams:
            try:
                self._on_datagram(*datagram)
            except Exception:
                logging.getLogger(__name__).exception("A datagram could not be delivered")

    def _lose(self, why: str) -> None:
        self.close()
        self._on_lost(why)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
