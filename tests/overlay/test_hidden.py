"""Tests hidden services between communities in this process, over real sockets: rendezvous and refusals."""

import asyncio
import time
from contextlib import asynccontextmanager

import pytest
from ipv8.keyvault.crypto import default_eccrypto
from ipv8.messaging.anonymization.hidden_services import HiddenTunnelCommunity
from ipv8.messaging.anonymization.payload import CreateE2EPayload, PeersRequestPayload
from ipv8.messaging.anonymization.tunnel import (
    CIRCUIT_TYPE_IP_SEEDER,
    CIRCUIT_TYPE_RP_DOWNLOADER,
    CIRCUIT_TYPE_RP_SEEDER,
    PEER_FLAG_RELAY,
    PEER_SOURCE_DHT,
    IntroductionPoint,
)
from ipv8.peer import Peer

from tests.worlds.marks import ENGINES_PYTHON_SLOW
from tests.worlds.network import address_of, make_config, network, until
from tunnel_pool.overlay.ground.end_to_end import end_to_end_address, is_linked
from tunnel_pool.overlay.ground.lanes import Lane
from tunnel_pool.overlay.hidden_swarms.services import WatchedSwarm
from tunnel_pool.overlay.hidden_swarms.swarm_circuits import CIRCUIT_TYPE_LOOKUP
from tunnel_pool.overlay.node import open_overlay
from tunnel_pool.overlay.paths.guards import GuardOrder
from tunnel_pool.overlay.peers.introductions import CarefulIntroductions

INFOHASH = b"h" * 20
pytestmark = [pytest.mark.usefixtures("engine"), ENGINES_PYTHON_SLOW]


@asynccontextmanager
async def relays(number):
    async with network(exits=0, relays=number) as nodes:
        await until(lambda: all(node.dht_provider.dht_community.get_peers() for node in nodes), what="the DHT")
        yield nodes


@asynccontextmanager
async def member(nodes, **more):
    community = await open_overlay(
        make_config(frozenset(), [address_of(node) for node in nodes], allow_private=True, **more)
    )
    try:
        yield community
    finally:
        await community.unload()


def linked(community, ctype):
    return [circuit for circuit in community.find_circuits(ctype) if is_linked(circuit)]


@pytest.mark.parametrize("hops", [1, pytest.param(2, marks=pytest.mark.slow)])
async def test_seeder_and_downloader_meet_without_an_exit(hops):
    received = {}
    async with relays(2 + hops) as nodes, member(nodes) as seeder, member(nodes) as downloader:
        seeder.on_raw_data = lambda circuit, origin, data: received.setdefault("seeder", (circuit, origin, data))
        downloader.on_raw_data = lambda circuit, origin, data: received.setdefault(
            "downloader", (circuit, origin, data)
        )
        addresses = []
        seeder.watch([WatchedSwarm(INFOHASH, hops, True)])
        downloader.join_swarm(INFOHASH, hops, addresses.append, seeding=False)
        await until(lambda: addresses, 60, "the link")
        (circuit,) = linked(downloader, CIRCUIT_TYPE_RP_DOWNLOADER)
        (other,) = linked(seeder, CIRCUIT_TYPE_RP_SEEDER)
        assert addresses == [end_to_end_address(circuit)]
        assert (len(circuit.hops), len(other.hops)) == (hops + 1, hops)
        downloader.send_data(circuit.hop.address, circuit.circuit_id, ("0.0.0.0", 0), ("0.0.0.0", 0), b"hello")
        await until(lambda: "seeder" in received)
        at, origin, data = received["seeder"]
        assert (at, origin, data) == (other, end_to_end_address(other), b"hello")
        # Data that looks like an overlay message is handed over as data of the other end, too.
        answer = seeder.get_prefix() + b"\x0dhello"
        seeder.send_data(other.hop.address, other.circuit_id, ("0.0.0.0", 0), ("0.0.0.0", 0), answer)
        await until(lambda: "downloader" in received)
        assert received["downloader"] == (circuit, addresses[0], answer)
        assert not seeder.find_circuits()
        assert not downloader.find_circuits()


async def test_a_swarm_that_is_left_has_no_circuits():
    async with relays(3) as nodes, member(nodes) as seeder:
        seeder.watch([WatchedSwarm(INFOHASH, 1, True)])
        await until(lambda: seeder.find_circuits(CIRCUIT_TYPE_IP_SEEDER), what="an introduction point")
        await until(lambda: sum(len(node.intro_point_for) for node in nodes) == 1)
        seeder.watch([])
        await until(lambda: not seeder.find_circuits(CIRCUIT_TYPE_IP_SEEDER, state=None))
        await until(lambda: not any(node.intro_point_for for node in nodes), what="the node to forget")


async def test_a_swarm_has_one_introduction_point_whoever_asks_for_it():
    """The host program's request may come while the automatic introduction point is being made, or afterwards."""
    async with relays(3) as nodes, member(nodes) as seeder:
        await until(lambda: len(seeder.candidates) == 3, what="the relays")
        seeder.watch([WatchedSwarm(INFOHASH, 1, True)])
        await asyncio.gather(*(seeder.create_introduction_point(INFOHASH) for _ in range(2)))
        (circuit,) = seeder.find_circuits(CIRCUIT_TYPE_IP_SEEDER, state=None)
        (point,) = await until(lambda: [node for node in nodes if node.intro_point_for])
        await seeder.create_introduction_point(INFOHASH)
        assert seeder.find_circuits(CIRCUIT_TYPE_IP_SEEDER, state=None) == [circuit]
        (other,) = [peer for peer in seeder.candidates if peer not in (point.my_peer, circuit.hop.peer)]
        await seeder.create_introduction_point(INFOHASH, required_ip=other)
        assert len(seeder.find_circuits(CIRCUIT_TYPE_IP_SEEDER)) == 2


@pytest.mark.slow
async def test_a_lost_introduction_point_is_replaced():
    async with relays(4) as nodes, member(nodes) as seeder:
        seeder.watch([WatchedSwarm(INFOHASH, 1, True)])
        (point,) = await until(lambda: [node for node in nodes if node.intro_point_for])
        await point.unload()
        await until(lambda: any(node.intro_point_for for node in nodes if node is not point), 30, "another one")


async def test_whoever_is_at_the_end_of_a_circuit_of_ours_learns_nothing_by_asking():
    """A hop sends requests back to the seeder that built the circuit, which must neither answer nor act on them."""
    async with relays(3) as nodes, member(nodes) as seeder:
        seeder.watch([WatchedSwarm(INFOHASH, 1, True)])
        (lookup,) = await until(lambda: seeder.find_circuits(CIRCUIT_TYPE_LOOKUP), what="a circuit to ask over")
        await until(lambda: any(node.intro_point_for for node in nodes))
        end = next(node for node in nodes if lookup.circuit_id in node.exit_sockets)
        behind = end.exit_sockets[lookup.circuit_id]
        key = seeder.swarms[INFOHASH].seeder_sk.pub().key_to_bin()
        create = CreateE2EPayload(1, INFOHASH, key, b"x" * 32)
        end.tunnel_data(behind, ("9.9.9.9", 9), create)
        await until(lambda: seeder.dropped()["circuit_overlay_message_refused"] == 1)
        end.send_cell(behind.hop.address, PeersRequestPayload(lookup.circuit_id, 1, INFOHASH))
        await until(lambda: seeder.dropped()["circuit_overlay_message_refused"] == 2)
        assert not seeder.find_circuits(CIRCUIT_TYPE_RP_SEEDER, state=None)


async def test_what_leaves_our_circuits_does_not_name_them(monkeypatch):
    """An id would reveal the first hop, which answers a CREATE with an id in use differently from other relays."""
    heard, on_packet = [], CarefulIntroductions.on_packet
    monkeypatch.setattr(
        CarefulIntroductions, "on_packet", lambda node, packet: heard.append(packet[1]) or on_packet(node, packet)
    )
    async with relays(3) as nodes, member(nodes) as seeder, member(nodes) as downloader:
        seeder.watch([WatchedSwarm(INFOHASH, 1, True)])
        downloader.watch([WatchedSwarm(INFOHASH, 1, False)])
        await until(lambda: linked(downloader, CIRCUIT_TYPE_RP_DOWNLOADER), 60, "the link")
        points = downloader.swarms[INFOHASH].intro_points
        found = [await downloader.send_peers_request(INFOHASH, point, 1) for point in points for _ in range(3)]
        assert any(found)
        ids = [circuit_id.to_bytes(4, "big") for circuit_id in downloader.circuits]
    from_circuits = [packet for packet in heard if packet[22] in (PeersRequestPayload.msg_id, CreateE2EPayload.msg_id)]
    assert {packet[22] for packet in from_circuits} == {PeersRequestPayload.msg_id, CreateE2EPayload.msg_id}
    assert not any(circuit_id in packet for circuit_id in ids for packet in from_circuits)


async def test_an_introduction_point_asks_for_its_own_swarm_only():
    async with relays(3) as nodes, member(nodes) as seeder:
        seeder.watch([WatchedSwarm(INFOHASH, 1, True), WatchedSwarm(b"i" * 20, 1, True)])
        (circuit,) = await until(
            lambda: [c for c in seeder.find_circuits(CIRCUIT_TYPE_IP_SEEDER) if c.info_hash == INFOHASH]
        )
        point = next(node for node in nodes if node.my_peer.mid == circuit.hops[-1].mid)
        behind = await until(
            lambda: [known for known, infohash in point.intro_point_for.values() if infohash == INFOHASH]
        )
        create = CreateE2EPayload(1, b"i" * 20, seeder.swarms[b"i" * 20].seeder_sk.pub().key_to_bin(), b"x" * 32)
        point.tunnel_data(behind[0], ("9.9.9.9", 9), create)
        await until(lambda: seeder.dropped()["create_e2e_refused"] == 1)


async def test_a_relay_that_is_no_exit_lets_messages_of_hidden_services_out_and_no_others():
    async with relays(2) as nodes, member(nodes) as client:
        await until(lambda: client.get_candidates(1))
        circuit = await until(
            lambda: client.create_circuit(1, CIRCUIT_TYPE_LOOKUP, required_exit=client.get_candidates(1)[0])
        )
        assert await circuit.ready
        end = next(node for node in nodes if circuit.circuit_id in node.exit_sockets)
        other = next(node for node in nodes if node is not end)
        for message_id in (13, 14, 17, 18):
            packet = client.get_prefix() + bytes([message_id]) + b"x" * 30
            client.send_data(circuit.hop.address, circuit.circuit_id, address_of(other), ("0.0.0.0", 0), packet)
        await until(lambda: end.exit_sockets[circuit.circuit_id].enabled)
        for packet in (b"d1:y1:qe", client.get_prefix() + b"\xf6" + b"x" * 30, client.get_prefix()):
            client.send_data(circuit.hop.address, circuit.circuit_id, address_of(other), ("0.0.0.0", 0), packet)
        await until(lambda: end.dropped()["exit_content_refused"] == 3)


async def test_a_look_up_over_several_hops_ends_at_no_guard_while_there_are_others():
    async with relays(2) as nodes, member(nodes) as downloader:
        await until(lambda: len(downloader.get_candidates(PEER_FLAG_RELAY)) == 2)
        guard, other = downloader.get_candidates(PEER_FLAG_RELAY)
        downloader.guard_order = lambda: GuardOrder([guard.public_key.key_to_bin()], [])
        circuits = [downloader.swarm_keeper.create_lookup_circuit(Lane(2)) for _ in range(8)]
        assert {circuit.required_exit for circuit in circuits} == {other}


@pytest.mark.slow
async def test_look_ups_that_find_nobody_become_rare():
    async with relays(2) as nodes, member(nodes) as downloader:
        downloader.watch([WatchedSwarm(INFOHASH, 1, False)])
        await until(lambda: downloader.swarms[INFOHASH].last_lookup, what="a look-up")
        swarm = downloader.swarms[INFOHASH]
        await until(lambda: not downloader.is_pending_task_active(f"look up {INFOHASH.hex()}"))
        assert not downloader.swarm_keeper.is_lookup_due(swarm)
        swarm.last_lookup = time.time() - 6
        assert downloader.swarm_keeper.is_lookup_due(swarm)
        await until(lambda: time.time() - swarm.last_lookup < 5)
        swarm.last_lookup = time.time() - 6
        assert not downloader.swarm_keeper.is_lookup_due(swarm)


@pytest.mark.slow
async def test_a_seeder_that_does_not_answer_is_asked_over_another_circuit(monkeypatch):
    """The end of a circuit may look up well, and yet nothing comes back by it."""
    monkeypatch.setattr("tunnel_pool.overlay.hidden_swarms.keeper.ANSWER_TIMEOUT_S", 0.2)
    monkeypatch.setattr("tunnel_pool.overlay.hidden_swarms.keeper.LOOKUP_RETRY_S", 0.5)
    async with relays(3) as nodes, member(nodes) as seeder, member(nodes) as downloader:
        seeder.watch([WatchedSwarm(INFOHASH, 1, True)])
        heard = asyncio.Event()

        async def keep_silent(*arguments):
            heard.set()

        seeder.decode_map_private[CreateE2EPayload.msg_id] = keep_silent
        downloader.watch([WatchedSwarm(INFOHASH, 1, False)])
        await asyncio.wait_for(heard.wait(), 30)
        (first,) = downloader.find_circuits(CIRCUIT_TYPE_LOOKUP)
        await until(
            lambda: (
                {circuit.circuit_id for circuit in downloader.find_circuits(CIRCUIT_TYPE_LOOKUP)} - {first.circuit_id}
            )
        )
        assert first.circuit_id not in downloader.circuits


@pytest.mark.slow
async def test_a_seeder_is_found_by_another_introduction_point_than_one_that_is_gone(monkeypatch):
    """The DHT names a point for a day, whether it is still there or not."""
    monkeypatch.setattr("tunnel_pool.overlay.hidden_swarms.keeper.ANSWER_TIMEOUT_S", 0.5)
    monkeypatch.setattr("tunnel_pool.overlay.hidden_swarms.keeper.LOOKUP_RETRY_S", 0.5)
    async with relays(3) as nodes, member(nodes) as seeder, member(nodes) as downloader:
        seeder.watch([WatchedSwarm(INFOHASH, 1, True)])
        await until(lambda: any(node.intro_point_for for node in nodes), 30, "the introduction point")
        seeder_key = seeder.swarms[INFOHASH].seeder_sk.pub().key_to_bin()
        key = default_eccrypto.generate_key("curve25519").pub()
        gone = IntroductionPoint(Peer(key, ("127.0.0.1", 9)), seeder_key, PEER_SOURCE_DHT)
        downloader.watch([WatchedSwarm(INFOHASH, 1, False)])
        downloader.swarms[INFOHASH].add_intro_point(gone)
        asked = []
        ask = downloader.tunnel_data

        def tunnel_data(circuit, destination, payload):
            if isinstance(payload, CreateE2EPayload):
                asked.append(destination)
            ask(circuit, destination, payload)

        downloader.tunnel_data = tunnel_data
        await until(lambda: linked(downloader, CIRCUIT_TYPE_RP_DOWNLOADER), 30, "the link")
        assert asked[0] == gone.peer.address
        assert asked[-1] != gone.peer.address


async def test_a_rendezvous_that_does_not_come_about_is_tried_elsewhere(monkeypatch):
    async with relays(3) as nodes, member(nodes) as seeder:
        seeder.watch([WatchedSwarm(INFOHASH, 1, True)])
        await until(lambda: seeder.find_circuits(CIRCUIT_TYPE_LOOKUP), 30, "relays that are known")
        tried = []
        create = HiddenTunnelCommunity.create_rendezvous_point

        async def fail_once(self, info_hash):
            tried.append(info_hash)
            return await create(self, info_hash) if len(tried) > 1 else None

        monkeypatch.setattr(HiddenTunnelCommunity, "create_rendezvous_point", fail_once)
        point = await seeder.create_rendezvous_point(INFOHASH)
        assert (await point.ready).circuit.circuit_id in seeder.circuits
        assert tried == [INFOHASH] * 2


async def test_swarms_are_tended_by_one_loop_that_ends_with_the_last(monkeypatch):
    async with network(exits=0, relays=1) as (node,):
        tended = []
        monkeypatch.setattr(node.swarm_keeper, "_step", lambda: tended.append(time.monotonic()))
        for _ in range(6):
            for seeding in (False, True):
                node.watch([])
                node.watch([WatchedSwarm(b"w" * 20, 1, seeding)])
                await asyncio.sleep(0)
        await until(lambda: len(tended) >= 2)
        assert tended[-1] - tended[-2] > 0.9
        node.watch([])
        await until(lambda: not node.is_pending_task_active("keep swarms"))
