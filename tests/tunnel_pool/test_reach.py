"""When there are circuits enough to begin with."""

import pytest

from tunnel_pool import reach
from tunnel_pool.reach import ANSWER_S, GATHER_S, Reach


class Way:
    """The tunnels and the dispatcher; circuits are numbers: so many are wanted."""

    hops = 2

    def __init__(self, wanted, is_associated=True):
        self.circuits = []
        self.is_associated = is_associated
        self._wanted = wanted

    def find_circuits(self, hops):
        assert hops == self.hops
        return self.circuits

    def tunnels_ready(self, hops):
        return len(self.circuits) / self._wanted


def way_and_reach(wanted):
    """libtorrent is associated, and knows."""
    way = Way(wanted)
    there = Reach(way, way)
    assert not there.is_ready()
    return way, there


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(reach.time, "monotonic", lambda: now[0])
    return now


def test_all_that_are_wanted_are_enough_at_once(clock):
    way, there = way_and_reach(wanted=2)
    clock[0] += ANSWER_S
    way.circuits = [1, 2]
    assert there.is_ready()
    assert there.first_s == clock[0]


def test_a_first_circuit_waits_a_moment_for_the_others(clock):
    way, there = way_and_reach(wanted=2)
    clock[0] += ANSWER_S
    way.circuits = [1]
    assert not there.is_ready()
    clock[0] += 0.9 * GATHER_S
    assert not there.is_ready()
    clock[0] += 0.2 * GATHER_S
    assert there.is_ready()
    way.circuits = [1, 2]
    way.circuits.pop()  # one that dies later is not waited for
    assert there.is_ready()


def test_it_begins_anew_when_all_are_gone(clock):
    way, there = way_and_reach(wanted=2)
    clock[0] += ANSWER_S
    way.circuits = [1, 2]
    assert there.is_ready()
    way.circuits = []
    assert not there.is_ready()
    assert there.first_s is None
    clock[0] += 10
    way.circuits = [3]
    assert not there.is_ready()


def test_libtorrent_must_have_had_its_association_and_know_it(clock):
    way = Way(wanted=1, is_associated=False)
    there = Reach(way, way)
    way.circuits = [1]
    assert not there.is_ready()
    clock[0] += 10
    assert not there.is_ready()
    way.is_associated = True
    assert not there.is_ready()
    clock[0] += ANSWER_S
    assert there.is_ready()
    way.is_associated = False  # what runs goes on, and libtorrent opens another
    assert there.is_ready()
