"""Who takes part in which hidden swarm."""

from tunnel_pool.pool.owners import SwarmOwners

A, B, C = b"a" * 20, b"b" * 20, b"c" * 20


def test_swarms_are_spread_and_stay():
    owners = SwarmOwners()
    assert owners.assign([A, B], [0, 1]) == {0, 1}
    assert owners.of == {A: 0, B: 1}
    assert owners.assign([A, B, C], [0, 1, 2]) == {2}
    assert owners.swarms_of(2) == [C]


def test_the_survivor_is_told_when_an_owner_is_gone():
    owners = SwarmOwners()
    owners.assign([A, B], [0, 1])
    assert owners.assign([A, B], [1]) == {1}
    assert owners.of == {A: 1, B: 1}


def test_without_children_swarms_wait():
    owners = SwarmOwners()
    assert owners.assign([A], []) == set()
    assert owners.of == {}
    assert owners.assign([A], [3]) == {3}


def test_given_back_both_are_told():
    owners = SwarmOwners()
    owners.assign([A, B], [1])
    assert owners.give([A], 0) == {0, 1}
    assert owners.of == {A: 0, B: 1}
    assert owners.give([A], 0) == set()
    assert owners.assign([A, B], [0, 1]) == set()
