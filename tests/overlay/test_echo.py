"""Tests that no answer triggers its request again: two nodes fall silent, even if they have no room for each other."""

import asyncio
import random
from collections import Counter

import pytest
from ipv8.keyvault.crypto import default_eccrypto
from ipv8.messaging.interfaces.udp.endpoint import UDPv4Address
from ipv8.peer import Peer

from tests.worlds.network import RELAY_FLAGS, address_of, make_config, opened
from tunnel_pool.overlay.hidden_swarms.introduced import IntroducedSeeder
from tunnel_pool.overlay.peers import introductions, questions
from tunnel_pool.overlay.peers.questions import PAUSE_S, PROVOKED_AT_ONCE, Answer, Questions

A, B = ("192.0.2.1", 1), ("192.0.2.2", 2)
QUIET_S = 0.5


class Wire:
    """Counts what each of two nodes sends to the other, and what it sends to itself, by message id."""

    def __init__(self, *nodes):
        self.sent = {address_of(node): Counter() for node in nodes}
        self.to_itself = 0
        for node in nodes:
            node.endpoint.send = self._counting(node, node.endpoint.send)

    def _counting(self, node, send):
        def counted(to, packet):
            self.sent[address_of(node)][packet[:23]] += 1
            self.to_itself += tuple(to) == tuple(address_of(node))
            send(to, packet)

        return counted

    @property
    def total(self):
        return sum(counts.total() for counts in self.sent.values())

    async def comes_to_rest(self, most):
        """Wait until nothing was sent for a moment; fail once there were more than `most` datagrams."""
        before = -1
        while self.total != before:
            before = self.total
            assert before <= most, self.sent
            await asyncio.sleep(QUIET_S)


@pytest.fixture
def full(monkeypatch):
    """Leave no node room for another."""
    monkeypatch.setattr(introductions, "MAX_PER_INNER_HOST", 0)


async def quieten(*nodes):
    """Have nodes do nothing by themselves; each has the overlay of a swarm's introduction points, too."""
    for node in nodes:
        node.announce_seeder(IntroducedSeeder(b"s" * 74, bytes(20)))
        for busy in (node.ipv8, *node.ipv8.overlays):
            await asyncio.gather(*busy.cancel_all_pending_tasks(), return_exceptions=True)


async def test_one_forged_request_sets_no_two_full_nodes_on_each_other(full):
    async with opened(make_config(RELAY_FLAGS), make_config(RELAY_FLAGS)) as (one, other):
        await quieten(one, other)
        wire = Wire(one, other)
        for overlay, forged in zip(other.ipv8.overlays, one.ipv8.overlays, strict=True):
            packet = overlay.create_introduction_request(UDPv4Address(*address_of(one)))
            forged.endpoint.notify_listeners((UDPv4Address(*address_of(other)), packet))
        await wire.comes_to_rest(most=4 * len(one.ipv8.overlays))


async def test_a_node_asks_itself_nothing():
    async with opened(make_config(RELAY_FLAGS)) as (node,):
        wire = Wire(node)
        place = UDPv4Address(*address_of(node))
        node.walk_to(place)
        node.endpoint.notify_listeners((place, node.create_introduction_request(place)))
        stranger = Peer(default_eccrypto.generate_key("curve25519"), place)
        own, node.my_peer = node.my_peer, stranger
        packet = node.create_introduction_request(place)
        node.my_peer = own
        node.endpoint.notify_listeners((place, packet))
        await asyncio.sleep(QUIET_S)
        assert wire.to_itself == 0


@pytest.mark.parametrize("room", ["full", "empty"])
async def test_whatever_message_comes_in_the_others_name_both_come_to_rest(room, request):
    """Each message id of each overlay is sent once, with a body that is short, or random, or of a real message."""
    if room == "full":
        request.getfixturevalue("full")
    dice = random.Random(7)
    async with opened(make_config(RELAY_FLAGS), make_config(RELAY_FLAGS)) as (one, other):
        await quieten(one, other)
        wire = Wire(one, other)
        place, source = UDPv4Address(*address_of(one)), UDPv4Address(*address_of(other))
        caused = 0
        for overlay in other.ipv8.overlays:
            whole = [
                overlay.create_introduction_request(place),
                overlay.create_introduction_response(place, place, 7),
                overlay.create_puncture_request(source, source, 7),
                overlay.create_puncture(place, place, 7),
            ]
            made = [overlay.get_prefix() + bytes([number]) + dice.randbytes(40) for number in range(256)]
            for packet in whole + made:
                one.endpoint.notify_listeners((source, packet))
                caused += 1
        await wire.comes_to_rest(most=4 * 2 * len(one.ipv8.overlays) + 16)
        assert caused > 256


def test_an_address_is_asked_once_in_a_while():
    asked = Questions()
    assert asked.may_ask(A, 0.0)
    asked.ask(A, 1, 0.0)
    assert not asked.may_ask(A, PAUSE_S - 0.1)
    assert asked.may_ask(A, PAUSE_S)
    assert asked.may_ask(B, 0.0)


def test_a_question_that_comes_back_shows_that_we_asked_ourselves():
    asked = Questions()
    asked.ask(A, 1, 0.0)
    asked.came_back(A, 2, 1.0)  # somebody else's number: nothing follows
    assert asked.may_ask(A, PAUSE_S)
    asked.came_back(A, 1, 1.0)
    assert not asked.may_ask(A, PAUSE_S)
    assert asked.may_ask(A, questions.OWN_ADDRESS_S + 2.0)


def test_strangers_make_us_ask_so_many_a_second():
    asked = Questions()
    allowed = sum(asked.may_be_made_to_ask(("192.0.2.1", number), 100.0) for number in range(1, 1000))
    assert PROVOKED_AT_ONCE <= allowed <= PROVOKED_AT_ONCE + 1


def test_who_has_not_answered_yet_is_answered_once_for_a_question():
    asked = Questions()
    assert not asked.may_answer_early(A, 0.0)
    asked.ask(A, 1, 0.0)
    assert asked.may_answer_early(A, 0.1)
    assert not asked.may_answer_early(A, 0.2)


def test_each_question_has_one_answer_and_guesses_end_them():
    asked = Questions()
    asked.ask(A, 1, 0.0)
    assert asked.answered(A, 1, 1.0) is Answer.ASKED
    assert asked.answered(A, 1, 1.0) is Answer.UNASKED
    asked.ask(B, 1, 0.0)
    judged = [asked.answered(B, guess, 1.0) for guess in range(2, 2 + questions.MAX_WRONG_ANSWERS + 1)]
    assert judged[-1] is Answer.GUESSED
    assert asked.answered(B, 1, 1.0) is Answer.UNASKED
    assert asked.answered(A, 9, 100.0) is Answer.UNASKED


def test_what_is_remembered_is_bounded():
    asked = Questions()
    for number in range(3 * questions.MAX_WAITING):
        asked.ask(("192.0.2.1", number), 1, 0.0)
        asked.answered(("192.0.2.9", number), 1, 0.0)
    assert len(asked._waiting) <= questions.MAX_WAITING
    assert len(asked._guessed) <= questions.MAX_GUESSED + 1
