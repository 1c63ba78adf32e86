"""Tests the choice of the child that carries a new stream."""

from collections import Counter

import pytest
from ipv8.messaging.anonymization.tunnel import Circuit

from tunnel_pool.overlay.ground.config import SLOT_SHIFT, slot_of
from tunnel_pool.overlay.ground.lanes import Lane
from tunnel_pool.pooled.stream_placement import UNTOLD_S, StreamPlacement
from tunnel_pool.rpc.sync import StreamsState

LANE = Lane(1)


def circuits_of(slot, streams):
    """Return a child's circuits with so many open streams each."""
    made = []
    for number, count in enumerate(streams):
        circuit = Circuit(slot << SLOT_SHIFT | number + 1, 1)
        circuit.streams = StreamsState(are_spoken=True, open=count)
        made.append(circuit)
    return made


def placed(placement, count, lane=LANE, *, able, circuits=None, now_s=10.0):
    """Place streams at one time, and return how many each slot got."""
    return Counter(placement.choose(lane, able, circuits or able, now_s) for _ in range(count))


def test_a_burst_is_spread_before_the_children_tell_of_it():
    able = [*circuits_of(0, [0, 0]), *circuits_of(1, [0, 0])]
    assert placed(StreamPlacement(), 40, able=able) == {0: 20, 1: 20}


def test_streams_of_isolated_clients_go_to_the_child_with_the_fewest_of_all():
    placement, lanes = StreamPlacement(), [Lane(1, group) for group in range(1, 7)]
    made = {lane: [*circuits_of(0, [0] * 4), *circuits_of(1, [0] * 4)] for lane in lanes}
    every = [circuit for circuits in made.values() for circuit in circuits]
    given = sum((placed(placement, 1, lane, able=made[lane], circuits=every) for lane in lanes), Counter())
    assert given == {0: 3, 1: 3}


def test_a_child_with_more_circuits_of_the_lane_gets_more():
    able = [*circuits_of(0, [0]), *circuits_of(1, [0] * 9)]
    assert placed(StreamPlacement(), 100, able=able)[1] == pytest.approx(90, abs=10)


def test_what_the_children_tell_of_counts_and_is_not_counted_twice():
    able = [*circuits_of(0, [5, 5]), *circuits_of(1, [0, 0])]
    placement = StreamPlacement()
    assert placed(placement, 10, able=able) == {1: 10}
    told = [*circuits_of(0, [5, 5]), *circuits_of(1, [5, 5])]
    assert placed(placement, 10, able=told, now_s=10.1 + UNTOLD_S) == {0: 5, 1: 5}


def test_only_able_circuits_children_are_chosen():
    able, other = circuits_of(0, [7]), circuits_of(1, [0])
    assert placed(StreamPlacement(), 3, able=able, circuits=[*able, *other]) == {0: 3}
    with pytest.raises(IndexError):
        StreamPlacement().choose(LANE, [], other, 0.0)
    assert slot_of(able[0].circuit_id) == 0
