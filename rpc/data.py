"""Frames of the data stream: one tunnelled datagram each, no protobuf. Pure.

    0        2      3         4            8
    +--------+------+---------+------------+---------+------------------+
    | length | kind | addrlen | circuit id | address | payload          |
    +--------+------+---------+------------+---------+------------------+
      2        1      1         4            addrlen   length - addrlen

Integers are big endian; `length` counts address and payload. The address is
where the datagram goes to (main to child) or came from (child to main), as
ATYP, ADDR, PORT of RFC 1928 section 5; opaque in this package.
"""

import struct
from typing import NamedTuple

from tunnel_pool.rpc.errors import BrokenStreamError

HEADER = struct.Struct("!HBBI")
KIND_DATAGRAM = 1
MIN_ADDRESS_BYTES = 4
MAX_ADDRESS_BYTES = 255
MAX_LENGTH = 0xFFFF

_pack_header = HEADER.pack
_unpack_header = HEADER.unpack_from
_HEADER_BYTES = HEADER.size


class Datagram(NamedTuple):
    circuit_id: int
    address: bytes
    payload: bytes


def encode(circuit_id: int, address: bytes, payload: bytes) -> bytes:
    """Return one frame. Raises ValueError when address or payload exceed what the header can say."""
    length = len(address) + len(payload)
    if length > MAX_LENGTH or not MIN_ADDRESS_BYTES <= len(address) <= MAX_ADDRESS_BYTES:
        raise ValueError(f"datagram of {len(payload)} bytes with an address of {len(address)}")
    return _pack_header(length, KIND_DATAGRAM, len(address), circuit_id) + address + payload


class DataDecoder:
    """Cuts the data stream into datagrams; holds at most one unfinished frame (64 KiB)."""

    def __init__(self) -> None:
        self._rest = b""
        self._broken: str | None = None

    def feed(self, data: bytes) -> list[Datagram]:
        """Return the datagrams that `data` completes; raises BrokenStreamError, then and ever after.

        Datagrams before the broken frame in the same piece are lost with it.
        """
        if self._broken is not None:
            raise BrokenStreamError(self._broken)
        buffer = self._rest + data if self._rest else data
        datagrams = []
        offset, available = 0, len(buffer)
        while available - offset >= _HEADER_BYTES:
            length, kind, address_bytes, circuit_id = _unpack_header(buffer, offset)
            if kind != KIND_DATAGRAM or address_bytes < MIN_ADDRESS_BYTES or address_bytes > length:
                self._broken = f"not a data frame (length {length}, kind {kind}, address of {address_bytes})"
                raise BrokenStreamError(self._broken)
            start = offset + _HEADER_BYTES
            end = start + length
            if end > available:
                break
            split = start + address_bytes
            datagrams.append(Datagram(circuit_id, buffer[start:split], buffer[split:end]))
            offset = end
        self._rest = buffer[offset:]
        return datagrams
