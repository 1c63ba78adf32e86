"""Tests the choice of hops and guards, and the votes on a node's own address, without I/O."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunnel_pool.overlay.ground.networks import network_of
from tunnel_pool.overlay.ground.path import Node, in_order, rank, without_conflicts
from tunnel_pool.overlay.paths.guards import ABSENT_S, DAY_S, FIRST_LAYER, MAX_SAMPLED, RESERVES, Guards
from tunnel_pool.overlay.peers.own_address import AddressVotes


def nodes(count, network="44.{}.0.1"):
    hosts = (network.format(number % 250).replace("44", str(44 + number // 250), 1) for number in range(count))
    return [Node(b"key %d" % number, host) for number, host in enumerate(hosts)]


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("44.1.2.3", "44.1.0.0/16"),
        ("2a00:1450:4001::1", "2a00:1450::/32"),
        ("::ffff:44.1.2.3", "44.1.0.0/16"),
        ("127.0.0.1", "127.0.0.1"),
        ("10.1.2.3", "10.1.2.3"),
    ],
)
def test_networks(host, network):
    assert network_of(host) == network


addresses = st.sampled_from([f"44.{high}.0.{low}" for high in range(4) for low in range(4)])
some_nodes = st.lists(st.builds(Node, st.binary(min_size=1, max_size=2), addresses), max_size=12)


@given(some_nodes, some_nodes, st.integers())
def test_a_ranking_has_all_others_once_and_those_of_other_networks_first(candidates, path, seed):
    for ranked in (rank(candidates, path, random.Random(seed)), without_conflicts(candidates, path)):
        networks = {network_of(node.host) for node in path}
        keys = {node.key for node in path}
        assert sorted(ranked.nodes) == sorted(node for node in candidates if node.key not in keys)
        assert all(network_of(node.host) not in networks for node in ranked.nodes[: ranked.diverse])
        assert all(network_of(node.host) in networks for node in ranked.nodes[ranked.diverse :])


def test_every_candidate_has_the_same_chance():
    rng, seen = random.Random(1), [0] * 10
    for _ in range(10_000):
        seen[nodes(10).index(rank(nodes(10), [], rng).nodes[0])] += 1
    assert min(seen) > 850


def test_an_order_is_kept():
    assert in_order([b"key 2", b"gone", b"key 0"], nodes(3)) == [nodes(3)[2], nodes(3)[0]]


# Guards


def test_guards_stay_for_weeks_and_whoever_comes():
    guards, relays = Guards(random.Random(2)), nodes(30)
    first = guards.choose(relays, 0.0).first
    assert len(first) == FIRST_LAYER.count + RESERVES
    for day in range(1, 30):
        more = [*relays, *(Node(b"evil %d" % number, f"45.{day}.0.{number}") for number in range(200))]
        assert guards.choose(more, day * DAY_S).first == first
    assert guards.choose(relays, 61 * DAY_S).first != first


def test_a_guard_that_is_gone_is_replaced_by_a_reserve_and_comes_back():
    guards, relays = Guards(random.Random(3)), nodes(30)
    order = guards.choose(relays, 0.0)
    first = order.first
    assert order.primary == 2
    without = [node for node in relays if node.key != first[0]]
    fewer = guards.choose(without, 60.0)
    assert (fewer.first[:3], fewer.primary) == (first[1:], 1)  # reserves are not used while one is there
    assert guards.choose(relays, 120.0).first[0] == first[0]
    # Not for ever.
    assert first[0] not in guards.choose(without, 120.0 + ABSENT_S).first
    assert first[0] not in guards.choose(relays, 180.0 + ABSENT_S).first[:2]


def test_who_makes_guards_seem_gone_does_not_have_all_nodes_tried():
    guards, relays = Guards(random.Random(4)), nodes(500)
    met = set()
    for minute in range(50):
        met |= set(guards.choose(relays, 60.0 * minute).first)
        relays = [node for node in relays if node.key not in met]
    assert len(met) == MAX_SAMPLED
    assert guards.choose(relays, 3000.0).first == []
    assert guards.choose(relays, 3000.0 + 3600.0).first != []


def test_guards_are_in_networks_of_their_own():
    relays = [*nodes(50, "44.1.0.{}"), *nodes(3, "45.{}.0.1"), Node(b"last", "46.0.0.1")]
    guards = Guards(random.Random(5))
    first = guards.choose(relays, 0.0).first
    assert len({network_of(node.host) for node in relays if node.key in first}) == len(first)


def test_the_second_layer_is_of_others_and_changes_sooner():
    guards, relays = Guards(random.Random(6)), nodes(30)
    order = guards.choose(relays, 0.0)
    assert set(order.first).isdisjoint(order.second)
    later = guards.choose(relays, 13 * DAY_S)
    assert later.first == order.first
    assert later.second != order.second


def test_guards_outlive_a_restart_and_no_file_upsets_them():
    guards, relays = Guards(random.Random(7)), nodes(30)
    order, again = guards.choose(relays, 0.0), Guards(random.Random(8))
    again.restore(guards.encode())
    assert again.choose(relays, 1.0) == order
    for wrong in (b"", b"{}", b"[]", b'{"first": [1], "second": []}', guards.encode()[:-9], b'{"first": 1}'):
        with pytest.raises(ValueError):
            again.restore(wrong)


# Where we are


def test_the_first_answer_is_taken_and_then_the_networks_decide():
    votes, lie, us = AddressVotes(), ("44.6.6.6", 6), ("44.1.1.1", 1)
    assert votes.vote("a", us, ("0.0.0.0", 0)) == us
    for _ in range(100):
        assert votes.vote("evil", lie, us) == us
    assert votes.vote("b", us, us) == us
    assert votes.vote("evil too", lie, us) == us  # two against two
    # When most say so, we have moved.
    assert votes.vote("a", lie, us) == lie


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(1, 3)), max_size=200))
def test_votes_are_bounded(said):
    votes, current = AddressVotes(), ("0.0.0.0", 0)
    for network, port in said:
        current = votes.vote(str(network), ("44.1.1.1", port), current)
    assert len(votes._votes) <= 32
