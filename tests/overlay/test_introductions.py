"""Tests which nodes get a place among a node's peers, and for how long."""

import itertools
import socket

import pytest
from ipv8.messaging.interfaces.udp.endpoint import UDPv4Address

from tests.worlds.network import address_of, make_config, network, opened, until, unused_host
from tunnel_pool.overlay.peers.introductions import MAX_PER_HOST
from tunnel_pool.overlay.peers.questions import MAX_WRONG_ANSWERS


@pytest.fixture
def as_of_the_internet(monkeypatch):
    """Give loopback addresses as many places as addresses of the internet have."""
    monkeypatch.setattr("tunnel_pool.overlay.peers.introductions.MAX_PER_INNER_HOST", MAX_PER_HOST)


async def test_who_was_restarted_often_is_taken_in_again_and_who_is_there_stays(monkeypatch, as_of_the_internet):
    """Each start uses a new key, and the old keys hold the places of the address until they are found silent."""
    monkeypatch.setattr("tunnel_pool.overlay.peers.introductions.DOUBTED_S", 0.3)
    monkeypatch.setattr("tunnel_pool.overlay.discovery.FEW_PEERS_INTERVAL_S", 0.1)
    host = unused_host()
    async with network(exits=1) as (exit_,):
        known = [address_of(exit_)]
        async with opened(make_config(frozenset(), known, host=host)) as (living,):
            await until(lambda: living.candidates)
            for _ in range(MAX_PER_HOST + 1):
                async with opened(make_config(frozenset(), known, host=host)) as (client,):
                    await until(lambda client=client: client.candidates, what="an answer of the exit")
                async with opened(make_config(frozenset(), known, host=host)) as (client,):
                    await until(lambda: client.my_peer in exit_.get_peers(), what="a place")
                assert living.my_peer in exit_.get_peers()
            assert exit_.dropped()["introduction_replaced"] >= 1


async def test_what_a_question_is_numbered_cannot_be_counted_on():
    async with opened(make_config()) as (node,):
        place = UDPv4Address("127.9.9.9", 9)
        for _ in range(10):
            node.create_introduction_request(place)
        numbers = list(node._questions._waiting[place])
        steps = {(after - before) % 65536 for before, after in itertools.pairwise(numbers)}
        assert len(steps) >= 8


async def test_who_guesses_the_number_of_a_question_to_somebody_else_is_not_heard():
    """The liar's answers come from the victim's address, and guess the number of the question."""
    async with opened(make_config(), make_config()) as (node, liar):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as victim:
            victim.bind((unused_host(), 0))
            place = UDPv4Address(*victim.getsockname())
            node.walk_to(place)
            (number,) = node._questions._waiting[place]
            here = UDPv4Address(*address_of(node))
            wrong = [(number + step) % 65536 for step in range(1, MAX_WRONG_ANSWERS + 2)]
            for guess in [*wrong, number]:
                answer = liar.create_introduction_response(here, here, guess)
                victim.sendto(answer, here)
            await until(lambda: node.dropped()["introduction_unasked"] == len(wrong) + 1)
            assert node.dropped()["introduction_guessed"] == 1
            assert not node.get_peers()


async def test_many_behind_one_address_use_a_node_that_keeps_few_of_them(as_of_the_internet):
    host = unused_host()
    async with network(exits=1) as (exit_,):
        clients = [make_config(frozenset(), [address_of(exit_)], host=host) for _ in range(3 * MAX_PER_HOST)]
        async with opened(*clients) as opened_clients:
            for client in opened_clients:
                await until(lambda client=client: client.candidates, what="an answer of the exit")
                circuit = client.create_circuit(1)
                assert await circuit.ready
            assert sum(peer.address[0] == host for peer in exit_.get_peers()) == MAX_PER_HOST
