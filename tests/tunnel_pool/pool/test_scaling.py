"""Tests the scaling policy under simulated load: it follows the load, does not flap, and stays in its range."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunnel_pool.pool.scaling import (
    CIRCUITS_PER_CHILD,
    DRAIN_DEADLINE_S,
    FOREIGN_PER_CHILD,
    GROW_AFTER_S,
    SHRINK_AFTER_S,
    ChildLoad,
    Drain,
    End,
    Grow,
    Resume,
    ScalingPolicy,
    WorkerRange,
)

ONE_TO_FOUR = WorkerRange(1, 4)
START_S = 2


class Simulation:
    """A pool whose children share the load evenly, each with one core at most; a second a step."""

    def __init__(self, workers=ONE_TO_FOUR, finishes=True):
        self.policy = ScalingPolicy(workers)
        self.finishes = finishes  # whether a child that gets nothing new soon has nothing to carry
        self.now_s = 0
        self.running = list(range(workers.least))
        self.starting = {}
        self.draining = []
        self.actions = []

    @property
    def count(self):
        return len(self.running)

    def loads(self, slots, cores, foreign=0, busy=2):
        each = min(1.0, cores / max(len(self.running), 1))
        return [ChildLoad(slot, each, 2, busy, foreign // max(len(slots), 1)) for slot in slots]

    def step(self, cores, wanted=8, foreign=0):
        self.now_s += 1
        for slot in [slot for slot, ready_s in self.starting.items() if ready_s <= self.now_s]:
            del self.starting[slot]
            self.running.append(slot)
        running = self.loads(self.running, cores, foreign)
        draining = self.loads(self.draining, 0, busy=0 if self.finishes else 1)
        action = self.policy.decide(self.now_s, running, draining, len(self.starting), wanted)
        if action is not None:
            self.actions.append((self.now_s, action))
        match action:
            case Grow():
                unused = next(slot for slot in range(99) if slot not in (*self.running, *self.starting, *self.draining))
                self.starting[unused] = self.now_s + START_S
            case Drain(slot):
                self.running.remove(slot)
                self.draining.append(slot)
            case Resume(slot):
                self.draining.remove(slot)
                self.running.append(slot)
            case End(slot, _):
                self.draining.remove(slot)

    def run(self, seconds, cores, **more):
        for _ in range(seconds):
            self.step(cores, **more)


def test_short_of_cpu_it_grows_one_by_one_to_the_most():
    pool = Simulation()
    pool.run(60, cores=9)
    assert pool.count == 4
    times = [when for when, _ in pool.actions]
    assert all(later - earlier >= GROW_AFTER_S + START_S for earlier, later in pairwise(times))
    assert pool.actions == [(when, Grow()) for when in times]


def test_a_moment_of_load_is_no_reason():
    pool = Simulation()
    for _ in range(20):
        pool.run(2, cores=1)
        pool.run(1, cores=0.1)
    assert pool.actions == []


def test_circuits_that_the_pool_cannot_carry_are_a_reason():
    pool = Simulation()
    pool.run(30, cores=0, wanted=2 * CIRCUITS_PER_CHILD + 1)
    assert pool.count == 3


def test_others_circuits_are_a_reason():
    pool = Simulation()
    pool.run(30, cores=0, foreign=FOREIGN_PER_CHILD + 1)
    assert pool.count == 2


def test_idle_it_shrinks_to_the_least():
    pool = Simulation()
    pool.run(60, cores=9)
    pool.run(5 * round(SHRINK_AFTER_S), cores=0)
    assert pool.running == [0]
    assert pool.draining == []
    assert [action for _, action in pool.actions if isinstance(action, Drain)] == [Drain(3), Drain(2), Drain(1)]


def test_the_child_with_least_to_lose_is_drained():
    policy = ScalingPolicy(WorkerRange(1, 3))
    loads = [ChildLoad(0, 0, 3, 1, 2), ChildLoad(1, 0, 3, 0, 0), ChildLoad(2, 0, 3, 1, 0)]
    assert policy.decide(0, loads, [], 0, 8) is None
    assert policy.decide(SHRINK_AFTER_S, loads, [], 0, 8) == Drain(1)


def test_a_draining_child_that_carries_something_has_until_the_deadline():
    pool = Simulation(WorkerRange(1, 2), finishes=False)
    pool.run(10, cores=9)
    pool.run(200, cores=0)
    (drained_s, _), (ended_s, end) = pool.actions[-2:]
    assert isinstance(end, End)
    assert ended_s - drained_s == DRAIN_DEADLINE_S


def test_load_that_comes_back_finds_the_draining_child():
    pool = Simulation(WorkerRange(1, 2), finishes=False)
    pool.run(10, cores=9)
    pool.run(round(SHRINK_AFTER_S) + 5, cores=0)
    assert pool.draining == [1]
    pool.run(10, cores=9)
    assert pool.actions[-1][1] == Resume(1)
    assert pool.count == 2


def test_below_the_least_a_draining_child_is_taken_back():
    policy = ScalingPolicy(WorkerRange(2, 3))
    one, other = ChildLoad(0, 0, 0, 0, 0), ChildLoad(1, 0, 0, 1, 0)
    assert policy.decide(0, [one], [other], 0, 0) == Resume(1)
    assert policy.decide(1, [one], [], 0, 0) == Grow()


def test_nothing_is_decided_while_a_child_starts():
    policy = ScalingPolicy(WorkerRange(1, 3))
    for now_s in range(100):
        assert policy.decide(now_s, [ChildLoad(0, 1.0, 0, 0, 0)], [], 1, 8) is None


@pytest.mark.parametrize("tenths", range(45))
def test_a_steady_load_has_a_steady_pool(tenths):
    pool = Simulation()
    pool.run(200, cores=tenths / 10)
    before = len(pool.actions)
    pool.run(600, cores=tenths / 10)
    assert len(pool.actions) == before
    assert pool.count == 4 or tenths / 10 / pool.count < 0.7


@given(st.lists(st.tuples(st.integers(1, 40), st.floats(0, 8), st.integers(0, 600), st.booleans()), max_size=30))
def test_whatever_comes_it_stays_within_its_range(phases):
    pool = Simulation(WorkerRange(2, 5))
    for seconds, cores, wanted, finishes in phases:
        pool.finishes = finishes
        for _ in range(seconds):
            pool.step(cores, wanted=wanted)
            assert len(pool.draining) <= 1
            assert pool.count >= 2
            assert pool.count + len(pool.starting) <= 5


def test_a_new_range_holds_at_once():
    pool = Simulation(WorkerRange(2, 2))
    pool.policy.workers = WorkerRange(4, 4)
    pool.run(20, cores=0)
    assert pool.count == 4
    pool.policy.workers = WorkerRange(1, 1)
    pool.run(20, cores=0)
    assert (pool.count, pool.draining) == (1, [])


def test_who_is_drained_because_somebody_said_so_goes_and_is_followed():
    pool = Simulation(WorkerRange(2, 2), finishes=False)
    pool.policy.drain(0, pool.now_s)
    pool.running.remove(0)
    pool.draining.append(0)
    pool.run(10, cores=0)
    assert (pool.running, pool.draining) == ([1, 2], [0])  # not taken back, and not hurried
    pool.finishes = True
    pool.run(2, cores=0)
    assert (pool.running, pool.draining) == ([1, 2], [])
