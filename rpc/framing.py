"""Frames of the control stream. Pure.

    0      2        3      4            8          12
    +------+--------+------+------------+-----------+----------------+
    | "TP" | version| kind | request id | length    | protobuf       |
    +------+--------+------+------------+-----------+----------------+
      2       1       1      4            4           `length` bytes

Integers are big endian. `length` is checked against MAX_BODY_BYTES as soon as
the header is complete, before any of the body is kept. Events carry request
id 0.
"""

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

from tunnel_pool.rpc.errors import BrokenStreamError

MAGIC = b"TP"
VERSION = 1
HEADER = struct.Struct("!2sBBII")
MAX_BODY_BYTES = 1 << 20


class Kind(IntEnum):
    REQUEST = 1
    REPLY = 2
    ERROR = 3
    EVENT = 4


KINDS = frozenset(Kind)


class Frame(NamedTuple):
    kind: Kind
    request_id: int
    body: bytes


def encode(kind: Kind, request_id: int, body: bytes) -> bytes:
    """Return one frame. Raises ValueError for a body over MAX_BODY_BYTES: ours, so a bug."""
    if len(body) > MAX_BODY_BYTES:
        raise ValueError(f"control message of {len(body)} bytes, the limit is {MAX_BODY_BYTES}")
    return HEADER.pack(MAGIC, VERSION, kind, request_id, len(body)) + body


class FrameDecoder:
    """Cuts a byte stream into frames; `feed` may get any piece of it.

    Holds at most one frame and what was fed last. After BrokenStreamError
    every further feed raises it again.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._broken: str | None = None

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yield the frames that `data` completes; raises BrokenStreamError."""
        self._raise_if_broken()
        self._buffer += data
        offset = 0
        try:
            while len(self._buffer) - offset >= HEADER.size:
                kind, request_id, length = self._header(offset)
                end = offset + HEADER.size + length
                if len(self._buffer) < end:
                    break
                body = bytes(self._buffer[offset + HEADER.size : end])
                offset = end
                yield Frame(kind, request_id, body)
        finally:
            del self._buffer[:offset]

    def _header(self, offset: int) -> tuple[Kind, int, int]:
        magic, version, kind, request_id, length = HEADER.unpack_from(self._buffer, offset)
        if magic != MAGIC:
            self._break(f"not a control frame (starts with {magic.hex()})")
        if version != VERSION:
            self._break(f"control frame version {version}, this side speaks {VERSION}")
        if kind not in KINDS:
            self._break(f"control frame of unknown kind {kind}")
        if length > MAX_BODY_BYTES:
            self._break(f"control frame of {length} bytes, the limit is {MAX_BODY_BYTES}")
        return Kind(kind), request_id, length

    def _break(self, why: str) -> None:
        self._broken = why
        self._raise_if_broken()

    def _raise_if_broken(self) -> None:
        if self._broken is not None:
            raise BrokenStreamError(self._broken)
