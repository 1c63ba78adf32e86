"""Tests the choice of each hop of a circuit among a handful of nodes."""

import time
from collections import Counter

from ipv8.keyvault.crypto import default_eccrypto
from ipv8.messaging.anonymization.tunnel import CIRCUIT_TYPE_IP_SEEDER, PEER_FLAG_EXIT_BT, Circuit, Hop
from ipv8.peer import Peer

from tunnel_pool.overlay.ground.pacing import Recent
from tunnel_pool.overlay.paths.guards import GuardOrder
from tunnel_pool.overlay.paths.hop_choice import HopChoice


def relays(count):
    keys = [default_eccrypto.generate_key("curve25519").pub() for _ in range(count)]
    return [Peer(key, (f"44.{number}.0.1", 1)) for number, key in enumerate(keys)]


class Community:
    """The part of a tunnel community that HopChoice uses."""

    def __init__(self, peers, first, second):
        self._peers = peers
        keys = [[peer.public_key.key_to_bin() for peer in layer] for layer in (first, second)]
        self.guard_order = lambda: GuardOrder(*keys)
        self.counters = Counter()
        self.circuits = {}
        self.refusing = Recent[bytes](60.0)
        self.silent = set()

    def get_candidates(self, *flags):
        every = self.also_silent(*flags)
        return [peer for peer in every if peer not in self.silent] or every

    def also_silent(self, *flags):
        return [] if PEER_FLAG_EXIT_BT in flags else self._peers


def asked_for(first, end):
    """Return a circuit that others can ask for, of which the first hop is there."""
    circuit = Circuit(1, goal_hops=3, ctype=CIRCUIT_TYPE_IP_SEEDER, required_exit=end)
    circuit.add_hop(Hop(first))
    return circuit


def test_the_second_hop_of_what_others_ask_for_is_of_the_second_layer():
    peers = relays(9)
    choice = HopChoice(Community(peers, peers[:4], peers[4:8]), requires_diversity=False)
    for _ in range(20):
        found = choice.next_of(asked_for(peers[0], peers[5]))
        assert {node.key for node in found} == {peers[number].public_key.key_to_bin() for number in (4, 6, 7)}


def test_where_the_only_one_of_the_second_layer_is_the_end_another_node_is_taken():
    peers = relays(5)
    choice = HopChoice(Community(peers, peers[:4], peers[4:]), requires_diversity=False)
    found = choice.next_of(asked_for(peers[0], peers[4]))
    assert {node.key for node in found} == {peer.public_key.key_to_bin() for peer in peers[1:4]}


def test_who_refuses_to_introduce_us_is_asked_last():
    peers = relays(3)
    community = Community(peers, [], [])
    choice = HopChoice(community, requires_diversity=False)
    keys = [peer.public_key.key_to_bin() for peer in peers]
    assert {choice.introduction_point() for _ in range(100)} == set(peers)
    for key in keys[:2]:
        community.refusing.add(key, time.monotonic())
    assert {choice.introduction_point() for _ in range(20)} == {peers[2]}
    community.refusing.add(keys[2], time.monotonic())
    assert {choice.introduction_point() for _ in range(100)} == set(peers)


def test_who_was_silent_of_late_is_taken_where_a_circuit_needs_every_node():
    guard, other, end = peers = relays(3)
    community = Community(peers, [guard, other], [])
    choice = HopChoice(community, requires_diversity=False)
    community.silent = {other}
    assert choice.first(3, CIRCUIT_TYPE_IP_SEEDER, end) == [guard]
    assert [node.key for node in choice.next_of(asked_for(guard, end))] == [other.public_key.key_to_bin()]
    community.silent = {guard, other}
    assert choice.first(3, CIRCUIT_TYPE_IP_SEEDER, end) == [guard, other]


def test_who_was_silent_of_late_is_not_taken_while_there_are_others():
    peers = relays(4)
    community = Community(peers, peers[:3], [])
    community.silent = {peers[1]}
    choice = HopChoice(community, requires_diversity=False)
    for _ in range(20):
        assert choice.first(3, CIRCUIT_TYPE_IP_SEEDER, peers[3]) == [peers[0], peers[2]]
        (found,) = choice.next_of(asked_for(peers[0], peers[3]))
        assert found.key == peers[2].public_key.key_to_bin()
