"""Adds to what libtorrent tells UDP trackers (BEP 15). Pure.

    announce:  connection id (8) | action 1 (4) | transaction id (4) | infohash (20) | peer id (20) | downloaded (8)
               | left (8) | uploaded (8) | event (4) | IP address (4) | key (4) | peers wanted (4) | port (2)
    connect:   0x41727101980 (8) | action 0 (4) | transaction id (4)
    connected: action 0 (4) | transaction id (4) | connection id (8)

A tracker takes a connection id only from the address that it gave it to. libtorrent keeps one for a minute, and uses it
in all sessions of the process (udp_tracker_connection.cpp, m_connection_cache): in those of other lanes, and in the
plain session, which asks from our own address. An id that was given over a circuit would tell the tracker there who we
are, and the other way round. So libtorrent never sees an id that a tracker gave over a circuit, but one made here,
which stands for it over this circuit alone; in the place of any other that libtorrent sends, the tracker is asked for a
new one.
"""

import math
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tunnel_pool.overlay.ground.pacing import Newest
from tunnel_pool.torrent.announces.account import Account
from tunnel_pool.torrent.announces.outside import Address
from tunnel_pool.torrent.announces.pace import Event
from tunnel_pool.torrent.announces.questions import CONNECT_BYTES, CONNECT_START, LEAST_ANNOUNCE_BYTES
from tunnel_pool.torrent.announces.tracker_answers import other_peers

CONNECTION_BYTES = 8
TRANSACTION_BYTES = 4
_CONNECTED = bytes(4)  # the action
_TRANSACTION_AT = slice(12, 16)
_INFOHASH_AT = slice(16, 36)
_KEY = struct.Struct("!I")
_TOTALS = struct.Struct("!QQQ")  # downloaded, left, uploaded
_EVENT = struct.Struct("!I")
_TOTALS_AT, _EVENT_AT, _KEY_AT, _PORT_AT = 56, 80, 88, 96
EVENTS = (Event.NONE, Event.COMPLETED, Event.STARTED, Event.STOPPED)
ANNOUNCED = (1).to_bytes(4, "big")  # the action of an answer to an announce
LEAST_S = 60.0  # such a tracker does not say how often it may be asked; libtorrent takes this
_ANSWERED_AT, _INTERVAL_AT = slice(4, 8), slice(8, 12)
MAX_KNOWN = 1024  # of each kind; trackers are as many as torrents name
MAX_HELD = 1024  # questions, or torrents, that wait for one connection id
AGAIN_S = (1.0, 3.0, 7.0)  # when a tracker is asked again that did not answer; libtorrent asks after 15 s


def infohash_of(announce: bytes) -> bytes:
    return announce[_INFOHASH_AT]


def transaction_of(question: bytes) -> bytes:
    return question[_TRANSACTION_AT]


def transaction_of_answer(answer: bytes) -> bytes:
    return answer[_ANSWERED_AT]


def event_of(announce: bytes) -> Event:
    """Return what an announce tells of; a number that none has counts as none."""
    event: int = _EVENT.unpack_from(announce, _EVENT_AT)[0]
    return EVENTS[event] if event < len(EVENTS) else Event.NONE


def answer_again(answer: bytes, transaction: bytes, left_s: float) -> bytes:
    """Return a tracker's answer to an announce as that to another one, which comes too soon."""
    again = bytearray(answer)
    again[_ANSWERED_AT], again[_INTERVAL_AT] = transaction, math.ceil(left_s).to_bytes(4, "big")
    return bytes(again)


NOBODY = ANNOUNCED + bytes(16)  # an answer without peers


def without_own(answer: bytes, own: Address | None) -> bytes:
    """Return what a tracker has answered, to an announce without the peer at our own address."""
    if not answer.startswith(ANNOUNCED):
        return answer
    return answer[: len(NOBODY)] + other_peers(answer[len(NOBODY) :], own)


def with_event(announce: bytes, event: Event, transaction: bytes | None = None) -> bytes:
    """Return an announce that tells of this event, as another transaction where one is given."""
    told = bytearray(announce)
    _EVENT.pack_into(told, _EVENT_AT, EVENTS.index(event))
    if transaction is not None:
        told[_TRANSACTION_AT] = transaction
    return bytes(told)


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

    for_client: tuple[bytes, ...] = ()
    sent: tuple[Datagram, ...] = ()


@dataclass(slots=True)
class _Asking:
    """Holds what waits for a tracker's connection id."""

    destination: bytes
    clients: deque[bytes] = field(default_factory=lambda: deque(maxlen=MAX_HELD))  # libtorrent's transactions
    questions: deque[bytes] = field(default_factory=lambda: deque(maxlen=MAX_HELD))
    since_s: float | None = None  # since when it is known to wait
    tries: int = 0  # how often the tracker was asked again
    is_held: bool = False  # whether it has not been asked yet


class Connections:
    """Holds the connection ids that trackers gave over circuits, by those that libtorrent knows.

    A tracker is asked for one id at a time: libtorrent asks for each of its torrents at a start, and exits let no more
    than some datagrams to a destination that has not answered.
    """

    def __init__(self, random_bytes: Callable[[int], bytes]) -> None:
        """`random_bytes` returns bytes that nobody can guess."""
        self._random_bytes = random_bytes
        self._trackers = Newest[bytes, None](MAX_KNOWN)
        # By circuit and transaction id, what was asked, and the other way round by destination; by circuit, destination
        # and libtorrent's connection id, the one that was given.
        self._asking = Newest[tuple[int, bytes], _Asking](MAX_KNOWN)
        self._transactions = Newest[tuple[int, bytes], bytes](MAX_KNOWN)
        self._given = Newest[tuple[int, bytes, bytes], bytes](MAX_KNOWN)

    def is_tracker(self, destination: bytes) -> bool:
        """Return whether libtorrent has asked this destination for a connection id."""
        return destination in self._trackers

    def ask(self, circuit_id: int, question: Datagram, *, may_connect: bool = True) -> Datagram | None:
        """Return what is sent over a circuit in the place of a question, None where it waits for an answer.

        Without `may_connect`, the tracker is not asked for a connection id yet, but by `again`.
        """
        destination, payload = question
        is_connect = len(payload) == CONNECT_BYTES and payload.startswith(CONNECT_START)
        if is_connect:
            self._trackers[destination] = None
        elif (given := self._given.get((circuit_id, destination, payload[:CONNECTION_BYTES]))) is not None:
            return Datagram(destination, given + payload[CONNECTION_BYTES:])
        transaction = self._transactions.get((circuit_id, destination), b"")
        asking = self._asking.get((circuit_id, transaction))
        is_new = asking is None or asking.tries == len(AGAIN_S)  # the tracker did not answer for long
        if asking is None:
            transaction = payload[_TRANSACTION_AT] if is_connect else self._random_bytes(TRANSACTION_BYTES)
            asking = self._asking[circuit_id, transaction] = _Asking(destination)
            self._transactions[circuit_id, destination] = transaction
        if is_connect:
            asking.clients.append(payload[_TRANSACTION_AT])
        else:
            asking.questions.append(payload)
        if not is_new:
            return None
        asking.since_s, asking.tries, asking.is_held = None, 0, not may_connect
        return Datagram(destination, CONNECT_START + transaction) if may_connect else None

    def answered(self, circuit_id: int, payload: bytes) -> Answer:
        """Take what a tracker may have answered over a circuit."""
        if len(payload) != CONNECT_BYTES or not payload.startswith(_CONNECTED):
            return Answer((payload,))
        transaction, given = transaction_of_answer(payload), payload[8:]
        asked = self._asking.pop((circuit_id, transaction), None)
        if asked is None:
            return Answer()
        self._transactions.pop((circuit_id, asked.destination), None)
        told = self._random_bytes(CONNECTION_BYTES)
        if asked.clients:
            self._given[circuit_id, asked.destination, told] = given
        for question in asked.questions:
            self._given[circuit_id, asked.destination, question[:CONNECTION_BYTES]] = given
        return Answer(
            tuple(_CONNECTED + client + told for client in asked.clients),
            tuple(Datagram(asked.destination, given + question[CONNECTION_BYTES:]) for question in asked.questions),
        )

    def again(
        self, now_s: float, may_connect: Callable[[int], bool] = lambda circuit_id: True
    ) -> list[tuple[int, Datagram]]:
        """Return what is asked again, or for the first time, over circuits by which trackers may be asked."""
        again = []
        for (circuit_id, transaction), asking in self._asking.items():
            if asking.is_held and not may_connect(circuit_id):
                continue
            if asking.is_held:
                asking.is_held = False
                again.append((circuit_id, Datagram(asking.destination, CONNECT_START + transaction)))
            elif asking.since_s is None:
                asking.since_s = now_s
            elif asking.tries < len(AGAIN_S) and now_s - asking.since_s >= AGAIN_S[asking.tries]:
                asking.tries += 1
                again.append((circuit_id, Datagram(asking.destination, CONNECT_START + transaction)))
        return again

    def forget_circuit(self, circuit_id: int) -> None:
        for known in (self._asking, self._transactions, self._given):
            _forget(known, circuit_id)


def _forget(known: dict[Any, Any], circuit_id: int) -> None:
    for key in [key for key in known if key[0] == circuit_id]:
        del known[key]


assert LEAST_ANNOUNCE_BYTES == _PORT_AT + 2
