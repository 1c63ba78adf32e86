"""Tests which exits are chosen more often, by how well they served and by the kinds of traffic that they carry."""

import random
import time
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ipv8.keyvault.crypto import default_eccrypto
from ipv8.messaging.anonymization.tunnel import PEER_FLAG_EXIT_BT, Circuit, Hop
from ipv8.peer import Peer

from tests.worlds.network import address_of, network, tunnels, until
from tunnel_pool.overlay.clients.outgoing import OutgoingCircuits
from tunnel_pool.overlay.ground.lanes import Lane, set_group
from tunnel_pool.overlay.ground.path import Node, rank
from tunnel_pool.overlay.ground.streams import PEER_FLAG_EXIT_IPV6, PEER_FLAG_EXIT_STREAMS
from tunnel_pool.overlay.paths.exit_scores import HALF_LIFE_S, LEAST, MAX_EXITS, NEWCOMER, TOGETHER_S, ExitScores
from tunnel_pool.overlay.paths.hop_choice import HopChoice
from tunnel_pool.socks5.address import encode_address
from tunnel_pool.tunnels import _restore_scores

A, B, C = (bytes([number]) * 20 for number in range(3))
NOW_S = 1e9
ONE_HOP = Lane(1)


def scored(*heard):
    scores = ExitScores()
    for at_s, (mid, answered) in enumerate(heard):
        scores.heard(mid, answered, NOW_S + at_s)
    return scores


def test_who_answers_is_chosen_more_often_and_who_does_not_less_but_never_never():
    scores = scored(*[(B, False), (A, True)] * 5)
    assert scores.weight(A, NOW_S) > 0.8
    assert scores.weight(B, NOW_S) == LEAST
    assert scores.weight(C, NOW_S) == NEWCOMER
    scores.heard(B, True, NOW_S + 10)
    assert scores.weight(B, NOW_S) > 10 * LEAST


def test_nobody_is_blamed_while_nobody_answers():
    scores = scored((A, False), (B, False), (A, False))
    assert scores.weight(A, NOW_S) == scores.weight(B, NOW_S) == NEWCOMER
    scores.heard(C, True, NOW_S + 10)
    assert scores.weight(A, NOW_S) < NEWCOMER
    scores.heard(C, False, NOW_S + 11)
    scores.heard(C, True, NOW_S + 12)
    assert scores.weight(C, NOW_S) > NEWCOMER, "its own answer makes up for it"
    late = scored((A, False))
    late.heard(C, True, NOW_S + TOGETHER_S + 1)
    assert late.weight(A, NOW_S) == NEWCOMER


def test_scores_are_forgotten_in_time():
    scores = scored((A, True), (B, False), (A, True))
    assert set(scores.known(NOW_S)) == {A, B}
    later_s = NOW_S + HALF_LIFE_S
    assert NEWCOMER < scores.weight(A, later_s) < scores.weight(A, NOW_S)
    assert scores.known(NOW_S + 20 * HALF_LIFE_S) == {}


def test_scores_outlive_a_restart_and_no_file_upsets_them():
    scores, again = scored((A, True), (B, False), (A, True)), ExitScores()
    again.restore(scores.encode(), NOW_S + 10)
    for mid in (A, B, C):
        assert again.weight(mid, NOW_S + 10) == pytest.approx(scores.weight(mid, NOW_S + 10), abs=0.001)
    for bad in (b"", b"[]", b"{}", b'{"exits": [[1]]}', b'{"exits": [["zz", 1, 1]]}', b'{"exits": 7}', b"\xff"):
        with pytest.raises(ValueError, match="no scores"):
            ExitScores().restore(bad, NOW_S)
    of_the_future = ExitScores()
    of_the_future.restore(b'{"exits": [["%s", 1, 9e18], ["00", 1, 1]]}' % A.hex().encode(), NOW_S)
    assert of_the_future.known(NOW_S + HALF_LIFE_S) == {A: 0.75}


@given(st.lists(st.tuples(st.integers(0, 2 * MAX_EXITS), st.booleans()), max_size=600))
def test_whatever_is_heard_weights_keep_their_bounds_and_few_are_kept(heard):
    scores = ExitScores()
    for number, answered in heard:
        mid = number.to_bytes(20, "big")
        scores.heard(mid, answered, NOW_S)
        assert LEAST <= scores.weight(mid, NOW_S) <= 1
    assert len(scores.known(NOW_S)) <= MAX_EXITS


def test_one_of_twice_the_weight_comes_first_twice_as_often():
    nodes = [Node(b"a", "44.1.0.1"), Node(b"b", "44.2.0.1")]
    rng, first = random.Random(1), Counter()
    for _ in range(10_000):
        first[rank(nodes, [], rng, weight=lambda node: 2.0 if node.key == b"a" else 1.0).nodes[0].key] += 1
    assert 1.8 < first[b"a"] / first[b"b"] < 2.2


def peers(count):
    keys = [default_eccrypto.generate_key("curve25519").pub() for _ in range(count)]
    return [Peer(key, (f"44.{number}.0.1", 1)) for number, key in enumerate(keys)]


class Community:
    """The part of a tunnel community that the choice of exits uses: exits and their flags."""

    def __init__(self, flags):
        self.candidates = {
            peer: [PEER_FLAG_EXIT_BT, *more] for peer, more in zip(peers(len(flags)), flags, strict=True)
        }
        self.circuits = {}
        self.counters = Counter()
        self.guard_order = lambda: None

    def get_candidates(self, *flags):
        return list(self.candidates)

    also_silent = get_candidates

    def build(self, peer, lane=ONE_HOP, is_ready=True):
        circuit = Circuit(len(self.circuits) + 1, goal_hops=lane.hops)
        set_group(circuit, lane.group)
        hop = Hop(peer, flags=self.candidates[peer])
        if is_ready:
            circuit.add_hop(hop)
        else:
            circuit.unverified_hop = hop
        self.circuits[circuit.circuit_id] = circuit
        return circuit


def chosen_by(choose, of, count=3000):
    """Return the share of each of these in what is chosen."""
    seen = Counter(choose() for _ in range(count))
    return [seen[each] / count for each in of]


@pytest.mark.parametrize("is_ready", [True, False])
def test_exits_that_carry_what_a_lane_lacks_are_chosen_more_often_and_the_third_circuit_leads_there(is_ready):
    community = Community([[], [], [PEER_FLAG_EXIT_STREAMS], [PEER_FLAG_EXIT_IPV6]])
    choice = HopChoice(community, requires_diversity=False)
    plain, another, with_streams, with_ipv6 = exits = list(community.candidates)
    assert chosen_by(lambda: choice.only(Lane(1)), exits) == pytest.approx([1 / 6, 1 / 6, 1 / 2, 1 / 6], abs=0.05)
    community.build(plain, is_ready=is_ready)
    community.build(another, is_ready=is_ready)
    assert chosen_by(lambda: choice.only(Lane(1)), [with_streams]) == pytest.approx([1.0], abs=0.01)
    assert chosen_by(lambda: choice.only(Lane(1, 7)), [with_streams]) == pytest.approx([0.5], abs=0.05)
    community.build(with_streams, is_ready=is_ready)
    assert chosen_by(lambda: choice.only(Lane(1)), [with_ipv6]) == pytest.approx([1.0], abs=0.01)
    community.build(with_ipv6, is_ready=is_ready)
    assert chosen_by(lambda: choice.only(Lane(1)), exits) == pytest.approx([0.25] * 4, abs=0.05)


def test_who_says_that_he_carries_everything_is_not_chosen_more_often_than_for_one_of_these():
    community = Community([[PEER_FLAG_EXIT_STREAMS, PEER_FLAG_EXIT_IPV6], [PEER_FLAG_EXIT_STREAMS], [], []])
    choice = HopChoice(community, requires_diversity=False)
    shares = chosen_by(lambda: choice.only(Lane(1)), community.candidates)
    assert shares == pytest.approx([3 / 8, 3 / 8, 1 / 8, 1 / 8], abs=0.05)


def test_the_last_of_several_hops_is_chosen_so_as_well_and_those_before_it_do_not_count():
    community = Community([[PEER_FLAG_EXIT_STREAMS], [], [], [PEER_FLAG_EXIT_STREAMS]])
    choice = HopChoice(community, requires_diversity=False)
    guard, plain, another, special = community.candidates
    circuit = Circuit(9, goal_hops=2)
    circuit.add_hop(Hop(guard, flags=community.candidates[guard]))
    community.circuits[9] = circuit
    begun = Circuit(8, goal_hops=2)
    begun.add_hop(Hop(guard, flags=community.candidates[guard]))
    community.circuits[8] = begun
    keys = [peer.public_key.key_to_bin() for peer in (plain, another, special)]
    shares = chosen_by(lambda: choice.next_of(circuit)[0].key, keys)
    assert shares == pytest.approx([0.2, 0.2, 0.6], abs=0.05)
    community.build(plain, Lane(2))
    assert chosen_by(lambda: choice.next_of(circuit)[0].key, keys, 100) == [0, 0, 1]
    assert len(choice.next_of(circuit)) == 3, "the others are left for when it does not answer"


def test_an_exit_in_another_network_comes_before_one_that_carries_more():
    community = Community([[], [], [PEER_FLAG_EXIT_STREAMS]])
    first, other, near = community.candidates
    near.address = ("44.0.7.7", 1)
    circuit = Circuit(9, goal_hops=2)
    circuit.add_hop(Hop(first))
    community.circuits[9] = circuit
    found = HopChoice(community, requires_diversity=False).next_of(circuit)
    assert [node.key for node in found] == [peer.public_key.key_to_bin() for peer in (other, near)]


def test_dead_exits_are_hardly_chosen_any_more():
    community = Community([[]] * 10)
    choice = HopChoice(community, requires_diversity=False)
    dead = list(community.candidates)[:5]
    for _ in range(5):
        for peer in community.candidates:  # those that are dead come first
            choice.scores.heard(peer.mid, peer not in dead, time.time())
    chosen = Counter(choice.only(Lane(1)) in dead for _ in range(2000))
    assert chosen[True] < 0.1 * chosen[False]


def test_ipv6_peers_are_met_over_exits_that_reach_them_where_there_are_any():
    community = Community([[], [PEER_FLAG_EXIT_IPV6]])
    plain, with_ipv6 = (community.build(peer) for peer in community.candidates)
    community.circuits_for_new_peers = lambda hops, group: [plain, with_ipv6]
    outgoing = OutgoingCircuits(community, Lane(1))
    met = [outgoing.choose(encode_address(f"2001:db8::{number:x}", 6881)).circuit for number in range(1, 20)]
    assert set(map(id, met)) == {id(with_ipv6)}
    met = [outgoing.choose(encode_address(f"9.9.9.{number}", 6881)).circuit for number in range(1, 40)]
    assert set(map(id, met)) == {id(plain), id(with_ipv6)}
    community.circuits_for_new_peers = lambda hops, group: [plain]
    assert OutgoingCircuits(community, Lane(1)).choose(encode_address("2001:db8::1", 6881)).circuit is plain


async def test_circuits_tell_whether_exits_serve_us(engine):
    async with network(exits=2) as nodes, tunnels("plain", map(address_of, nodes)) as client:
        heard = []
        client.on_exit_heard = lambda mid, answered: heard.append((mid, answered))
        await until(lambda: len(client.candidates) == 2)
        circuit = client.create_circuit(1)
        await until(client.find_circuits)
        mid = circuit.hops[-1].mid
        client.crypto_endpoint.update_statistics = lambda circuit_id=None: None
        for heard_in_all in (1, 1):
            circuit.bytes_down += 10_000
            client.look_after_circuits()
            assert heard == [(mid, True)] * heard_in_all
        assert client.exit_scores.weight(mid, time.time()) > NEWCOMER
        gone = Circuit(7, goal_hops=1)
        gone.unverified_hop = Hop(nodes[0].my_peer)
        client._suspect_unverified(gone)
        assert len(heard) == 1, "it had no time to answer"
        gone.creation_time -= 10
        client._suspect_unverified(gone)
        assert heard[1:] == [(nodes[0].my_peer.mid, False)]


def test_an_unreadable_file_of_scores_is_a_warning(tmp_path, caplog):
    options = type("Options", (), {"state_dir": tmp_path, "community_id": bytes(20)})
    _restore_scores(ExitScores(), options)
    assert not caplog.records
    (tmp_path / "exit-scores-00000000.json").write_bytes(b"{")
    _restore_scores(ExitScores(), options)
    assert "can't be read" in caplog.text
