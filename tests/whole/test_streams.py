"""Tests TCP through circuits: a SOCKS5 client, real nodes on loopback, and servers outside."""

import asyncio
import contextlib
import ipaddress
import os
import signal
import struct

import pytest
from ipv8.messaging.anonymization.tunnel import PEER_FLAG_RELAY, PEER_FLAG_SPEED_TEST

from tests.worlds.network import EXIT_FLAGS, RELAY_FLAGS, address_of, make_config, opened, tunnels, until, unused_host
from tests.worlds.plain_node import open_plain
from tunnel_pool.overlay.ground.config import HostPort, slot_of
from tunnel_pool.overlay.ground.exit_rules import ExitRules, Protocol
from tunnel_pool.overlay.ground.lanes import Lane
from tunnel_pool.overlay.ground.streams import PEER_FLAG_EXIT_STREAMS, streams_of
from tunnel_pool.packet_engine import is_built
from tunnel_pool.rpc.drop_reasons import DropReason
from tunnel_pool.socks5.messages import ReplyCode
from tunnel_pool.torrent.sessions.dispatch import connect, serve_session

HANDSHAKE = b"\x13BitTorrent protocol"
MEGABYTE = bytes(range(256)) * 4096

pytestmark = pytest.mark.skipif(not is_built(), reason="only the native engine carries streams")


class Server:
    """A peer outside: it answers BitTorrent's handshake, then sends back what it gets."""

    async def __aenter__(self):
        self.connections = []
        self._server = await asyncio.start_server(self._serve, unused_host(), 0)
        self.address = self._server.sockets[0].getsockname()
        return self

    async def __aexit__(self, *exc):
        self._server.close()
        for writer in self.connections:
            writer.close()

    async def _serve(self, reader, writer):
        self.connections.append(writer)
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
            writer.write_eof()


async def socks_connect(port, host, target_port):
    """Return reader, writer and the reply code of a CONNECT."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"\x05\x01\x00")
    assert await reader.readexactly(2) == b"\x05\x00"
    try:
        address = b"\x01" + ipaddress.IPv4Address(host).packed
    except ValueError:
        address = b"\x03" + bytes([len(host)]) + host.encode()
    writer.write(b"\x05\x01\x00" + address + struct.pack("!H", target_port))
    reply = await reader.readexactly(10)
    return reader, writer, reply[1]


async def echoes(port, server):
    """Send the server a megabyte, and compare what comes back."""
    reader, writer, reply = await socks_connect(port, *server.address)
    assert reply == ReplyCode.SUCCEEDED
    writer.write(HANDSHAKE + MEGABYTE)
    writer.write_eof()
    assert await reader.read(-1) == HANDSHAKE + MEGABYTE
    writer.close()


@contextlib.asynccontextmanager
async def world(kind="plain", hops=1, protocols=Protocol.TCP | Protocol.HTTPS, streams=True, relays=()):
    """Yield tunnels that know an exit, the port of a SOCKS5 server, and the exit; these `relays` are others'."""
    rules = ExitRules(protocols=Protocol.BITTORRENT | Protocol.DHT | protocols)
    flags = EXIT_FLAGS | ({PEER_FLAG_EXIT_STREAMS} if streams else set())
    theirs = [HostPort(*relay.endpoint.get_address()) for relay in relays]
    exit_config = make_config(flags, theirs, exit_rules=rules, allow_private=True)
    async with opened(exit_config) as (exit_node,):
        ours = [make_config(RELAY_FLAGS, [address_of(exit_node)], allow_private=True) for _ in range(3)]
        async with opened(*(ours if hops > 1 and not relays else [])) as others:
            known = [*theirs, *(address_of(node) for node in (exit_node, *others))]
            async with tunnels(kind, known, allow_private=True) as tunnel:
                lane = Lane(hops)
                dispatcher, server = serve_session(tunnel, lane, lambda is_lost: None, steering=True)
                dispatcher.may_speak_tls = True
                connect(tunnel, [dispatcher])
                port = server.listen()
                tunnel.build_tunnels(hops)
                try:
                    yield tunnel, port, exit_node
                finally:
                    await server.close()
                    dispatcher.end()


async def spoken(tunnel, hops):
    """Wait until a circuit has found out that its exit speaks streams."""
    await until(
        lambda: any(streams_of(c).are_spoken for c in tunnel.find_circuits(hops=hops)), what="a stream's circuit"
    )


@pytest.mark.parametrize(("kind", "hops"), [("plain", 1), ("plain", 3), ("pooled", 1), ("pooled", 2)])
async def test_a_peer_is_reached_by_tcp_and_what_both_send_arrives_whole(kind, hops):
    async with world(kind, hops) as (tunnel, port, exit_node), Server() as server:
        await spoken(tunnel, hops)
        await echoes(port, server)
        assert len(server.connections) == 1
        await until(lambda: not any(streams_of(end).open for end in exit_node.exit_sockets.values()))


@pytest.mark.parametrize("kind", ["plain", "pooled"])
async def test_what_the_exit_reports_is_the_reply(kind):
    async with world(kind) as (tunnel, port, exit_node):
        await spoken(tunnel, 1)
        nobody = (unused_host(), 9)
        assert (await socks_connect(port, *nobody))[2] == ReplyCode.CONNECTION_REFUSED
        assert (await socks_connect(port, "224.0.0.1", 6881))[2] == ReplyCode.NOT_ALLOWED
        assert exit_node.dropped()[DropReason.EXIT_DESTINATION_REFUSED] in {1, 2}, "both circuits may be asked"


async def test_a_name_is_resolved_by_the_exit():
    async with world(hops=2) as (tunnel, port, exit_node):
        await spoken(tunnel, 2)
        # Nobody listens at port 443 there, or TLS is spoken: what matters is that the name is known, or is not.
        assert (await socks_connect(port, "localhost", 443))[2] in {ReplyCode.CONNECTION_REFUSED, ReplyCode.SUCCEEDED}
        assert (await socks_connect(port, "nowhere.invalid", 443))[2] == ReplyCode.HOST_UNREACHABLE
        assert exit_node.dropped()[DropReason.EXIT_NAME_UNKNOWN] == 1


async def test_tls_goes_to_the_names_that_the_operator_lists_alone():
    async with world(protocols=Protocol.HTTPS) as (tunnel, port, exit_node):
        exit_node.set_exit_rules(ExitRules(protocols=Protocol.HTTPS, https_names=("localhost",)))
        await spoken(tunnel, 1)
        assert (await socks_connect(port, "localhost", 443))[2] in {ReplyCode.CONNECTION_REFUSED, ReplyCode.SUCCEEDED}
        for other in ("other.example", "notlocalhost", unused_host()):
            assert (await socks_connect(port, other, 443))[2] == ReplyCode.NOT_ALLOWED
        assert exit_node.dropped()[DropReason.STREAM_NAME_REFUSED] in {3, 4}, "both circuits may be asked, once"


@pytest.mark.parametrize("streams", [False, True])
async def test_where_no_exit_carries_streams_nothing_waits_and_nothing_leaves(streams):
    """An exit may say that it carries streams, and not do so: its rules have changed."""
    async with world(protocols=Protocol(0), streams=streams) as (tunnel, port, exit_node), Server() as server:
        await until(lambda: tunnel.tunnels_ready(1) == 1.0)
        reply = (await socks_connect(port, *server.address))[2]
        assert reply == ReplyCode.NETWORK_UNREACHABLE
        assert not server.connections


@contextlib.asynccontextmanager
async def foreign_relays(number):
    """Yield nodes of plain pyipv8, or of ipv8-rust-tunnels."""
    relays = [await open_plain(unused_host(), {PEER_FLAG_RELAY, PEER_FLAG_SPEED_TEST}) for _ in range(number)]
    try:
        yield relays
    finally:
        for relay in relays:
            await relay.unload()


@pytest.mark.parametrize("endpoint", ["python", "rust"])
async def test_streams_run_through_relays_of_others_to_exits_of_ours(endpoint, monkeypatch):
    monkeypatch.setenv("PLAIN_ENDPOINT", endpoint)
    async with foreign_relays(2) as relays, world(hops=2, relays=relays) as (tunnel, port, _), Server() as server:
        await spoken(tunnel, 2)
        await echoes(port, server)


async def test_a_child_that_is_killed_takes_its_streams_along_and_others_take_its_place():
    async with world("pooled") as (tunnel, port, exit_node), Server() as server:
        await spoken(tunnel, 1)
        reader, writer, reply = await socks_connect(port, *server.address)
        assert reply == ReplyCode.SUCCEEDED
        writer.write(HANDSHAKE)
        assert await reader.readexactly(len(HANDSHAKE)) == HANDSHAKE
        (with_stream,) = {slot_of(c.circuit_id) for c in await until_open(tunnel)}
        os.kill(tunnel.pool.pid(with_stream), signal.SIGKILL)
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(-1), 20) == b""
        writer.close()

        await until(lambda: not any(slot_of(c.circuit_id) == with_stream for c in tunnel.find_circuits(hops=1)))
        await spoken(tunnel, 1)
        assert (await socks_connect(port, *server.address))[2] == ReplyCode.SUCCEEDED


async def until_open(tunnel):
    """Wait until the main process knows which circuits carry streams, and return these."""
    return await until(lambda: [c for c in tunnel.find_circuits(hops=1) if streams_of(c).open])
