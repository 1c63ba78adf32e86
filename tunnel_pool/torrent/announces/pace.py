"""Keeps announces to the pace that trackers allow, whatever has libtorrent announce. Pure: the time is an argument.

libtorrent announces anew whenever a torrent is paused and goes on, as while no circuit leads out, and says `started`
then, however short ago it announced. What comes too soon gets the tracker's last answer, with the time that is left.
Events are told at once: what begins for a tracker, what ends, and what is complete.
"""

from enum import Enum, auto
from typing import Generic, NamedTuple, TypeVar

from tunnel_pool.overlay.ground.pacing import Newest
from tunnel_pool.torrent.announces.tellings import Tellings, Where
from tunnel_pool.torrent.anonymous_torrents import TrackerPlace

MAX_PACED = 1 << 16
Answer = TypeVar("Answer")


class Event(Enum):
    """Lists what an announce tells of (BEP 3)."""

    NONE = auto()
    COMPLETED = auto()
    STARTED = auto()
    STOPPED = auto()


class Paced(NamedTuple, Generic[Answer]):
    """Holds a tracker's last answer, and until when it wants to be left alone (monotonic)."""

    until_s: float
    answer: Answer


class Pace(Generic[Answer]):
    """Says which announces of a session go to the tracker."""

    def __init__(self, where: Where, tellings: Tellings) -> None:
        self._where, self._tellings = where, tellings
        self._paced = Newest[tuple[bytes, TrackerPlace], Paced[Answer]](MAX_PACED)

    def event(self, infohash: bytes, tracker: TrackerPlace, event: Event) -> Event:
        """Return what an announce tells of: a tracker that was told of a torrent hears of no second beginning."""
        is_known = self._tellings.last(infohash, tracker) is not None
        return Event.NONE if event is Event.STARTED and is_known else event

    def is_lost(self, infohash: bytes, tracker: TrackerPlace) -> bool:
        """Return whether a torrent that stops has only lost its circuit, and goes on when there is another."""
        found = self._tellings.last(infohash, tracker)
        return found is not None and not self._where.is_ready(found.circuit_id) and not self._where.is_reachable()

    def answered(self, infohash: bytes, tracker: TrackerPlace, until_s: float, answer: Answer) -> None:
        """Note a tracker's answer, and until when it wants to be left alone."""
        self._paced[infohash, tracker] = Paced(until_s, answer)

    def answer(self, infohash: bytes, tracker: TrackerPlace, now_s: float) -> Paced[Answer] | None:
        """Return the answer to an announce without an event that comes too soon; None if it goes to the tracker."""
        paced = self._paced.get((infohash, tracker))
        return paced if paced is not None and now_s < paced.until_s else None
