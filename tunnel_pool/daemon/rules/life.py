"""The life of a torrent: what happens to it, what state it is in then, and what libtorrent is to do with it. Pure.

A torrent is in three states at a time: of its place, of its trouble and of its check. `Life.happened` leads from each
to the next as TABLE says; an event that TABLE does not name leaves a state as it is. IMPOSSIBLE are the events that
would use a handle that no session knows, or would break off a move of the files.

Beside them stands the torrent's turn: what queue, limits and disks let it do (rules/queue.py decides it each second,
and a disk without room ends it at once). What libtorrent is to do follows from all of these (`Life.orders`), and so
does the one word that clients show (`Life.state`).

    place     in session        taken out        -> between sessions
    place     between sessions  handed over      -> in session
    place     in session        move begun       -> moving
    place     moving            move ended       -> in session
    trouble   none              failed           -> failed
    trouble   none              halted           -> failed
    trouble   none              failed for now   -> failed for now
    trouble   none              lost             -> missing
    trouble   failed for now    failed           -> failed
    trouble   failed for now    halted           -> failed
    trouble   failed for now    lost             -> missing
    trouble   failed for now    tried again      -> none
    trouble   failed for now    forgiven         -> none
    trouble   failed for now    move begun       -> none
    trouble   failed for now    verify begun     -> none
    trouble   failed            failed for now   -> failed for now
    trouble   failed            lost             -> missing
    trouble   failed            forgiven         -> none
    trouble   failed            move begun       -> none
    trouble   failed            verify begun     -> none
    trouble   missing           found            -> none
    trouble   missing           verify begun     -> none
    check     none              verify begun     -> verifying
    check     verifying         verified         -> none
    check     verifying         halted           -> none
    check     verifying         failed for now   -> none
    check     verifying         room ran out     -> none
"""

import math
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, TypeVar, cast

from tunnel_pool.daemon.rules.queue import Activity


class Place(Enum):
    """Says who has the torrent; its handle is of use unless it is between sessions."""

    IN_SESSION = "in session"
    MOVING = "moving"  # libtorrent moves its files
    BETWEEN_SESSIONS = "between sessions"  # also where libtorrent refused it


class Trouble(Enum):
    """Says whether a torrent stands still for an error, and who ends that."""

    NONE = "none"
    FAILED_FOR_NOW = "failed for now"  # it is tried again by itself
    FAILED = "failed"  # its owner has to do something
    MISSING = "missing"  # its files are gone: it goes on when they are back, or when its owner has it verified


class Check(Enum):
    """Says whether the owner, or a fault, has all of its files read; that goes on while the torrent is stopped."""

    NONE = "none"
    VERIFYING = "verifying"


class Event(Enum):
    """Names what happens to a torrent."""

    TAKEN_OUT = "taken out"
    HANDED_OVER = "handed over"
    MOVE_BEGUN = "move begun"
    MOVE_ENDED = "move ended"
    VERIFY_BEGUN = "verify begun"
    VERIFIED = "verified"
    FAILED = "failed"  # something that was asked for could not be done
    HALTED = "halted"  # libtorrent has stopped it for an error
    FAILED_FOR_NOW = "failed for now"  # libtorrent has, and it is tried again
    ROOM_RAN_OUT = "room ran out"
    FORGIVEN = "forgiven"  # its owner wants it tried again
    TRIED_AGAIN = "tried again"
    LOST = "lost"
    FOUND = "found"


AnyState = Place | Trouble | Check
S = TypeVar("S", Place, Trouble, Check)

TABLE: dict[tuple[AnyState, Event], AnyState] = {
    (Place.IN_SESSION, Event.TAKEN_OUT): Place.BETWEEN_SESSIONS,
    (Place.BETWEEN_SESSIONS, Event.HANDED_OVER): Place.IN_SESSION,
    (Place.IN_SESSION, Event.MOVE_BEGUN): Place.MOVING,
    (Place.MOVING, Event.MOVE_ENDED): Place.IN_SESSION,
    (Trouble.NONE, Event.FAILED): Trouble.FAILED,
    (Trouble.NONE, Event.HALTED): Trouble.FAILED,
    (Trouble.NONE, Event.FAILED_FOR_NOW): Trouble.FAILED_FOR_NOW,
    (Trouble.NONE, Event.LOST): Trouble.MISSING,
    (Trouble.FAILED_FOR_NOW, Event.FAILED): Trouble.FAILED,
    (Trouble.FAILED_FOR_NOW, Event.HALTED): Trouble.FAILED,
    (Trouble.FAILED_FOR_NOW, Event.LOST): Trouble.MISSING,
    (Trouble.FAILED_FOR_NOW, Event.TRIED_AGAIN): Trouble.NONE,
    (Trouble.FAILED_FOR_NOW, Event.FORGIVEN): Trouble.NONE,
    (Trouble.FAILED_FOR_NOW, Event.MOVE_BEGUN): Trouble.NONE,
    (Trouble.FAILED_FOR_NOW, Event.VERIFY_BEGUN): Trouble.NONE,
    (Trouble.FAILED, Event.FAILED_FOR_NOW): Trouble.FAILED_FOR_NOW,
    (Trouble.FAILED, Event.LOST): Trouble.MISSING,
    (Trouble.FAILED, Event.FORGIVEN): Trouble.NONE,
    (Trouble.FAILED, Event.MOVE_BEGUN): Trouble.NONE,
    (Trouble.FAILED, Event.VERIFY_BEGUN): Trouble.NONE,
    (Trouble.MISSING, Event.FOUND): Trouble.NONE,
    (Trouble.MISSING, Event.VERIFY_BEGUN): Trouble.NONE,
    (Check.NONE, Event.VERIFY_BEGUN): Check.VERIFYING,
    (Check.VERIFYING, Event.VERIFIED): Check.NONE,
    (Check.VERIFYING, Event.HALTED): Check.NONE,
    (Check.VERIFYING, Event.FAILED_FOR_NOW): Check.NONE,
    (Check.VERIFYING, Event.ROOM_RAN_OUT): Check.NONE,
}
"""The state that follows a state after an event."""

IMPOSSIBLE = frozenset(
    {
        (Place.BETWEEN_SESSIONS, Event.MOVE_BEGUN),
        (Place.BETWEEN_SESSIONS, Event.VERIFY_BEGUN),
        (Place.MOVING, Event.MOVE_BEGUN),
        (Place.MOVING, Event.TAKEN_OUT),
        (Place.MOVING, Event.VERIFY_BEGUN),
    }
)


class State(Enum):
    """Says what a torrent does, in one word; interfaces that have fewer tell some of them together."""

    MISSING = "its files are gone"
    FAILED = "it stands still for an error"
    MOVING = "its files are being moved"
    CHECKING = "its files are being checked"
    STOPPED = "its owner, or a limit, has stopped it"
    QUEUED = "it waits for its turn"
    NO_ROOM = "it waits for room on the disk"
    DOWNLOADING = "it is downloaded"
    SEEDING = "all that is wanted is there, and given to others"


_WAITING = {Activity.STOPPED: State.STOPPED, Activity.QUEUED: State.QUEUED, Activity.NO_ROOM: State.NO_ROOM}


class Facts(NamedTuple):
    """Holds what libtorrent, the record and the circuits say of a torrent at this moment."""

    now_s: float
    is_checking: bool  # as libtorrent does at the beginning, too
    is_finished: bool
    is_bound_elsewhere: bool  # whether its record names another folder, to which its files go: also before and after
    is_settling: bool  # whether its files, just known, go where they belong, which takes a moment
    takes_over: bool  # whether files that were there have yet to be found to be its own
    is_untouched: bool  # whether files may have come to its places while it waited for its first turn
    has_way: bool  # whether peers can be reached


class Orders(NamedTuple):
    """Says what libtorrent is to do with a torrent, and whether others may meet it."""

    runs: bool
    checks_only: bool  # libtorrent stops it when it is checked
    may_meet: bool
    looks_first: bool = False  # whether its places are to be looked at before anything is written there


def _after(state: S, event: Event) -> S:
    return cast(S, TABLE.get((state, event), state))


class ImpossibleEventError(Exception):
    """Tells of an event that can't happen to a torrent where it is."""


@dataclass(slots=True)
class Life:
    """Holds the states of a torrent; times are monotonic."""

    place: Place = Place.IN_SESSION
    trouble: Trouble = Trouble.NONE
    check: Check = Check.NONE
    turn: Activity = Activity.STOPPED  # what queue, limits and disks let it do
    why: str = ""  # the sentence that tells of its trouble
    again_s: float = math.inf  # when it is tried again that failed for now
    held_until_s: float = 0.0  # until then it contacts nobody: its client may say its hop count

    def happened(self, event: Event, why: str = "", again_s: float = math.inf) -> None:
        """Go to the states that the event leads to; `why` tells of trouble, `again_s` when it is over.

        Raises ImpossibleEventError, and changes nothing then.
        """
        if (self.place, event) in IMPOSSIBLE:
            raise ImpossibleEventError(f"{event.value}, while the torrent is {self.place.value}")
        self.place, self.trouble, self.check = (
            _after(self.place, event),
            _after(self.trouble, event),
            _after(self.check, event),
        )
        if event is Event.ROOM_RAN_OUT:
            self.turn = Activity.NO_ROOM
        self.why = "" if self.trouble is Trouble.NONE else why or self.why
        if self.trouble is not Trouble.FAILED_FOR_NOW:
            self.again_s = math.inf
        elif event is Event.FAILED_FOR_NOW:
            self.again_s = again_s

    def is_to_be_tried(self, now_s: float) -> bool:
        """Return whether a torrent that failed for now has waited long enough."""
        return now_s >= self.again_s

    def orders(self, facts: Facts) -> Orders | None:
        """Return what libtorrent is to do; None while no session has the torrent, so that nothing can be done."""
        if self.place is Place.BETWEEN_SESSIONS:
            return None
        is_free = self.trouble is Trouble.NONE and not facts.is_bound_elsewhere and facts.now_s >= self.held_until_s
        may_check = self.turn is Activity.RUNNING and is_free
        may_meet = may_check and not facts.takes_over and not facts.is_untouched
        is_verifying = self.check is Check.VERIFYING
        runs = is_verifying or (facts.is_checking and may_check) or (may_meet and facts.has_way)
        looks_first = may_check and facts.is_untouched and facts.has_way
        return Orders(runs, runs and not may_meet, may_meet, looks_first)

    def state(self, facts: Facts) -> State:
        """Return the first of the states that holds."""
        if self.trouble is not Trouble.NONE:
            return State.MISSING if self.trouble is Trouble.MISSING else State.FAILED
        if facts.is_bound_elsewhere or facts.is_settling:
            return State.MOVING
        if self.check is Check.VERIFYING or (facts.is_checking and self.turn is Activity.RUNNING):
            return State.CHECKING
        if self.turn is not Activity.RUNNING:
            return _WAITING[self.turn]
        return State.SEEDING if facts.is_finished else State.DOWNLOADING
