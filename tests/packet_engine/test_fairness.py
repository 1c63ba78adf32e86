"""Tests that none of eight overloaded circuits in one child starves."""

import asyncio
import contextlib
import socket
import time

import psutil
import pytest

from tests.worlds.network import address_of, dht_like, network, tunnels, until, unused_host
from tunnel_pool.overlay.wire.udp import bind_udp
from tunnel_pool.packet_engine import is_built
from tunnel_pool.socks5.address import encode_address
from tunnel_pool.socks5.messages import UDP_HEADER_START

CIRCUITS = 8
FLOOD_S = 1.0
PAYLOAD = dht_like(bytes(1200))

pytestmark = pytest.mark.skipif(not is_built(), reason="the native engine is not built")


async def flood(send, targets):
    """Send as fast as this process can, round robin."""
    until_s = time.monotonic() + FLOOD_S
    while time.monotonic() < until_s:
        for target in targets:
            for _ in range(8):
                try:
                    send(target)
                except BlockingIOError:
                    await asyncio.sleep(0)
        await asyncio.sleep(0)


def spread(values):
    assert min(values) > 0
    return max(values) / min(values)


@pytest.mark.slow
async def test_bytes_per_circuit_are_within_a_factor_of_two_both_ways():
    outside = [bind_udp(unused_host(), 0) for _ in range(CIRCUITS)]
    client, served = bind_udp("127.0.0.1", 0), bind_udp("127.0.0.1", 0)
    try:
        async with network() as nodes, tunnels("plain", map(address_of, nodes), circuits=CIRCUITS) as tunnel:
            tunnel.build_tunnels(1)
            await until(lambda: tunnel.tunnels_ready(1) == 1.0)
            engine = tunnel.native.engine
            engine.add_association(1, served.fileno(), 1, client.getsockname())
            relay = served.getsockname()

            def request(sock):
                header = UDP_HEADER_START + encode_address(*sock.getsockname())
                client.sendto(header + PAYLOAD, relay)

            await flood(request, outside)
            await asyncio.sleep(0.5)  # the statistics follow
            up = {circuit.circuit_id: circuit.bytes_up for circuit in tunnel.find_circuits(hops=1)}
            assert len(up) == CIRCUITS
            assert spread(up.values()) <= 2

            exits = {sock: sock.recvfrom(65535)[1] for sock in outside}
            assert len(set(exits.values())) == CIRCUITS  # each destination has a circuit of its own
            before = {circuit.circuit_id: circuit.bytes_down for circuit in tunnel.find_circuits(hops=1)}
            await flood(lambda sock: sock.sendto(PAYLOAD, exits[sock]), outside)
            await asyncio.sleep(0.5)
            down = [c.bytes_down - before[c.circuit_id] for c in tunnel.find_circuits(hops=1)]
            assert spread(down) <= 2
    finally:
        for sock in (*outside, client, served):
            sock.close()


async def test_datagrams_of_a_destination_keep_their_order():
    """A sender that sees disorder takes it for loss: uTP gets slow, and makes its packets smaller."""
    outside = [bind_udp(unused_host(), 0) for _ in range(3)]
    client, served = bind_udp("127.0.0.1", 0), bind_udp("127.0.0.1", 0)
    try:
        async with network() as nodes, tunnels("plain", map(address_of, nodes), circuits=1) as tunnel:
            tunnel.build_tunnels(1)
            await until(lambda: tunnel.tunnels_ready(1) == 1.0)
            tunnel.native.engine.add_association(1, served.fileno(), 1, client.getsockname())
            headers = [UDP_HEADER_START + encode_address(*sock.getsockname()) for sock in outside]
            received = {sock: [] for sock in outside}

            def receive():
                for sock in outside:
                    with contextlib.suppress(BlockingIOError):
                        while True:
                            received[sock].append(sock.recv(65535).split(b":", 2)[2][:6])
                return min(map(len, received.values()))

            for number in range(400):
                for header in headers:
                    # Sizes that end trains early, too.
                    text = b"%06d" % number + bytes(900 + 100 * (number % 3))
                    client.sendto(header + dht_like(text), served.getsockname())
                if number % 50 == 49:
                    await until(lambda number=number: receive() > number)
            for numbers in received.values():
                assert numbers == [b"%06d" % number for number in range(400)]
    finally:
        for sock in (*outside, client, served):
            sock.close()


async def test_a_quiet_circuit_is_served_beside_a_flood():
    """The answer to a lone datagram comes while another circuit is flooded."""
    loud, quiet = (bind_udp(unused_host(), 0) for _ in range(2))
    client, served = bind_udp("127.0.0.1", 0), bind_udp("127.0.0.1", 0)
    loop = asyncio.get_running_loop()
    try:
        async with network() as nodes, tunnels("plain", map(address_of, nodes), circuits=2) as tunnel:
            tunnel.build_tunnels(1)
            await until(lambda: tunnel.tunnels_ready(1) == 1.0)
            tunnel.native.engine.add_association(1, served.fileno(), 1, client.getsockname())
            relay = served.getsockname()
            loud_header, quiet_header = (
                UDP_HEADER_START + encode_address(*sock.getsockname()) for sock in (loud, quiet)
            )
            delays = []

            async def ask():
                while True:
                    start_s = time.monotonic()
                    client.sendto(quiet_header + dht_like(b"quiet"), relay)
                    with contextlib.suppress(TimeoutError):  # lost among those of the flood
                        await asyncio.wait_for(loop.sock_recv(quiet, 2000), 0.2)
                        delays.append(time.monotonic() - start_s)
                    await asyncio.sleep(0.02)

            asking = asyncio.ensure_future(ask())
            await flood(lambda sock: client.sendto(loud_header + PAYLOAD, relay), [loud])
            asking.cancel()
            assert len(delays) > 5
    finally:
        for sock in (loud, quiet, client, served):
            sock.close()


async def test_the_engine_rests_once_an_association_is_gone():
    """The socket lives on elsewhere, and what comes to it must not keep the engine awake."""
    async with network() as (node,):
        client, served = bind_udp("127.0.0.1", 0), bind_udp("127.0.0.1", 0)
        try:
            engine = node.native.engine
            engine.add_association(1, served.fileno(), 1, client.getsockname())
            engine.remove_association(1)
            await asyncio.sleep(0.1)
            client.sendto(b"for nobody", served.getsockname())
            for _ in range(5):  # threads of others may end in this process meanwhile
                before_s = time.process_time()
                await asyncio.sleep(0.5)
                used_s = time.process_time() - before_s
                if used_s < 0.25:
                    break
            assert used_s < 0.25
        finally:
            client.close()
            served.close()


async def test_strangers_packets_neither_stop_python_nor_fill_memory():
    """Under a flood of packets, the loop still gets its turns, and the memory of waiting packets is bounded."""
    async with network() as (node,):
        packet = node.get_prefix() + bytes([245]) + bytes(60_000)
        longest_s, last_s = 0.0, time.monotonic()
        rss_before = psutil.Process().memory_info().rss
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            for number in range(3000):
                stranger.sendto(packet, address_of(node))
                if number % 10 == 0:
                    await asyncio.sleep(0)
                    longest_s, last_s = max(longest_s, time.monotonic() - last_s), time.monotonic()
        assert longest_s < 5
        assert psutil.Process().memory_info().rss - rss_before < 64 << 20


async def test_sockets_are_as_large_as_the_kernel_gives(engine):
    async with network() as (node,):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as plain:
            usual = plain.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
        assert node.endpoint.sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) > usual
