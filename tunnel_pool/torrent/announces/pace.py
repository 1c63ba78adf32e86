"""Keeps announces to the pace that trackers allow, whatever has libtorrent announce. Pure: the time is an argument.

libtorrent announces anew whenever a torrent is paused and goes on, as while no circuit leads out, and says `started`
then, however short ago it announced. What comes too soon gets the tracker's last answer, with the time that is left.
Events are told at once: what begins for a tracker, what ends, and what is complete.
"""

from enum import Enum, auto
from typing import Generic, NamedTuple, TypeVar

from tunnel_pool.overlay.ground.pacing import Newest
from tunnel_pool.torrent.announces.tellings import Found, Telling, Tellings, Tracker, Where

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
        self._paced = Newest[tuple[bytes, Tracker], Paced[Answer]](MAX_PACED)

    def event(self, infohash: bytes, tracker: Tracker, event: Event) -> Event:
        """Return what an announce tells of: a tracker that has heard of a torrent hears of no second beginning."""
        last = self._tellings.last(infohash, tracker)
        return Event.NONE if event is Event.STARTED and last is not None and last.is_heard else event

    def is_lost(self, infohash: bytes, tracker: Tracker) -> bool:
        """Return whether a torrent that stops has only lost its circuit, and goes on when there is another."""
        last = self._tellings.last(infohash, tracker)
        is_found = last is not None and self._where.is_ready(last.found.circuit_id)
        return last is not None and not is_found and not self._where.is_steady()

    def answered(self, infohash: bytes, tracker: Tracker, until_s: float, answer: Answer) -> None:
        """Note a tracker's answer, and until when it wants to be left alone."""
        self._tellings.answered(infohash, tracker)
        self._paced[infohash, tracker] = Paced(until_s, answer)

    def told(self, infohash: bytes, tracker: Tracker, now: Telling) -> Telling | None:
        """Note an announce; return the one before it where that is to be taken back, and can be."""
        before = self._tellings.told(infohash, tracker, now)
        return before if before is not None and self._where.is_ready(before.found.circuit_id) else None

    def stopped(self, infohash: bytes, tracker: Tracker) -> Found | None:
        """Forget a torrent that stops; return where it was found, if it can say so from there."""
        self._paced.pop((infohash, tracker), None)
        found = self._tellings.stopped(infohash, tracker)
        return found if found is not None and self._where.is_ready(found.circuit_id) else None

    def answer(self, infohash: bytes, tracker: Tracker, now_s: float) -> Paced[Answer] | None:
        """Return the answer to an announce without an event that comes too soon; None if it goes to the tracker."""
        paced = self._paced.get((infohash, tracker))
        if paced is not None and now_s >= paced.until_s:
            del self._paced[infohash, tracker]
            return None
        return paced
