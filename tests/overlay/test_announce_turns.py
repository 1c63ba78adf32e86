"""Tests the order and the rate at which an introduction point announces seeders in the DHT."""

import asyncio
import itertools
import os

from tests.worlds.network import network, until
from tunnel_pool.overlay import discovery
from tunnel_pool.overlay.discovery import MAX_ANNOUNCE_PAUSE_S, QUESTIONS_OF_AN_ANNOUNCEMENT
from tunnel_pool.overlay.hidden_swarms.announce_turns import AnnounceTurns
from tunnel_pool.overlay.hidden_swarms.introduced import IntroducedSeeder


def test_new_ones_come_first_then_those_that_are_due_longest():
    turns = AnnounceTurns()
    assert turns.next_s() is None
    for key, due_s in (("later", 200.0), ("new", 0.0), ("soon", 100.0), ("newer", 0.0)):
        assert turns.add(key, due_s)
    assert not turns.add("soon", 5.0)  # it waits already
    assert turns.next_s() == 0.0
    assert [turns.take() for _ in range(4)] == ["new", "newer", "soon", "later"]
    assert turns.next_s() is None
    assert turns.add("new")


def seeder(number):
    return IntroducedSeeder(b"LibNaCLPK:" + os.urandom(64), number.to_bytes(20))


async def test_seeders_are_announced_one_after_another_while_they_are_introduced():
    announced = []
    async with network(exits=0, relays=2) as nodes:
        node = nodes[0]
        await until(node.dht_provider.dht_community.get_peers, what="the DHT")
        assert node.dht_provider.announce_pause_s == MAX_ANNOUNCE_PAUSE_S  # it knows one node, which is asked each time

        class Slow:
            announce_pause_s = 0.05

            async def announce(self, info_hash, point):
                announced.append((asyncio.get_running_loop().time(), info_hash))
                return True

        node.dht_provider = Slow()
        seeders = [seeder(number) for number in range(6)]
        for number, each in enumerate(seeders):
            assert node.introduced.add(number % 2, each)
            node.announce_seeder(each)
        await until(lambda: len(announced) == 3, what="some announcements")
        left = {each.info_hash for each in seeders[3:]} - {info_hash for _, info_hash in announced}
        node.introduced.remove(0)  # the circuit of every second one ends
        kept = {each.info_hash for each in seeders[1::2]}
        await until(lambda: {info_hash for _, info_hash in announced} >= kept, what="those that are left")
        await until(lambda: node._turns.next_s() > asyncio.get_running_loop().time() + 60, what="nobody else's turn")
        assert {info_hash for _, info_hash in announced[3:]} <= left & kept
        times = [time_s for time_s, _ in announced]
        assert all(later - earlier >= 0.04 for earlier, later in itertools.pairwise(times))


async def test_the_more_nodes_are_known_the_faster():
    async with network(exits=0, relays=8) as nodes:
        provider = nodes[0].dht_provider
        await until(lambda: len(provider.dht_community.get_peers()) >= 6, what="the DHT")
        await until(lambda: provider.announce_pause_s <= QUESTIONS_OF_AN_ANNOUNCEMENT / 6)
        assert provider.announce_pause_s >= QUESTIONS_OF_AN_ANNOUNCEMENT / 8


async def test_swarms_are_looked_up_one_after_another_when_they_are_introduced():
    """A look-up of all at once would be more than the DHT's nodes take of one, which they then are dead to."""
    looked_up = []
    async with network(exits=0, relays=2) as nodes:
        node = nodes[0]
        await until(node.dht_provider.dht_community.get_peers, what="the DHT")

        class Slow:
            announce_pause_s = 0.02

            async def announce(self, info_hash, point):
                return True

            async def lookup(self, info_hash):
                looked_up.append((asyncio.get_running_loop().time(), info_hash))

        node.dht_provider = Slow()
        seeders = [seeder(number) for number in range(5)]
        for each in seeders:
            node.introduced.add(1, each)
            node.announce_seeder(each)
        node.stop_announcing(seeders[1])
        await until(lambda: len(looked_up) == 4)
        assert [info_hash for _, info_hash in looked_up] == [each.info_hash for each in (seeders[0], *seeders[2:])]
        times = [time_s for time_s, _ in looked_up]
        assert all(later - earlier >= 0.07 for earlier, later in itertools.pairwise(times))


async def test_so_many_look_ups_are_made_for_others_as_nodes_can_answer():
    async with network(exits=0, relays=3) as nodes:
        provider = nodes[0].dht_provider
        await until(lambda: len(provider.dht_community.get_peers()) == 2)
        made = sum(provider._may_crawl() for _ in range(100))
        assert 1 <= made <= 3
        assert nodes[0].counters["dht_crawl_too_often"] == 100 - made


async def test_who_comes_and_goes_makes_no_endless_queue(monkeypatch):
    monkeypatch.setattr(discovery, "MAX_UNMET", 3)
    async with network(exits=0, relays=2) as nodes:
        node = nodes[0]
        await until(node.dht_provider.dht_community.get_peers, what="the DHT")
        asked = asyncio.Event()

        class Silent:
            announce_pause_s = 0.02

            async def announce(self, info_hash, point):
                return True

            async def lookup(self, info_hash):
                asked.set()
                await asyncio.Event().wait()

        node.dht_provider = Silent()
        node.announce_seeder(seeder(0))
        await asked.wait()
        for number in range(1, 20):
            node.announce_seeder(seeder(number))
            node.stop_announcing(seeder(number))
        assert len(node.ipv8._unmet) == 3
