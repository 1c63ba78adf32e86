"""Frames of the exit stream: one request to end, one report of how it ended. Pure.

    0      2      3         4
    +------+------+---------+------------------+
    | "TX" | kind | textlen | text (UTF-8)     |
    +------+------+---------+------------------+

REQUEST's text is the reason, for the log. A report's kind is how the child
ended. End of file without a report means that the other side died.
"""

import struct
from enum import IntEnum
from typing import NamedTuple

from tunnel_pool.rpc.errors import BrokenStreamError

MAGIC = b"TX"
HEADER = struct.Struct("!2sBB")
MAX_TEXT_BYTES = 255


class ExitKind(IntEnum):
    REQUEST = 1  # main to child: end now
    ENDED = 2  # child to main: ended in order
    STUCK = 3  # its loop did not come back in time, so it ended without it


EXIT_KINDS = frozenset(ExitKind)

# Exit codes of a child, for whoever only sees the process: sysexits.h where it has one.
EXIT_CODES = {ExitKind.ENDED: 0, ExitKind.STUCK: 75}


class ExitFrame(NamedTuple):
    kind: ExitKind
    text: str


def encode(kind: ExitKind, text: str = "") -> bytes:
    """Return one frame; the text is cut to MAX_TEXT_BYTES at a character's edge."""
    raw = text.encode(errors="replace")[:MAX_TEXT_BYTES].decode(errors="ignore").encode()
    return HEADER.pack(MAGIC, kind, len(raw)) + raw


class ExitDecoder:
    """Cuts the exit stream into frames; the text may be any bytes, badly encoded ones are replaced."""

    def __init__(self) -> None:
        self._buffer = b""

    def feed(self, data: bytes) -> list[ExitFrame]:
        """Return the frames that `data` completes; raises BrokenStreamError, then and ever after."""
        self._buffer += data
        frames = []
        while len(self._buffer) >= HEADER.size:
            magic, kind, text_bytes = HEADER.unpack_from(self._buffer)
            if magic != MAGIC or kind not in EXIT_KINDS:
                raise BrokenStreamError(f"not an exit frame (starts with {self._buffer[:4].hex()})")
            end = HEADER.size + text_bytes
            if len(self._buffer) < end:
                break
            frames.append(ExitFrame(ExitKind(kind), self._buffer[HEADER.size : end].decode(errors="replace")))
            self._buffer = self._buffer[end:]
        return frames
