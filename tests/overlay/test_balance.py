"""Tests that a node keeps exits and other peers in the golden ratio, over simulated meetings."""

import random

import pytest

from tunnel_pool.overlay.peers.balance import SHARE_OF_OTHERS, TARGET_PEERS, WANTED_EXITS, surplus, wants_more


def peers(exits, others):
    return {("exit", n) for n in range(exits)}, {("other", n) for n in range(others)}


@pytest.mark.parametrize(
    ("exits", "others", "wants"),
    [
        (0, 0, True),
        (0, 60, True),
        (WANTED_EXITS, TARGET_PEERS - WANTED_EXITS - 1, True),
        (11, 13, False),
        (30, 0, False),
    ],
)
def test_it_looks_for_peers_while_they_or_exits_are_few(exits, others, wants):
    assert wants_more(*peers(exits, others)) is wants


@pytest.mark.parametrize(
    ("exits", "others", "kind"),
    [
        (0, 24, None),
        (24, 0, None),
        (0, 25, "other"),
        (25, 0, "exit"),
        (14, 18, None),
        (15, 18, "exit"),
        (14, 19, "other"),
    ],
)
def test_one_is_too_many_of_the_kind_that_outweighs(exits, others, kind):
    assert {of for of, _ in surplus(*peers(exits, others))} == ({kind} if kind else set())


@pytest.mark.parametrize("exits_in_network", [0.05, 0.3, 0.5, 0.9])
def test_in_a_large_network_it_comes_to_the_ratio_and_stays_near_the_target(exits_in_network):
    draw = random.Random(5)
    exits, others = set(), set()
    for number in range(5000):
        (exits if draw.random() < exits_in_network else others).add(number)
        while too_many := surplus(exits, others):
            gone = draw.choice(sorted(too_many))
            exits.discard(gone)
            others.discard(gone)
    assert TARGET_PEERS - 1 <= len(exits) + len(others) <= TARGET_PEERS + 16
    assert abs(len(others) / (len(exits) + len(others)) - SHARE_OF_OTHERS) < 0.06
