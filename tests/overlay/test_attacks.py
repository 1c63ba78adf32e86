"""Tests attacks on real nodes by one hostile relay, one address or one packet. See docs/THREATS.md."""

import asyncio
import os
import socket
import time

import pytest
from ipv8.keyvault.crypto import default_eccrypto
from ipv8.messaging.anonymization.payload import CellPayload, CreatedPayload, CreatePayload, ExtendPayload
from ipv8.messaging.anonymization.tunnel import (
    CIRCUIT_TYPE_IP_SEEDER,
    CIRCUIT_TYPE_RP_SEEDER,
    FORWARD,
    PEER_FLAG_EXIT_BT,
    PEER_FLAG_RELAY,
    Circuit,
)
from ipv8.messaging.interfaces.udp.endpoint import DomainAddress, UDPv4Address
from ipv8.peer import Peer

from tests.worlds.network import (
    EXIT_FLAGS,
    RELAY_FLAGS,
    address_of,
    dht_like,
    make_config,
    network,
    opened,
    until,
    unused_host,
)
from tunnel_pool.overlay.ground.admission import Admission
from tunnel_pool.overlay.ground.config import NOWHERE
from tunnel_pool.overlay.paths.guards import Guards
from tunnel_pool.overlay.peers.introductions import MAX_PER_HOST

pytestmark = pytest.mark.usefixtures("engine")


def key_of(node):
    return node.my_peer.public_key.key_to_bin()


def new_peer(host=None):
    return Peer(default_eccrypto.generate_key("curve25519").pub(), UDPv4Address(host or unused_host(), 7000))


# The choice of hops


async def test_a_hostile_first_hop_does_not_choose_the_others():
    async with network(exits=2, relays=2) as honest, opened(make_config(EXIT_FLAGS, allow_private=True)) as (evil,):
        friends = [new_peer() for _ in range(4)]
        for friend in friends:  # whom it offers, and nobody else
            evil.candidates[friend] = [PEER_FLAG_RELAY, PEER_FLAG_EXIT_BT]
        evil.do_remove = evil.get_peer_for_introduction = lambda *args, **more: None
        known = [address_of(node) for node in (evil, *honest)]
        async with opened(make_config(frozenset(), known)) as (client,):
            await until(lambda: len(client.candidates) == 5)
            first = next(peer for peer in client.candidates if peer.public_key.key_to_bin() == key_of(evil))
            client.hop_choice.first = lambda *args: [first]
            circuit = client.create_circuit(3)
            assert await circuit.ready
            keys = [hop.public_key_bin for hop in circuit.hops]
            assert keys[0] == key_of(evil)
            assert set(keys[1:]) <= {key_of(node) for node in honest}
            assert keys[2] in {key_of(node) for node in honest[:2]}


async def test_hops_are_in_networks_of_their_own_while_there_is_a_choice():
    async with opened(make_config(frozenset(), requires_diversity=True)) as (client,):
        exit_ = new_peer("44.1.0.1")
        client.candidates[exit_] = [PEER_FLAG_RELAY, PEER_FLAG_EXIT_BT]
        client.candidates[new_peer("44.1.0.2")] = [PEER_FLAG_RELAY]
        assert client.hop_choice.first(2, "DATA", exit_) == []
        other = new_peer("44.2.0.1")
        client.candidates[other] = [PEER_FLAG_RELAY]
        assert client.hop_choice.first(2, "DATA", exit_) == [other]
        client.hop_choice.requires_diversity = False
        assert client.hop_choice.first(2, "DATA", exit_)[0] == other
        assert len(client.hop_choice.first(2, "DATA", exit_)) == 2
        client.candidates.clear()


@pytest.mark.parametrize("hops", [1, 2, 3])
async def test_however_often_a_hidden_seeder_is_asked_a_relay_is_next_to_its_first_hop_only_if_it_is_a_guard(hops):
    async with opened(make_config(frozenset())) as (seeder,):
        for _ in range(24):
            seeder.candidates[new_peer()] = [PEER_FLAG_RELAY]
        seeder.do_remove = lambda: None
        seeder._suspect_unverified = lambda circuit: None  # nobody answers here
        guards = Guards()
        seeder.use_guards(guards)
        infohash = os.urandom(20)
        seeder.join_swarm(infohash, hops, seeding=True)
        firsts, seconds = set(), set()
        for _ in range(200):
            circuit = seeder.create_circuit_for_infohash(infohash, CIRCUIT_TYPE_RP_SEEDER)
            firsts.add(circuit.unverified_hop.public_key_bin)
            if hops > 1:
                begun = Circuit(1, hops, CIRCUIT_TYPE_RP_SEEDER, circuit.required_exit)
                begun._hops = [circuit.unverified_hop]
                seconds.add(seeder.hop_choice.next_of(begun)[0].key)
            await seeder.remove_circuit(circuit.circuit_id, remove_now=True)
        order = seeder.guard_order()
        # At one hop, the rendezvous point itself is first, and one of the guards and their reserves.
        assert firsts <= set(order.first[:2])
        assert seconds <= set(order.second[:4])
        point = seeder.create_circuit_for_infohash(infohash, CIRCUIT_TYPE_IP_SEEDER)
        assert point.unverified_hop.public_key_bin in order.first
        seeder.leave_swarm(infohash)


async def test_guards_that_are_silent_for_a_moment_are_not_replaced_by_others():
    """Otherwise somebody who keeps a guard from answering would come to be one himself."""
    async with opened(make_config(frozenset())) as (client,):
        for _ in range(24):
            client.candidates[new_peer()] = [PEER_FLAG_RELAY]
        client.use_guards(Guards())
        before = client.guard_order()
        end, *others = [peer for peer in client.candidates if peer.public_key.key_to_bin() not in before.first]
        silent = [peer for peer in client.candidates if peer not in (end, *others)]
        for peer in silent:
            client.suspects.add(peer.mid, time.monotonic())
        assert client.guard_order().first == before.first
        assert set(client.hop_choice.first(2, "DATA", end)) == set(silent)
        client.suspects.clear(silent[-1].mid)
        assert client.hop_choice.first(2, "DATA", end) == [silent[-1]]
        client.candidates.clear()


async def test_a_relay_that_was_silent_comes_first_where_there_is_no_other():
    """A seeder that asked the only other node before that one was up was introduced nowhere for a long time."""
    async with (
        network(exits=1, relays=1) as (end, relay),
        opened(make_config(frozenset(), [address_of(end), address_of(relay)])) as (client,),
    ):
        await until(lambda: len(client.candidates) == 2)
        known = {peer.public_key.key_to_bin(): peer for peer in client.candidates}
        client.suspects.add(relay.my_peer.mid, time.monotonic())
        circuit = client.create_circuit(2, CIRCUIT_TYPE_IP_SEEDER, required_exit=known[key_of(end)])
        assert await circuit.ready
        assert [hop.public_key_bin for hop in circuit.hops] == [key_of(relay), key_of(end)]


# Whom a node takes in, and where


def signed_by(node, key, make):
    """Return what the node would send with another key."""
    own, node.my_peer = node.my_peer, Peer(key, node.my_peer.address)
    try:
        return make()
    finally:
        node.my_peer = own


async def test_one_address_does_not_fill_the_table(monkeypatch):
    monkeypatch.setattr("tunnel_pool.overlay.peers.introductions.MAX_PER_INNER_HOST", MAX_PER_HOST)
    async with network(exits=2, relays=3) as honest, opened(make_config(RELAY_FLAGS)) as (attacker,):
        known = [address_of(node) for node in honest]
        async with opened(make_config(frozenset(), known)) as (client,):
            await until(lambda: len(client.candidates) == 5)
            place = client.endpoint.get_address()
            for _ in range(61):
                key = default_eccrypto.generate_key("curve25519")
                packet = signed_by(attacker, key, lambda: attacker.create_introduction_request(UDPv4Address(*place)))
                attacker.endpoint.send(place, packet)
            await until(lambda: client.dropped()["introduction_refused"] >= 61 - MAX_PER_HOST - 1)
            here = [peer for peer in client.get_peers() if peer.address == attacker.endpoint.get_address()]
            assert len(here) <= MAX_PER_HOST
            # Who has not answered a question of ours is no candidate.
            assert {peer.public_key.key_to_bin() for peer in client.candidates} <= {key_of(node) for node in honest} | {
                key_of(attacker)
            }


async def test_a_signed_packet_that_is_sent_again_from_elsewhere_moves_nobody():
    async with network(exits=1) as (hop,), opened(make_config(frozenset(), [address_of(hop)])) as (client,):
        await until(lambda: client.candidates)
        circuit = client.create_circuit(1)
        assert await circuit.ready
        place, here = UDPv4Address(*client.endpoint.get_address()), tuple(hop.endpoint.get_address())
        attacker = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        attacker.bind((unused_host(), 0))
        recorded = [
            hop.create_introduction_request(place),
            hop.create_introduction_response(place, place, 7),
            hop.create_puncture(place, place, 7),
        ]
        for packet in recorded:
            attacker.sendto(packet, place)
        await until(lambda: client.dropped()["introduction_unasked"])
        client.send_data(circuit.hop.address, circuit.circuit_id, ("127.0.0.1", 9), NOWHERE, dht_like(b"x"))
        await asyncio.sleep(0.3)
        assert circuit.hop.address == here
        assert [peer.address for peer in client.candidates] == [here]
        # The attacker's address gets questions from the client, but no cells.
        assert all(packet[22] for packet in received_by(attacker))
        attacker.close()


def received_by(sock):
    packets = []
    try:
        while True:
            packets.append(sock.recv(2000, socket.MSG_DONTWAIT))
    except BlockingIOError:
        return packets


async def test_an_answer_that_nobody_asked_for_is_not_where_we_are():
    async with opened(make_config(RELAY_FLAGS), make_config(RELAY_FLAGS)) as (attacker, victim):
        before = victim.my_estimated_wan
        place = victim.endpoint.get_address()
        lie = UDPv4Address("44.66.66.66", 666)
        attacker.endpoint.send(place, attacker.create_introduction_response(lie, lie, 1))
        await until(lambda: victim.dropped()["introduction_unasked"])
        assert victim.my_estimated_wan == before
        # One answer that was asked for does not change our address either.
        victim.walk_to(UDPv4Address(*attacker.endpoint.get_address()))
        await until(victim.get_peers)
        victim._vote(victim.get_peers()[0], lie)
        assert victim.my_estimated_wan == before


# What others can make a node send


async def test_strangers_have_nobody_punctured():
    config = make_config(RELAY_FLAGS, allow_private=True)
    async with opened(make_config(RELAY_FLAGS), config) as (stranger, node):
        target = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        target.bind((unused_host(), 0))
        aim, place = UDPv4Address(*target.getsockname()), node.endpoint.get_address()
        request = stranger.create_puncture_request(aim, aim, 1)
        stranger.endpoint.send(place, request)
        await until(lambda: node.dropped()["puncture_refused"])
        # For a peer that answered us, a puncture is sent now and then, but to no address that we may not contact.
        node.walk_to(UDPv4Address(*stranger.endpoint.get_address()))
        await until(lambda: node.candidates)
        for _ in range(5):
            stranger.endpoint.send(place, request)
        await until(lambda: node.dropped()["puncture_too_often"] == 4)
        assert len(received_by(target)) == 1
        node.may_contact = lambda host, port: False
        stranger.endpoint.send(place, request)
        await until(lambda: node.dropped()["puncture_refused"] == 2)
        target.close()


async def test_introduced_addresses_and_those_of_extend_are_public():
    async with opened(make_config(RELAY_FLAGS, allow_private=False)) as (node,):
        peer = new_peer("44.1.2.3")
        for host in ("127.0.0.1", "10.0.0.1", "192.168.1.1", "169.254.169.254", "0.0.0.0", "224.0.0.1"):
            node.network.discover_address(peer, UDPv4Address(host, 80), node.community_id)
            extend = ExtendPayload(1, 1, b"key", b"", UDPv4Address(host, 80))
            message = node.get_prefix() + bytes([extend.msg_id]) + node.serializer.pack_serializable(extend)
            await node.on_extend(("44.1.2.3", 1), message, 1)
        assert node.network.get_walkable_addresses() == []
        assert node.dropped()["extend_address_refused"] == 6
        node.network.discover_address(peer, UDPv4Address("44.5.6.7", 80), node.community_id)
        assert node.network.get_walkable_addresses() == [("44.5.6.7", 80)]


async def test_who_is_no_exit_looks_up_no_names():
    async with (
        network(exits=0, relays=1) as (relay,),
        opened(make_config(frozenset(), [address_of(relay)])) as (client,),
    ):
        await until(lambda: client.candidates)
        (peer,) = client.candidates
        circuit = client.create_circuit(1, required_exit=peer)
        assert await circuit.ready
        message = relay.get_prefix() + b"\x0d" + bytes(50)
        client.send_data(circuit.hop.address, circuit.circuit_id, DomainAddress("name.example", 80), NOWHERE, message)
        await until(lambda: relay.dropped()["exit_name_refused"])


async def test_an_exit_does_not_reach_its_own_machine():
    async with opened(make_config(EXIT_FLAGS, allow_private=False)) as (exit_,):
        exit_.my_estimated_wan = UDPv4Address("44.3.3.3", 1)
        exit_.set_exit_rules(exit_._rules)
        for own in ("44.3.3.3", "127.0.0.1"):
            assert exit_.exit_rules.destination_refusal(own, 80) == "exit_network_denied"
        assert exit_.exit_rules.destination_refusal("44.3.3.4", 80) is None


@pytest.mark.parametrize("message_id", [CreatePayload.msg_id, CreatedPayload.msg_id])
async def test_a_flood_of_handshakes_or_their_answers_is_not_looked_at(message_id):
    admission = Admission(handshakes_per_s=50, handshakes_per_source_per_s=5)
    config = make_config(RELAY_FLAGS, allow_private=True, admission=admission)
    async with opened(config) as (relay,), network(exits=1) as (exit_,):
        looked_at = []
        relay.decode_map_private[message_id] = lambda source, data, circuit_id: looked_at.append(data)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.bind((unused_host(), 0))
            for _ in range(1000):
                cell = CellPayload(int.from_bytes(os.urandom(4), "big"), bytes([message_id]) + os.urandom(80), True)
                sock.sendto(cell.to_bin(relay.get_prefix()), address_of(relay))
                await asyncio.sleep(0)
        await until(lambda: relay.dropped()["handshakes_of_source"] + len(looked_at) >= 900)
        assert 1 <= len(looked_at) <= 30
        # What is under way is another matter: circuits are built beside it.
        relay.walk_to(address_of(exit_))
        await until(lambda: relay.candidates)
        circuit = relay.create_circuit(1)
        relay.decode_map_private[CreatedPayload.msg_id] = relay.on_created
        assert await circuit.ready


async def test_what_does_not_authenticate_keeps_no_relayed_circuit_alive():
    async with (
        network(exits=1, relays=1) as (exit_, relay),
        opened(make_config(frozenset(), [address_of(exit_), address_of(relay)])) as (client,),
    ):
        await until(lambda: len(client.candidates) == 2)
        client.build_tunnels(2)
        await until(lambda: client.find_circuits(hops=2))
        routes = relay.relay_from_to.values()
        forward = [number for number, route in relay.relay_from_to.items() if route.direction == FORWARD]
        refused = ("cell_not_decrypted", "cell_replayed", "packet_failed")  # by what raises, and by its counter

        async def active_after_forgeries():
            relay.crypto_endpoint.update_statistics()
            for route in routes:
                route.last_activity = 1.0
            before = sum(relay.dropped()[name] for name in refused)
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
                for number in forward * 20:
                    cell = CellPayload(number, os.urandom(200), False)
                    sock.sendto(cell.to_bin(relay.get_prefix()), address_of(relay))
            await until(lambda: sum(relay.dropped()[name] for name in refused) >= before + len(forward) * 20)
            relay.crypto_endpoint.update_statistics()
            return any(route.last_activity != 1.0 for route in routes)

        # The client's own cells keep its circuits alive: one round in which none of them came is enough.
        rounds = [await active_after_forgeries() for _ in range(5)]
        assert not all(rounds)


async def test_a_guess_does_not_end_anothers_extend():
    async with (
        network(exits=1, relays=1) as (exit_, relay),
        opened(make_config(frozenset(), [address_of(exit_), address_of(relay)])) as (client,),
    ):
        await until(lambda: len(client.candidates) == 2)
        asked = []
        relay.send_cell, send = lambda to, payload: asked.append(payload), relay.send_cell
        first = next(peer for peer in client.candidates if peer.public_key.key_to_bin() == key_of(relay))
        last = next(peer for peer in client.candidates if peer != first)
        client.hop_choice.first = lambda *args: [first]
        relay.send_cell = send
        circuit = client.create_circuit(2, required_exit=last)
        # As soon as the relay has asked the exit, somebody else answers.
        caches = relay.request_cache._identifiers
        relay.send_cell = lambda to, payload: None if isinstance(payload, CreatePayload) else send(to, payload)
        await until(lambda: any(cache.name == "create" for cache in caches.values()))
        (request,) = (cache for cache in caches.values() if cache.name == "create")
        forged = CreatedPayload(request.to_circuit_id, request.number, os.urandom(32), os.urandom(32), b"")
        message = relay.get_prefix() + bytes([forged.msg_id]) + relay.serializer.pack_serializable(forged)
        relay.on_created((unused_host(), 1), message, request.to_circuit_id)
        assert relay.dropped()["created_by_another"] == 1
        assert request.number in {cache.number for cache in caches.values() if cache.name == "create"}
        relay.send_cell = send
        await client.remove_circuit(circuit.circuit_id, remove_now=True)
