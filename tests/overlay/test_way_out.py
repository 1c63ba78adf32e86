"""Tests how a client that knows no exit, or whose provider drops packets to exits, gets out through relays."""

import asyncio
import math
import time
from collections import Counter

import pytest
from ipv8.keyvault.crypto import default_eccrypto
from ipv8.messaging.anonymization.tunnel import CIRCUIT_STATE_READY, PEER_FLAG_EXIT_BT, PEER_FLAG_RELAY

from tests.worlds.network import EXIT_FLAGS, address_of, make_config, network, opened, tunnels, until
from tunnel_pool.overlay.ground.lanes import Lane, detour_of, lane_of
from tunnel_pool.overlay.node_community import PEER_FLAG_EXIT_BACKUP
from tunnel_pool.overlay.paths.way_out import (
    DETOUR_AFTER_S,
    PROBE_S,
    TOLD_NONE_S,
    WayOut,
    in_order_of_trust,
    may_name_the_exit,
)

NOW_S = 1000.0
LATER_S = NOW_S + DETOUR_AFTER_S


def test_exits_have_a_while_to_be_met():
    way_out = WayOut()
    assert way_out.detour(1, LATER_S, exits_known=False) is None
    assert way_out.met(NOW_S)
    assert not way_out.met(NOW_S + 1)
    assert way_out.detour(1, LATER_S - 0.1, exits_known=False) is None
    assert [way_out.detour(hops, LATER_S, exits_known=False) for hops in (1, 2, 3)] == [1, 1, 0]
    assert way_out.detour(1, LATER_S, exits_known=True) == 0


def test_exits_that_do_not_answer_are_tried_directly_now_and_then():
    way_out = WayOut()
    way_out.asked(NOW_S)
    way_out.asked(NOW_S + 2)
    assert way_out.detour(1, LATER_S - 0.1, exits_known=True) == 0
    direct = [s for s in range(4, 3 * int(PROBE_S)) if way_out.detour(1, NOW_S + s, exits_known=True) == 0]
    assert direct == [PROBE_S, 2 * PROBE_S]
    assert way_out.detour(2, LATER_S, exits_known=True) == 0
    assert [way_out.is_news() for _ in range(2)] == [True, False]
    way_out.answered()
    assert way_out.detour(1, LATER_S, exits_known=True) == 0
    assert way_out.is_news()


def test_who_told_of_none_is_asked_for_none_for_a_while():
    way_out = WayOut()
    way_out.told_none(b"old", NOW_S)
    assert not way_out.may_tell(b"old", NOW_S + TOLD_NONE_S - 1)
    assert way_out.may_tell(b"old", NOW_S + TOLD_NONE_S)
    assert way_out.may_tell(b"new", NOW_S)


def test_no_guard_names_the_exit_of_a_circuit_that_was_to_have_two_hops():
    assert may_name_the_exit(path_hops=1, asked_hops=1)
    assert not may_name_the_exit(path_hops=1, asked_hops=2)
    assert may_name_the_exit(path_hops=2, asked_hops=2)
    assert may_name_the_exit(path_hops=2, asked_hops=3)


def test_who_tells_of_exits_has_no_say_while_others_are_known():
    silent = {b"a", b"b"}
    order = in_order_of_trust([b"a", b"b", b"c", b"d"], [b"e", b"b", b"d"], silent.__contains__)
    assert order == [b"c", b"d", b"e", b"a", b"b"]


def hide(node, is_hidden):
    """Let a node know none of these peers, whatever it meets."""
    heard, every = node.get_candidates, node.also_silent
    node.get_candidates = lambda *flags: [peer for peer in heard(*flags) if not is_hidden(peer)]
    node.also_silent = lambda *flags: [peer for peer in every(*flags) if not is_hidden(peer)]


def hide_exits(client):
    hide(client, lambda peer: PEER_FLAG_EXIT_BT in client.candidates[peer])


def forget_waiting(client):
    client.way_out = WayOut()
    client.way_out.met(time.monotonic() - DETOUR_AFTER_S)


@pytest.mark.parametrize("hops", [1, 2, 3])
async def test_circuits_go_out_by_exits_that_relays_tell_of(engine, hops):
    async with network(exits=2, relays=4) as nodes, tunnels("plain", map(address_of, nodes[2:])) as client:
        hide_exits(client)
        await until(lambda: len(client.get_candidates()) >= 4)
        forget_waiting(client)
        client.build_tunnels(hops)
        await until(lambda: client.find_circuits(hops=hops))
        (circuit, *_) = client.find_circuits(hops=hops)
        assert len(circuit.hops) == circuit.goal_hops == max(hops, min(hops + 1, 3))
        assert (lane_of(circuit), detour_of(circuit)) == (Lane(hops), circuit.goal_hops - hops)
        exits = {node.my_peer.public_key.key_to_bin() for node in nodes[:2]}
        assert circuit.hops[-1].public_key_bin in exits
        assert circuit.hops[0].public_key_bin not in exits


async def test_a_backup_exit_is_taken_when_no_other_one_answers(engine):
    backup = make_config(EXIT_FLAGS | {PEER_FLAG_EXIT_BACKUP})
    async with (
        network(exits=1) as (other,),
        opened(backup) as (reserve,),
        tunnels("plain", [address_of(other), address_of(reserve)]) as client,
    ):
        await until(lambda: len(client.candidates) == 2)
        assert client.get_candidates(PEER_FLAG_EXIT_BT) == [other.my_peer]
        assert len(client.get_candidates(PEER_FLAG_RELAY)) == 2
        client.suspects.add(other.my_peer.mid, time.monotonic())
        assert client.get_candidates(PEER_FLAG_EXIT_BT) == [reserve.my_peer]
        client.build_tunnels(1)
        await until(client.find_circuits)
        assert client.find_circuits()[0].hops[-1].public_key_bin == reserve.my_peer.public_key.key_to_bin()


class _Boasting:
    """Packs one key, `count` times, in place of the exits that a relay knows; a repetition says that exits follow."""

    def __init__(self, serializer, key, count):
        self._serializer = serializer
        self._named = [key] * (count + 2)

    def pack(self, kind, value, *more):
        return self._serializer.pack(kind, self._named if kind == "varlenH-list" else value, *more)

    def __getattr__(self, name):
        return getattr(self._serializer, name)


@pytest.mark.parametrize("told", ["ours", "of another kind", "cut short", "none"])
async def test_a_relay_that_tells_of_what_is_no_hop_gets_no_circuit(told):
    """The relay names the client's own key, one that hops can't have (py-ipv8's M2Crypto), part of a key, or none."""
    async with network(exits=0, relays=1) as (relay,), tunnels("plain", [address_of(relay)]) as client:
        await until(lambda: client.get_candidates(PEER_FLAG_RELAY))
        key = {
            "ours": client.my_peer.public_key.key_to_bin(),
            "of another kind": default_eccrypto.generate_key("very-low").pub().key_to_bin(),
            "cut short": relay.my_peer.public_key.key_to_bin()[:20],
            "none": b"",
        }[told]
        relay.serializer = _Boasting(relay.serializer, key, 1)
        forget_waiting(client)
        circuit = client.create_circuit(1)
        assert await asyncio.wait_for(circuit.ready, 30) is None
        assert len(circuit.hops) == 1
        assert circuit.unverified_hop is None
        assert not client.way_out.may_tell(relay.my_peer.public_key.key_to_bin(), time.monotonic())


async def test_a_relay_that_names_exits_of_its_own_gets_no_more_than_its_share():
    """One of four relays tells of its own exit alone, as often as a packet holds, and others of two each."""
    circuits, relays, share = 80, 4, 1 / 4
    async with (
        network(exits=2, relays=3) as nodes,
        opened(make_config(EXIT_FLAGS)) as (own_exit,),
        opened(make_config(bootstrap=[address_of(own_exit), *map(address_of, nodes)])) as (hostile,),
        tunnels("plain", [address_of(hostile), *map(address_of, nodes[2:])]) as client,
    ):
        hide_exits(client)
        its_key = own_exit.my_peer.public_key.key_to_bin()
        await until(lambda: len(client.get_candidates()) >= relays and own_exit.my_peer in hostile.candidates)
        hostile.serializer = _Boasting(hostile.serializer, its_key, 10)
        for node in nodes:
            hide(node, lambda peer: peer == own_exit.my_peer)
        forget_waiting(client)
        ends = Counter()
        for _ in range(circuits):
            circuit = client.create_circuit(1)
            await asyncio.wait_for(circuit.ready, 30)
            assert circuit.state == CIRCUIT_STATE_READY
            ends[circuit.hops[-1].public_key_bin == its_key] += 1
            await client.remove_circuit(circuit.circuit_id, remove_now=True)
        assert ends[True] <= circuits * share + 4 * math.sqrt(circuits * share * (1 - share))
        assert ends[True] > 0
