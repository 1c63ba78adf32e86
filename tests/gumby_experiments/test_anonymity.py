"""Tests the simulation of clients among hostile nodes: our rules expose few clients, the earlier rules all of them."""

import random
import statistics

import pytest

from tunnel_pool.gumby_experiments.anonymity import Placement, Rules, ask_for_rendezvous, entropy_bits, make_world, use


def clients_of(rules, placement, count=60):
    rng = random.Random(1)
    for _ in range(count):
        world = make_world(200, 0.1, placement, rng)
        yield use(rules, world, 3, days=30, circuits_a_day=8, rng=rng)


@pytest.mark.parametrize(("placement", "most"), [(Placement.SPREAD, 0.3), (Placement.ONE_NETWORK, 0.0)])
def test_few_clients_have_a_hostile_hop_at_both_ends_in_a_month(placement, most):
    """The expected share is 1 - 0.9**2 = 19 %: a tenth of the nodes is hostile, and there are two guards."""
    ours = list(clients_of(Rules.OURS, placement))
    assert statistics.mean(client.both_ends for client in ours) <= most
    assert max(client.first_hops for client in ours) <= 8
    assert statistics.mean(client.exit_bits for client in ours) > 4


def test_before_all_of_them_had():
    assert all(client.both_ends for client in clients_of(Rules.BEFORE, Placement.SPREAD, 20))


@pytest.mark.parametrize("hops", [2, 3])
def test_a_relay_that_asks_a_hidden_seeder_ten_thousand_times_finds_its_first_hop_only_as_a_guard(hops):
    rng = random.Random(2)
    world = make_world(200, 0.1, Placement.SPREAD, rng)
    found = [ask_for_rendezvous(Rules.OURS, world, hops, 10_000, rng) for _ in range(20)]
    strangers = [each for each in found if not each.is_guard]
    assert strangers
    assert all(each.until_found is None for each in strangers)
    before = [ask_for_rendezvous(Rules.BEFORE, world, hops, 10_000, rng).until_found for _ in range(200)]
    assert statistics.median(before) < 50


def test_entropy():
    assert entropy_bits([]) == entropy_bits([7]) == 0
    assert entropy_bits([1, 1, 1, 1]) == 2
