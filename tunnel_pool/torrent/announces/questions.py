"""Tells which of libtorrent's datagrams are questions to trackers and DHT nodes. Pure.

All questions of a lane take one circuit, so that trackers and DHT nodes see one address, at which others find us.
"""

from enum import Enum, auto
from typing import Any

import libtorrent as lt

CONNECT_START = (0x41727101980).to_bytes(8, "big") + bytes(4)  # BEP 15: the protocol's number, and action 0
CONNECT_BYTES = 16
LEAST_SCRAPE_BYTES, LEAST_ANNOUNCE_BYTES = 36, 98
LEAST_ANSWER_BYTES, LAST_ACTION = 8, 3
_ACTION_AT = slice(8, 12)
_ANNOUNCE, _SCRAPE = b"\0\0\0\1", b"\0\0\0\2"
LEAST_UTP_BYTES = 20
_UTP_SYN = 0x41  # BEP 29: type 4, version 1


class Question(Enum):
    """Lists the kinds of datagrams that are told apart by their form."""

    NONE = auto()
    DHT = auto()  # BEP 5; an answer of ours to another node, too
    CONNECT = auto()  # BEP 15, here and below
    SCRAPE = auto()  # may be a uTP packet by chance: only who was asked to connect is a tracker
    ANNOUNCE = auto()  # likewise


def question_of(payload: bytes) -> Question:
    """Return what a datagram of libtorrent's asks."""
    if payload[:1] == b"d" and payload[-1:] == b"e":
        return Question.DHT
    if len(payload) == CONNECT_BYTES and payload.startswith(CONNECT_START):
        return Question.CONNECT
    action = payload[_ACTION_AT]
    if action == _ANNOUNCE and len(payload) >= LEAST_ANNOUNCE_BYTES:
        return Question.ANNOUNCE
    if action == _SCRAPE and len(payload) >= LEAST_SCRAPE_BYTES:
        return Question.SCRAPE
    return Question.NONE


def is_dht_answer(payload: bytes) -> bool:
    """Return whether a datagram from outside answers a question, or refuses it, and wants no answer (BEP 5).

    libtorrent decides, as it would answer all that it takes for a query, however that is written.
    """
    try:
        message: Any = lt.bdecode(payload)
    except (RuntimeError, ValueError):
        return False
    return isinstance(message, dict) and message.get(b"y") in (b"r", b"e")


def may_be_trackers(payload: bytes) -> bool:
    """Return whether a datagram from outside may be a UDP tracker's answer (BEP 15): an action, then an id."""
    return len(payload) >= LEAST_ANSWER_BYTES and payload[:3] == bytes(3) and payload[3] <= LAST_ACTION


def begins_connection(payload: bytes) -> bool:
    """Return whether a datagram from outside begins a uTP connection (BEP 29, ST_SYN)."""
    return len(payload) >= LEAST_UTP_BYTES and payload[0] == _UTP_SYN
