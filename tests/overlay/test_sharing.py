"""Tests one child of a node whose children share a port: its circuit ids, lost buckets, and lent keys."""

import os
from contextlib import asynccontextmanager

import pytest
from ipv8.keyvault.crypto import default_eccrypto
from ipv8.messaging.anonymization.payload import LinkE2EPayload
from ipv8.messaging.anonymization.tunnel import PEER_FLAG_RELAY
from ipv8.peer import Peer

from tests.worlds.network import RELAY_FLAGS, make_config, until
from tunnel_pool.overlay.node import open_overlay, open_sharing
from tunnel_pool.overlay.wire.session_keys import LENT_COUNTER
from tunnel_pool.overlay.wire.udp import bind_udp
from tunnel_pool.steering.cells import bucket_of

pytestmark = pytest.mark.usefixtures("engine")


class Main:
    """Stands in for the main process: records the halves of rendezvous, and finds no child that has the cookie."""

    def __init__(self):
        self.halves = []

    async def link_rendezvous(self, cookie, half):
        self.halves.append(half)


@asynccontextmanager
async def child_with_a_circuit(main):
    """Yield a child, a client, and the id of the client's circuit that ends at the child."""
    config = make_config(RELAY_FLAGS)
    child = await open_sharing(config, bind_udp(*config.listen), range(256), main)
    client = await open_overlay(make_config(frozenset()))
    try:
        peer = Peer(child.my_peer.public_key, child.endpoint.get_address())
        client.network.add_verified_peer(peer)
        client.candidates[peer] = [PEER_FLAG_RELAY]
        circuit = client.create_circuit(1, required_exit=peer)
        assert await circuit.ready
        yield child, client, circuit.circuit_id
    finally:
        await client.unload()
        await child.unload()


async def test_keys_are_lent_once_whatever_is_asked():
    main = Main()
    async with child_with_a_circuit(main) as (child, client, circuit_id):
        for number in range(3):
            payload = LinkE2EPayload(circuit_id, number, os.urandom(20))
            client.send_cell(child.endpoint.get_address(), payload)
        await until(lambda: child.dropped()["link_refused"] == 3)
        (half,) = main.halves
        assert half.circuit_id == circuit_id
        assert half.keys.salt_explicit_backward == LENT_COUNTER
        assert circuit_id in child.exit_sockets


async def test_on_its_way_out_a_child_keeps_what_it_has_and_begins_nothing():
    async with child_with_a_circuit(Main()) as (child, client, circuit_id):
        assert child.own_buckets([]) == [circuit_id]
        assert child.create_circuit(1) is None
        await child.on_extend(client.endpoint.get_address(), b"", circuit_id)
        assert child.dropped()["extend_without_buckets"] == 1
        (peer,) = await until(lambda: client.candidates)
        refused = client.create_circuit(1, required_exit=peer)
        await until(lambda: child.dropped()["create_of_another_bucket"] >= 1)
        assert refused.circuit_id not in child.exit_sockets
        assert circuit_id in child.exit_sockets


async def test_what_the_main_process_waits_for_is_said_at_once():
    said = []
    async with child_with_a_circuit(Main()) as (child, client, _):
        child.on_changed = client.on_changed = lambda: said.append(1)
        child.meet({}, [], True)
        assert len(said) == 0
        child.meet({Peer(client.my_peer.public_key, client.endpoint.get_address()): [PEER_FLAG_RELAY]}, [], True)
        assert len(said) == 1
        child.meet({Peer(default_eccrypto.generate_key("curve25519").pub()): [PEER_FLAG_RELAY]}, [], False)
        assert len(said) == 1
        (peer,) = await until(lambda: client.candidates)
        circuit = client.create_circuit(1, required_exit=peer)
        assert len(said) == 2
        assert await circuit.ready
        await until(lambda: len(said) == 3)


async def test_live_circuits_of_lost_buckets_are_named():
    async with child_with_a_circuit(Main()) as (child, _, circuit_id):
        bucket = bucket_of(circuit_id)
        assert child.own_buckets([bucket]) == []
        assert child.own_buckets(set(range(256)) - {bucket}) == [circuit_id]
