"""What UDP trackers are told (BEP 15), beside what libtorrent tells them. Pure.

    announce:  connection id (8) | action 1 (4) | transaction id (4) | infohash (20) | peer id (20) | downloaded (8)
               | left (8) | uploaded (8) | event (4) | IP address (4) | key (4) | peers wanted (4) | port (2)
    connect:   0x41727101980 (8) | action 0 (4) | transaction id (4)
    connected: action 0 (4) | transaction id (4) | connection id (8)

A tracker takes a connection id only from the address that it gave it to. libtorrent keeps one for a minute, whatever
circuit its datagrams take. So when they have come to take another, the tracker is asked for another id, which replaces
libtorrent's.
"""

import struct
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from tunnel_pool.torrent.announces.questions import CONNECT_BYTES, CONNECT_START, LEAST_ANNOUNCE_BYTES
from tunnel_pool.torrent.announces.standing import Standing

_CONNECTION_BYTES = 8
_TRANSACTION_AT = slice(12, 16)
_INFOHASH_AT = slice(16, 36)
_TOTALS = struct.Struct("!QQQ")  # downloaded, left, uploaded
_TOTALS_AT, _KEY_AT, _PORT_AT = 56, 88, 96
_CONNECTED = struct.Struct("!4s4s8s")
_MOST = (1 << 64) - 1
MAX_KNOWN = 1024  # of each kind; trackers are as many as torrents name

Key = TypeVar("Key")
Value = TypeVar("Value")


def infohash_of(announce: bytes) -> bytes:
    return announce[_INFOHASH_AT]


def rewritten(announce: bytes, port: int | None, standing: Standing | None) -> bytes:
    """Return an announce with this port, and a torrent's standing; what is None stays as it is."""
    told = bytearray(announce)
    if port is not None:
        struct.pack_into("!H", told, _PORT_AT, port)
    if standing is not None:
        downloaded, left, uploaded = _TOTALS.unpack_from(told, _TOTALS_AT)
        totals = standing.downloaded_bytes(downloaded), left, standing.uploaded_bytes(uploaded)
        _TOTALS.pack_into(told, _TOTALS_AT, *(min(total, _MOST) for total in totals))
        struct.pack_into("!I", told, _KEY_AT, standing.key)
    return bytes(told)


class Datagram(NamedTuple):
    """Says where a datagram goes (encoded, RFC 1928 section 5), and what it is."""

    destination: bytes
    payload: bytes


class _Waiting(NamedTuple):
    circuit_id: int
    held: Datagram


class Connections:
    """Knows over which circuit each connection id was given, and gets another one where that is needed."""

    def __init__(self, new_transaction: Callable[[], bytes]) -> None:
        """`new_transaction` returns four bytes that nobody can guess."""
        self._new_transaction = new_transaction
        self._asked: dict[tuple[int, bytes], bytes] = {}  # destination, by circuit and transaction id
        self._given: dict[tuple[bytes, bytes], int] = {}  # circuit, by destination and connection id
        self._instead: dict[tuple[int, bytes, bytes], bytes] = {}  # by circuit, destination and libtorrent's id
        self._waiting: dict[tuple[int, bytes], _Waiting] = {}  # by circuit and transaction id

    def is_tracker(self, destination: bytes) -> bool:
        """Return whether libtorrent has asked this destination for a connection id."""
        return destination in self._asked.values() or any(known == destination for known, _ in self._given)

    def ask(self, circuit_id: int, question: Datagram) -> Datagram:
        """Return what is sent over a circuit in the place of a question, which may wait meanwhile."""
        destination, payload = question
        if len(payload) == CONNECT_BYTES and payload.startswith(CONNECT_START):
            _put(self._asked, (circuit_id, payload[_TRANSACTION_AT]), destination)
            return question
        connection = payload[:_CONNECTION_BYTES]
        if self._given.get((destination, connection), circuit_id) == circuit_id:
            return question
        instead = self._instead.get((circuit_id, destination, connection))
        if instead is not None:
            return Datagram(destination, instead + payload[_CONNECTION_BYTES:])
        transaction = self._new_transaction()
        _put(self._waiting, (circuit_id, transaction), _Waiting(circuit_id, question))
        return Datagram(destination, CONNECT_START + transaction)

    def answered(self, circuit_id: int, payload: bytes) -> tuple[Datagram | None, bool]:
        """Take what a tracker may have answered: return what is sent now, and whether it is for libtorrent."""
        if len(payload) != CONNECT_BYTES or not payload.startswith(bytes(4)):
            return None, True
        _, transaction, connection = _CONNECTED.unpack(payload)
        waiting = self._waiting.pop((circuit_id, transaction), None)
        if waiting is not None:
            destination, held = waiting.held
            _put(self._instead, (circuit_id, destination, held[:_CONNECTION_BYTES]), connection)
            return Datagram(destination, connection + held[_CONNECTION_BYTES:]), False
        asked = self._asked.pop((circuit_id, transaction), None)
        if asked is not None:
            _put(self._given, (asked, connection), circuit_id)
        return None, True


def _put(known: dict[Key, Value], key: Key, value: Value) -> None:
    """Set a value, and forget the oldest where there are too many."""
    known.pop(key, None)
    known[key] = value
    if len(known) > MAX_KNOWN:
        del known[next(iter(known))]


assert LEAST_ANNOUNCE_BYTES == _PORT_AT + 2
