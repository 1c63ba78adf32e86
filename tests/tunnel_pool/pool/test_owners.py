"""Tests the assignment of hidden swarms to children."""

from collections import Counter

from tunnel_pool.overlay.ground.lanes import Lane
from tunnel_pool.pool.owners import SwarmOwners

A, B, C = b"a" * 20, b"b" * 20, b"c" * 20


def lanes(*infohashes):
    return dict.fromkeys(infohashes, Lane(1))


def test_swarms_are_spread_and_stay():
    owners = SwarmOwners()
    assert owners.assign(lanes(A, B), [0, 1]) == {0, 1}
    assert owners.of == {A: 0, B: 1}
    assert owners.assign(lanes(A, B, C), [0, 1, 2]) == {2}
    assert owners.swarms_of(2) == [C]


def test_the_survivor_is_told_when_an_owner_is_gone():
    owners = SwarmOwners()
    owners.assign(lanes(A, B), [0, 1])
    assert owners.assign(lanes(A, B), [1]) == {1}
    assert owners.of == {A: 1, B: 1}


def test_without_children_swarms_wait():
    owners = SwarmOwners()
    assert owners.assign(lanes(A), []) == set()
    assert owners.of == {}
    assert owners.assign(lanes(A), [3]) == {3}


def test_given_back_both_are_told():
    owners = SwarmOwners()
    owners.assign(lanes(A, B), [1])
    assert owners.give([A], 0) == {0, 1}
    assert owners.of == {A: 0, B: 1}
    assert owners.give([A], 0) == set()
    assert owners.assign(lanes(A, B), [0, 1]) == set()


def test_a_few_swarms_are_spread_whatever_their_lane():
    owners = SwarmOwners()
    owners.assign({number.to_bytes(20): Lane(1) for number in range(32)}, range(4))
    assert Counter(owners.of.values()) == dict.fromkeys(range(4), 8)


def test_of_many_swarms_those_of_a_lane_are_together_and_each_child_has_as_many():
    owners = SwarmOwners()
    swarms = {number.to_bytes(20): Lane(1, number % 32) for number in range(2000)}
    for most in range(1, 2001, 97):  # they come one after another
        owners.assign(dict(list(swarms.items())[:most]), range(8))
    owners.assign(swarms, range(8))
    load = Counter(owners.of.values())
    assert max(load.values()) - min(load.values()) <= 32
    assert len({(swarms[infohash], slot) for infohash, slot in owners.of.items()}) <= 64
