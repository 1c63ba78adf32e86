"""Tests the fast packing of data cells against py-ipv8's own serializer, and with garbage."""

import asyncio
import gc
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ipv8.messaging.anonymization.exit_socket import TunnelExitSocket
from ipv8.messaging.anonymization.payload import DataPayload
from ipv8.messaging.serialization import default_serializer

from tests.packet_engine.disturber import Disturber
from tests.worlds.feeding import mutations, outcome
from tests.worlds.network import address_of, dht_like, network, tunnels, until
from tunnel_pool.overlay.ground.addresses import (
    encode_packed,
    pack_address,
    pack_encoded,
    packed_address_end,
    unpack_address,
)
from tunnel_pool.overlay.ground.config import NOWHERE
from tunnel_pool.socks5.address import encode_address
from tunnel_pool.steering.layout import CELL_MESSAGE_AT

ADDRESSES = [("1.2.3.4", 0), ("255.255.255.255", 65535), ("2001:db8::1", 443), ("tracker.example", 6969), ("é.nl", 1)]


@pytest.mark.parametrize("destination", ADDRESSES)
@pytest.mark.parametrize("origin", ADDRESSES)
def test_same_bytes_as_py_ipv8(destination, origin):
    message = default_serializer.pack_serializable(DataPayload(7, destination, origin, b"payload"))[4:]
    assert pack_address(*destination) + pack_address(*origin) + b"payload" == message
    middle = packed_address_end(message, 0)
    end = packed_address_end(message, middle)
    assert unpack_address(message[:middle]) == destination
    assert unpack_address(message[middle:end]) == origin
    assert message[end:] == b"payload"


@given(st.sampled_from(ADDRESSES[:-1]))
def test_both_forms_of_an_address_say_the_same(address):
    assert pack_encoded(encode_address(*address)) == pack_address(*address)
    assert encode_packed(pack_address(*address)) == encode_address(*address)


def test_a_name_that_socks5_can_not_say_is_refused():
    for host in ("é.nl", "a" * 256, "a b", "a\n"):
        with pytest.raises(ValueError, match=r"ascii|256 bytes|unprintable"):
            encode_packed(pack_address(host, 1))


@given(mutations(st.sampled_from(ADDRESSES).map(lambda address: pack_address(*address))))
def test_only_value_error_escapes(data):
    end = outcome(lambda: packed_address_end(data, 0), ValueError)
    if end is not None:
        assert end <= len(data)
        outcome(lambda: unpack_address(data[:end]), ValueError)


async def test_garbage_on_the_socket_is_counted_and_does_no_harm(engine):
    async with network() as nodes, tunnels("plain", map(address_of, nodes), circuits=1) as client:
        client.build_tunnels(1)
        await until(lambda: client.tunnels_ready(1) == 1.0)
        (node,) = nodes
        prefix = node.get_prefix()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            for datagram in [
                prefix,
                prefix + b"\x00",
                prefix + b"\x00" + bytes(6),  # a cell without a message
                prefix + b"\x00" + bytes(7),  # of an unknown circuit
                prefix + b"\x00" + b"\x00\x00\x00\x09\x01\x00" + b"\x01",  # a data message in the clear
            ]:
                sock.sendto(datagram, address_of(node))
        await until(lambda: node.dropped().total() >= 5)
        # The native engine knows a bare prefix for the tunnels'; in Python, the boundary of all overlays counts it.
        assert node.dropped()["cell_malformed"] + node.dropped()["packet_too_short"] == 3
        assert node.dropped()["cell_not_decrypted"] == 1
        assert node.dropped()["cell_not_encrypted"] == 1
        assert client.tunnels_ready(1) == 1.0


async def test_an_exit_lets_only_bittorrent_like_datagrams_out(engine):
    async with network() as nodes, tunnels("plain", map(address_of, nodes), circuits=1) as client:
        client.build_tunnels(1)
        await until(lambda: client.tunnels_ready(1) == 1.0)
        (circuit,) = client.find_circuits(hops=1)
        target = address_of(nodes[0])
        for payload in (b"GET / HTTP/1.1\r\n", dht_like(b"x")):
            client.send_data(circuit.hop.address, circuit.circuit_id, target, ("0.0.0.0", 0), payload)
        await until(lambda: nodes[0].carried().exited_bytes)
        assert nodes[0].dropped()["exit_content_refused"] == 1
        assert nodes[0].carried().exited_bytes == len(dht_like(b"x"))
        # Joining a circuit sets its exit twice, and a cell may come between.
        nodes[0].exit_sockets[circuit.circuit_id] = nodes[0].exit_sockets[circuit.circuit_id]
        assert (nodes[0].carried().exits, nodes[0].carried().exited_bytes) == (1, len(dht_like(b"x")))


async def test_a_relay_lets_no_data_out_nor_overlay_messages_but_those_of_hidden_services(engine):
    async with network(exits=0, relays=1) as (relay,), tunnels("plain", [address_of(relay)]) as client:
        await until(lambda: client.candidates)
        (peer,) = client.candidates
        circuit = client.create_circuit(1, required_exit=peer)
        await asyncio.wait_for(circuit.ready, 10)
        data = relay.get_prefix() + bytes(20)
        client.send_data(circuit.hop.address, circuit.circuit_id, address_of(relay), ("0.0.0.0", 0), data)
        await until(lambda: relay.dropped()["exit_content_refused"] == 1)
        assert relay.carried().exited_bytes == 0


async def test_a_circuit_id_in_use_is_not_given_away(engine):
    async with network() as (node,), tunnels("plain", [address_of(node)]) as first:
        await until(lambda: first.candidates)
        circuit = first.create_circuit(1)
        await asyncio.wait_for(circuit.ready, 10)
        taken = node.exit_sockets[circuit.circuit_id]
        async with tunnels("plain", [address_of(node)]) as second:
            await until(lambda: second.candidates)
            node.request_cache.clear()  # as a minute later, when py-ipv8 has forgotten the CREATE
            second.create_circuit_with_id(circuit.circuit_id, 1)
            await until(lambda: node.dropped()["create_id_taken"] == 1)
            assert node.exit_sockets[circuit.circuit_id] is taken
            # Nor may somebody take the id of a circuit of our own.
            node.circuits[7] = circuit
            second.create_circuit_with_id(7, 1)
            await until(lambda: node.dropped()["create_id_taken"] == 2)
            del node.circuits[7]


async def test_a_joined_circuit_leaves_nothing_behind(engine):
    """py-ipv8's own exit socket, which ours replaces, has housekeeping that would keep it alive."""
    async with network() as (node,), tunnels("plain", [address_of(node)]) as client:
        await until(lambda: client.candidates)
        for _ in range(5):
            circuit = client.create_circuit(1)
            await asyncio.wait_for(circuit.ready, 10)
            await client.remove_circuit(circuit.circuit_id, destroy=4)
        await until(lambda: not node.exit_sockets)

        def left():
            gc.collect()
            return [thing for thing in gc.get_objects() if isinstance(thing, TunnelExitSocket)]

        await until(lambda: not left(), 5)


async def test_the_first_cell_does_not_use_the_counter_of_the_candidate_list(engine):
    """Both are sealed with the originator's forward key; one nonce twice would give both away."""
    async with network() as (node,):
        with Disturber(address_of(node), seed=1) as disturber:
            async with tunnels("plain", [disturber.address], circuits=1) as client:
                await until(lambda: client.candidates)
                lists = []
                created = client._ours_on_created_extended
                client._ours_on_created_extended = lambda circuit_id, payload: (
                    lists.append(payload.candidates_enc),
                    created(circuit_id, payload),
                )
                circuit = client.create_circuit(1)
                await asyncio.wait_for(circuit.ready, 10)
                client.send_data(
                    circuit.hop.address, circuit.circuit_id, ("127.0.0.1", 9), NOWHERE, dht_like(bytes(80))
                )
                await until(lambda: disturber.forwarded)
                (sealed,) = lists
                counters = {cell[CELL_MESSAGE_AT : CELL_MESSAGE_AT + 8] for cell in disturber.forwarded}
                assert sealed[:8] not in counters
                assert counters == {(int.from_bytes(sealed[:8], "big") + 1).to_bytes(8, "big")}
