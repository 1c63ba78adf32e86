"""Tests both implementations of tunnel_pool.contract: in one process, and over real children."""

import asyncio

import pytest
from ipv8.keyvault.crypto import default_eccrypto
from ipv8.messaging.anonymization.payload import CreatePayload
from ipv8.messaging.anonymization.tunnel import (
    CIRCUIT_STATE_CLOSING,
    CIRCUIT_STATE_EXTENDING,
    CIRCUIT_STATE_READY,
    CIRCUIT_TYPE_DATA,
    CIRCUIT_TYPE_IP_SEEDER,
    PEER_FLAG_EXIT_BT,
    PEER_FLAG_RELAY,
)
from ipv8.messaging.serialization import default_serializer

from tests.worlds.marks import KINDS_AND_ENGINES
from tests.worlds.network import (
    EXIT_FLAGS,
    Echo,
    address_of,
    dht_like,
    make_config,
    network,
    opened,
    tunnels,
    until,
)
from tunnel_pool.overlay.ground.config import NOWHERE
from tunnel_pool.overlay.ground.streams import PEER_FLAG_EXIT_STREAMS
from tunnel_pool.socks5.address import encode_address

pytestmark = [
    pytest.mark.usefixtures("engine"),
    KINDS_AND_ENGINES,
]


async def ready_circuit(client, hops=1):
    await until(lambda: client.get_candidates(PEER_FLAG_EXIT_BT), what="an exit candidate")
    circuit = client.create_circuit(hops)
    assert await asyncio.wait_for(circuit.ready, 20) is circuit
    return circuit


async def test_candidates_have_flags_and_are_never_ourselves(kind):
    async with network(exits=1, relays=1) as nodes, tunnels(kind, map(address_of, nodes)) as client:
        await until(lambda: len(client.candidates) == 2)
        (exit_peer,) = client.get_candidates(PEER_FLAG_EXIT_BT)
        assert exit_peer.mid == nodes[0].my_peer.mid
        assert exit_peer.address == nodes[0].endpoint.get_address()
        assert set(client.candidates[exit_peer]) == EXIT_FLAGS
        assert {peer.mid for peer in client.get_candidates(PEER_FLAG_RELAY)} == {n.my_peer.mid for n in nodes}
        assert client.my_peer.mid not in {peer.mid for peer in client.candidates}


async def test_an_exit_says_by_which_port_it_is_seen_if_it_offers_streams(kind):
    flags = EXIT_FLAGS | {PEER_FLAG_EXIT_STREAMS}
    async with opened(make_config(flags, allow_private=True), make_config(EXIT_FLAGS, allow_private=True)) as nodes:
        for node, is_known in zip(nodes, (True, False), strict=True):
            with Echo() as echo:
                async with tunnels(kind, [address_of(node)]) as client:
                    circuit = await ready_circuit(client)
                    port = await client.find_exit_port(circuit.circuit_id)
                    assert await client.find_exit_port(circuit.circuit_id) == port
                    client.send_datagram(circuit.circuit_id, encode_address(*echo.address), dht_like(b"where"))
                    await until(lambda echo=echo: echo.received, what="a datagram")
                    ((_, source),) = echo.received
                    assert (port == source[1]) is is_known
                    assert await client.find_exit_port(circuit.circuit_id + 1) is None


async def test_build_tunnels_keeps_as_many_as_wanted(kind):
    async with network() as nodes, tunnels(kind, map(address_of, nodes), circuits=3) as client:
        assert client.tunnels_ready(1) == 1.0
        client.build_tunnels(1)
        assert client.tunnels_ready(1) < 1.0
        await until(lambda: client.tunnels_ready(1) == 1.0)
        assert len(client.find_circuits(hops=1)) == 3
        await client.remove_circuit(next(iter(client.circuits)))
        await until(lambda: client.tunnels_ready(1) == 1.0)


async def test_a_circuit_is_there_at_once_and_grows(kind):
    async with network(exits=1, relays=1) as nodes, tunnels(kind, map(address_of, nodes)) as client:
        await until(lambda: len(client.candidates) == 2)
        (exit_peer,) = client.get_candidates(PEER_FLAG_EXIT_BT)
        circuit = client.create_circuit(2, required_exit=exit_peer)
        assert circuit.state == CIRCUIT_STATE_EXTENDING
        assert client.circuits[circuit.circuit_id] is circuit
        assert client.find_circuits() == []
        assert client.find_circuits(state=None, hops=2) == [circuit]
        assert await asyncio.wait_for(circuit.ready, 20) is circuit
        assert circuit.state == CIRCUIT_STATE_READY
        assert [hop.public_key_bin for hop in circuit.hops] == [
            node.my_peer.public_key.key_to_bin() for node in reversed(nodes)
        ]
        assert circuit.hop.address == nodes[1].endpoint.get_address()
        assert PEER_FLAG_EXIT_BT in circuit.exit_flags


async def test_find_circuits_filters(kind):
    async with network() as nodes, tunnels(kind, map(address_of, nodes)) as client:
        circuit = await ready_circuit(client)
        assert client.find_circuits() == [circuit]
        assert client.find_circuits(ctype=CIRCUIT_TYPE_DATA, state=CIRCUIT_STATE_READY, hops=1) == [circuit]
        assert client.find_circuits(exit_flags=[PEER_FLAG_EXIT_BT]) == [circuit]
        assert client.find_circuits(ctype=CIRCUIT_TYPE_IP_SEEDER) == []
        assert client.find_circuits(hops=2) == []
        assert client.find_circuits(exit_flags=[1 << 14]) == []


async def test_no_circuit_without_candidates_or_through_ourselves(kind):
    async with tunnels(kind) as client:
        assert client.create_circuit(1) is None
        assert client.create_circuit(1, required_exit=client.my_peer) is None
        assert client.circuits == {}


async def test_no_circuit_of_several_hops_while_no_exit_is_known(kind):
    """py-ipv8 would build it with an exit of the first hop's choice, who would then have chosen both ends."""
    async with network(exits=0, relays=2) as nodes, tunnels(kind, map(address_of, nodes)) as client:
        await until(lambda: len(client.get_candidates(PEER_FLAG_RELAY)) == 2)
        assert client.create_circuit(2) is None
        client.build_tunnels(2)
        client.do_circuits()
        assert client.circuits == {}


async def test_datagrams_leave_at_the_exit_and_come_back(kind):
    async with network() as nodes, tunnels(kind, map(address_of, nodes)) as client:
        circuit = await ready_circuit(client)
        incoming = asyncio.Queue()
        client.on_raw_data = lambda *args: incoming.put_nowait(args)
        with Echo() as echo:
            sent = [dht_like(bytes([65 + i]) * (i * 100)) for i in range(10)]
            for data in sent:
                client.send_data(circuit.hop.address, circuit.circuit_id, echo.address, NOWHERE, data)
            received = [await asyncio.wait_for(incoming.get(), 10) for _ in sent]
            assert [host for _, (host, _) in echo.received] == [address_of(nodes[0]).host] * 10
        assert {(got, origin) for got, origin, _ in received} == {(circuit, echo.address)}
        assert sorted(data for _, _, data in received) == sorted(sent)
        await client.update_statistics()
        assert min(circuit.bytes_up, circuit.bytes_down) > sum(map(len, sent))


async def test_domain_names_are_resolved_at_the_exit(kind):
    async with network() as nodes, tunnels(kind, map(address_of, nodes)) as client:
        circuit = await ready_circuit(client)
        with Echo("127.0.0.1") as echo:
            name = ("localhost", echo.address[1])
            client.send_data(circuit.hop.address, circuit.circuit_id, name, NOWHERE, dht_like(b"x"))
            await until(lambda: echo.received)
            assert echo.received[0][0] == dht_like(b"x")
            assert echo.received[0][1][0] == address_of(nodes[0]).host


async def test_removing_a_circuit(kind):
    async with network() as nodes, tunnels(kind, map(address_of, nodes)) as client:
        circuit = await ready_circuit(client)
        removed = []
        client.on_circuit_removed = lambda *args: removed.append(args)
        future = client.remove_circuit(circuit.circuit_id, "no longer needed", destroy=4)
        await until(lambda: circuit.state == CIRCUIT_STATE_CLOSING, 1)
        await asyncio.wait_for(future, 10)
        assert client.circuits == {}
        await until(lambda: removed)
        assert removed == [(circuit, "no longer needed")]
        await until(lambda: not nodes[0].exit_sockets, what="the exit hearing of it")


async def test_removing_an_unknown_circuit_is_harmless(kind):
    async with tunnels(kind) as client:
        await asyncio.wait_for(client.remove_circuit(12345), 10)


async def test_a_circuit_whose_exit_ends_is_gone(kind):
    async with network() as nodes, tunnels(kind, map(address_of, nodes)) as client:
        circuit = await ready_circuit(client)
        removed = []
        client.on_circuit_removed = lambda *args: removed.append(args[0])
        await nodes[0].unload()
        await until(lambda: removed)
        assert removed == [circuit]
        assert client.circuits == {}
        assert circuit.state == CIRCUIT_STATE_CLOSING


async def test_datagrams_for_unknown_circuits_are_dropped_and_counted(kind):
    async with network() as nodes, tunnels(kind, map(address_of, nodes)) as client:
        with Echo() as watcher:
            client.send_data(watcher.address, 12345, watcher.address, NOWHERE, dht_like(b"secret"))
            await asyncio.wait_for(client.remove_circuit(12345), 10)
            assert client.dropped()["unknown_circuit"] == 1
            assert watcher.received == []


async def test_nothing_is_sent_over_a_circuit_that_is_not_ready(kind):
    """Data must leave neither in the clear nor at a hop before the exit."""
    with Echo() as watcher:
        async with network(exits=1, relays=1) as nodes, tunnels(kind, map(address_of, nodes)) as client:
            await until(lambda: len(client.candidates) == 2)
            circuit = client.create_circuit(2)
            for _ in range(200):
                if circuit.state == CIRCUIT_STATE_READY:
                    break
                client.send_data(address_of(nodes[0]), circuit.circuit_id, watcher.address, NOWHERE, dht_like(b"x"))
                await asyncio.sleep(0)
            # A child may get the first datagrams before it hears of the circuit.
            await until(lambda: client.dropped()["circuit_not_ready"] or client.dropped()["data_in_unknown_circuit"])
            # A child knows sooner than we that a circuit is ready; then its exit is the only way out.
            assert {source[0] for _, source in watcher.received} <= {address_of(nodes[0]).host}


async def test_an_overlay_message_over_a_circuit_is_not_acted_on(kind):
    """Otherwise an exit's observer could have us answer him directly, from our own address."""
    async with network() as nodes, tunnels(kind, map(address_of, nodes)) as client:
        circuit = await ready_circuit(client)
        incoming = []
        client.on_raw_data = lambda *args: incoming.append(args)
        with Echo() as attacker:
            client.send_data(circuit.hop.address, circuit.circuit_id, attacker.address, NOWHERE, dht_like(b"x"))
            await until(lambda: incoming)
            ((_, exit_address),) = attacker.received
            stranger = default_eccrypto.generate_key("curve25519").pub()
            create = CreatePayload(5, 1, stranger.key_to_bin(), stranger.get_crypt_pk())
            packed = bytes([CreatePayload.msg_id]) + default_serializer.pack_serializable(create)
            attacker.sock.sendto(nodes[0].get_prefix() + packed, exit_address)
            await until(lambda: client.dropped()["circuit_overlay_message_refused"] == 1)
            await asyncio.sleep(0.2)  # the time in which py-ipv8 would answer
            assert len(attacker.received) == 1
            assert len(incoming) == 1


async def test_unload_ends_every_circuit(kind):
    async with network() as nodes:
        async with tunnels(kind, map(address_of, nodes)) as client:
            client.build_tunnels(1)
            await until(lambda: client.tunnels_ready(1) == 1.0)
        assert client.find_circuits(state=None) == []
        await until(lambda: not nodes[0].exit_sockets, what="the exit hearing of it")


async def test_the_exit_refuses_private_destinations_unless_told(kind):
    async with network(allow_private=False) as nodes, tunnels(kind, map(address_of, nodes)) as client:
        circuit = await ready_circuit(client)
        with Echo() as echo:
            client.send_data(circuit.hop.address, circuit.circuit_id, echo.address, NOWHERE, dht_like(b"x"))
            await until(lambda: nodes[0].dropped()["exit_destination_refused"] == 1)
            assert echo.received == []
