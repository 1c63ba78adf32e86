"""Decides how many children there should be. Pure: what they carry and the time in, what to do out.

The pool grows by one when its children have been short of CPU, or full of circuits, for
GROW_AFTER_S, and shrinks by one when the rest would have been enough for SHRINK_AFTER_S.
Between the two thresholds nothing happens, so that a steady load keeps a steady pool.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

GROW_CPU = 0.7  # cores; when the mean of the children reaches it, one more child is started
SHRINK_CPU = 0.35  # cores; when the mean of the remaining children would not exceed it, one child is drained
CIRCUITS_PER_CHILD = 64  # circuits of our own: each costs pings and its share of RPC_SYNC
FOREIGN_PER_CHILD = 800  # ends of others' circuits, two of one that is relayed; a child joins none beyond 1000
SHRINK_ROOM = 0.75  # the share of those bounds that the children that are left may fill
GROW_AFTER_S = 2.0
SHRINK_AFTER_S = 30.0
DRAIN_DEADLINE_S = 60.0


class WorkerRange(NamedTuple):
    """Holds what `--workers` says: the least and the most children. (0, 0) is one process without any."""

    least: int
    most: int

    def __str__(self) -> str:
        return str(self.most) if self.least == self.most else f"{self.least}..{self.most}"

    def as_json(self) -> int | str:
        return str(self) if self.is_elastic else self.most

    @property
    def is_elastic(self) -> bool:
        return self.least < self.most


class ChildLoad(NamedTuple):
    """Measures what a child does now."""

    slot: int
    cpu: float  # cores, since the last decision
    circuits: int  # circuits of our own, but those that are kept by number (`wanted`)
    busy: int  # circuits of our own that carry datagrams
    foreign: int  # ends of others' circuits


@dataclass(frozen=True, slots=True)
class Grow:
    """Start one more child."""


@dataclass(frozen=True, slots=True)
class Resume:
    """Give work again to a child that is being drained."""

    slot: int


@dataclass(frozen=True, slots=True)
class Drain:
    """Give no more work to this child."""

    slot: int


@dataclass(frozen=True, slots=True)
class End:
    """End a child that has been drained."""

    slot: int
    why: str


Action = Grow | Resume | Drain | End


class ScalingPolicy:
    """Decides how many children are needed: ask `decide` about once a second; each answer is given once."""

    def __init__(self, workers: WorkerRange, shrink_after_s: float = SHRINK_AFTER_S) -> None:
        self.workers = workers
        self._shrink_after_s = shrink_after_s
        self._short_since_s: float | None = None
        self._ample_since_s: float | None = None
        self._draining_since_s: dict[int, float] = {}
        self.unwanted: set[int] = set()  # drained because somebody said so

    def drain(self, slot: int, now_s: float) -> Drain:
        """Drain this child, whatever the others have to do; another follows it."""
        self.unwanted.add(slot)
        self._draining_since_s[slot] = now_s
        return Drain(slot)

    def decide(
        self, now_s: float, running: Sequence[ChildLoad], draining: Sequence[ChildLoad], starting: int, wanted: int
    ) -> Action | None:
        """Return the next change, if any; `starting` children run soon, `wanted` circuits are kept, built or not."""
        count = len(running) + starting
        circuits = wanted + sum(load.circuits for load in running)
        is_settled = starting == 0
        is_short = is_settled and count < self.workers.most and _is_short(running, circuits)
        is_ample = is_settled and count > self.workers.least and _is_ample(running, circuits)
        self._short_since_s = _since(self._short_since_s, is_short, now_s)
        self._ample_since_s = _since(self._ample_since_s, is_ample, now_s)
        self.unwanted &= {load.slot for load in draining}
        resumable = [load.slot for load in draining if load.slot not in self.unwanted]
        is_wanted = _has_lasted(self._short_since_s, GROW_AFTER_S, now_s)
        if is_wanted or count < self.workers.least:  # one was drained, and another has died
            self._short_since_s = None
            if resumable:
                return Resume(resumable[0])
            return self._end_one([load for load in draining if self._is_overdue(load, now_s)], now_s) or Grow()
        if len(running) > self.workers.most:
            return self._drain_least(running, now_s)
        if draining:
            return self._end_one(draining, now_s)
        if _has_lasted(self._ample_since_s, self._shrink_after_s, now_s):
            self._ample_since_s = None
            return self._drain_least(running, now_s)
        return None

    def _drain_least(self, running: Sequence[ChildLoad], now_s: float) -> Drain:
        slot = min(running, key=lambda load: (load.foreign, load.busy, load.circuits, -load.slot)).slot
        self._draining_since_s[slot] = now_s
        return Drain(slot)

    def _is_overdue(self, load: ChildLoad, now_s: float) -> bool:
        return _has_lasted(self._draining_since_s.get(load.slot), DRAIN_DEADLINE_S, now_s)

    def _end_one(self, draining: Sequence[ChildLoad], now_s: float) -> End | None:
        for load in draining:
            self._draining_since_s.setdefault(load.slot, now_s)
            if not load.busy and not load.foreign:
                return End(load.slot, "it is not needed, and carries nothing")
            if self._is_overdue(load, now_s):
                return End(load.slot, f"it is not needed, and was given {DRAIN_DEADLINE_S:.0f} s to finish")
        return None


def _is_short(running: Sequence[ChildLoad], circuits: int) -> bool:
    """Return whether these children are overloaded: by CPU, by our own circuits, or by others' circuits."""
    count = len(running)
    return bool(running) and (
        sum(load.cpu for load in running) >= GROW_CPU * count
        or circuits > CIRCUITS_PER_CHILD * count
        or sum(load.foreign for load in running) > FOREIGN_PER_CHILD * count
    )


def _is_ample(running: Sequence[ChildLoad], circuits: int) -> bool:
    """Return whether one less could carry it, with room to spare."""
    left = len(running) - 1
    return (
        left > 0
        and sum(load.cpu for load in running) <= SHRINK_CPU * left
        and circuits <= SHRINK_ROOM * CIRCUITS_PER_CHILD * left
        and sum(load.foreign for load in running) <= SHRINK_ROOM * FOREIGN_PER_CHILD * left
    )


def _since(before_s: float | None, holds: bool, now_s: float) -> float | None:
    if not holds:
        return None
    return now_s if before_s is None else before_s


def _has_lasted(since_s: float | None, seconds: float, now_s: float) -> bool:
    return since_s is not None and now_s - since_s >= seconds


class Scaling(Protocol):
    """Names what the owner of a pool may ask for (pooled/scaler.py)."""

    @property
    def workers(self) -> WorkerRange: ...

    def scale(self, workers: WorkerRange) -> None:
        """Keep so many children from now on; they are started or drained one a second. Raises ValueError."""

    def drain(self, slot: int) -> None:
        """Drain this child, whatever the others have to do; another follows it. Raises ValueError."""

    def stop(self) -> None: ...
