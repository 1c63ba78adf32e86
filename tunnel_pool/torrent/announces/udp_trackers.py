"""What UDP trackers are told (BEP 15), beside what libtorrent tells them. Pure.

    announce:  connection id (8) | action 1 (4) | transaction id (4) | infohash (20) | peer id (20) | downloaded (8)
               | left (8) | uploaded (8) | event (4) | IP address (4) | key (4) | peers wanted (4) | port (2)
    connect:   0x41727101980 (8) | action 0 (4) | transaction id (4)
    connected: action 0 (4) | transaction id (4) | connection id (8)

A tracker takes a connection id only from the address that it gave it to. libtorrent keeps one for a minute, and uses it
in all sessions of the process (udp_tracker_connection.cpp, m_connection_cache): in those of other lanes, and in the
plain one, at our own address. There, an id that was given over a circuit would tell the tracker who we are, and the
other way round. So libtorrent never sees an id that a tracker gave over a circuit, but one made here, which stands for
it over this circuit alone; in the place of any other that libtorrent sends, the tracker is asked for a new one.
"""

import struct
from collections.abc import Callable
from typing import Any, NamedTuple

from tunnel_pool.overlay.pacing import Newest
from tunnel_pool.torrent.announces.account import Account
from tunnel_pool.torrent.announces.questions import CONNECT_BYTES, CONNECT_START, LEAST_ANNOUNCE_BYTES

CONNECTION_BYTES = 8
_TRANSACTION_BYTES = 4
_CONNECTED = bytes(4)  # the action
_TRANSACTION_AT = slice(12, 16)
_INFOHASH_AT = slice(16, 36)
_KEY = struct.Struct("!I")
_TOTALS = struct.Struct("!QQQ")  # downloaded, left, uploaded
_TOTALS_AT, _KEY_AT, _PORT_AT = 56, 88, 96
MAX_KNOWN = 1024  # of each kind; trackers are as many as torrents name
AGAIN_S = (1.0, 3.0, 7.0)  # when a tracker is asked again that did not answer; libtorrent asks after 15 s


def infohash_of(announce: bytes) -> bytes:
    return announce[_INFOHASH_AT]


def rewritten(announce: bytes, port: int | None, account: Account | None) -> bytes:
    """Return an announce with this port, and what a torrent's account says; what is None stays as it is."""
    told = bytearray(announce)
    if port is not None:
        struct.pack_into("!H", told, _PORT_AT, port)
    if account is not None:
        _, left, _ = _TOTALS.unpack_from(told, _TOTALS_AT)
        totals = account.tell()
        _TOTALS.pack_into(told, _TOTALS_AT, totals.downloaded, left, totals.uploaded)
        _KEY.pack_into(told, _KEY_AT, account.key)
    return bytes(told)


class Datagram(NamedTuple):
    """Says where a datagram goes (encoded, RFC 1928 section 5), and what it is."""

    destination: bytes
    payload: bytes


class Answer(NamedTuple):
    """Says what becomes of a tracker's answer: what libtorrent gets of it, and what is sent now."""

    for_client: bytes | None
    sent: Datagram | None = None


class _Held(NamedTuple):
    """Holds a question that waits for a connection id."""

    question: Datagram
    since_s: float | None = None  # since when it is known to wait
    tries: int = 0  # how often the tracker was asked again


class Connections:
    """Holds the connection ids that trackers gave over circuits, by those that libtorrent knows."""

    def __init__(self, random_bytes: Callable[[int], bytes]) -> None:
        """`random_bytes` returns bytes that nobody can guess."""
        self._random_bytes = random_bytes
        self._trackers = Newest[bytes, None](MAX_KNOWN)
        # By circuit and transaction id, where a tracker was asked; by circuit, destination and libtorrent's id, the one
        # that was given; by circuit and transaction id, questions.
        self._asked = Newest[tuple[int, bytes], bytes](MAX_KNOWN)
        self._given = Newest[tuple[int, bytes, bytes], bytes](MAX_KNOWN)
        self._waiting = Newest[tuple[int, bytes], _Held](MAX_KNOWN)

    def is_tracker(self, destination: bytes) -> bool:
        """Return whether libtorrent has asked this destination for a connection id."""
        return destination in self._trackers

    def ask(self, circuit_id: int, question: Datagram) -> Datagram:
        """Return what is sent over a circuit in the place of a question, which may wait meanwhile."""
        destination, payload = question
        if len(payload) == CONNECT_BYTES and payload.startswith(CONNECT_START):
            self._trackers[destination] = None
            self._asked[circuit_id, payload[_TRANSACTION_AT]] = destination
            return question
        given = self._given.get((circuit_id, destination, payload[:CONNECTION_BYTES]))
        if given is not None:
            return Datagram(destination, given + payload[CONNECTION_BYTES:])
        transaction = self._random_bytes(_TRANSACTION_BYTES)
        self._waiting[circuit_id, transaction] = _Held(question)
        return Datagram(destination, CONNECT_START + transaction)

    def answered(self, circuit_id: int, payload: bytes) -> Answer:
        """Take what a tracker may have answered over a circuit."""
        if len(payload) != CONNECT_BYTES or not payload.startswith(_CONNECTED):
            return Answer(payload)
        transaction, given = payload[4:8], payload[8:]
        waiting = self._waiting.pop((circuit_id, transaction), None)
        if waiting is not None:
            destination, held = waiting.question
            self._given[circuit_id, destination, held[:CONNECTION_BYTES]] = given
            return Answer(None, Datagram(destination, given + held[CONNECTION_BYTES:]))
        asked = self._asked.pop((circuit_id, transaction), None)
        if asked is None:
            return Answer(None)
        told = self._random_bytes(CONNECTION_BYTES)
        self._given[circuit_id, asked, told] = given
        return Answer(payload[:8] + told)

    def again(self, now_s: float) -> list[tuple[int, Datagram]]:
        """Return what is asked again, and over which circuits: libtorrent does not know of these questions of ours."""
        asked = []
        for (circuit_id, transaction), held in list(self._waiting.items()):
            if held.since_s is None:
                self._waiting[circuit_id, transaction] = held._replace(since_s=now_s)
            elif held.tries < len(AGAIN_S) and now_s - held.since_s >= AGAIN_S[held.tries]:
                self._waiting[circuit_id, transaction] = held._replace(tries=held.tries + 1)
                asked.append((circuit_id, Datagram(held.question.destination, CONNECT_START + transaction)))
        return asked

    def forget_circuit(self, circuit_id: int) -> None:
        _forget(self._asked, circuit_id)
        _forget(self._given, circuit_id)
        _forget(self._waiting, circuit_id)


def _forget(known: dict[Any, Any], circuit_id: int) -> None:
    for key in [key for key in known if key[0] == circuit_id]:
        del known[key]


assert LEAST_ANNOUNCE_BYTES == _PORT_AT + 2
