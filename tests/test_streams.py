"""TCP through circuits: a SOCKS5 client, real nodes on loopback, and servers outside."""

import asyncio
import contextlib
import ipaddress
import struct

import pytest

from tests.network import EXIT_FLAGS, RELAY_FLAGS, address_of, make_config, opened, tunnels, until, unused_host
from tunnel_pool.overlay.clients.lanes import Lane
from tunnel_pool.overlay.clients.streams import PEER_FLAG_EXIT_STREAMS, streams_of
from tunnel_pool.overlay.serving.exit_rules import ExitRules, Protocol
from tunnel_pool.packet_engine import is_built
from tunnel_pool.socks5.messages import ReplyCode
from tunnel_pool.torrent.dispatch import connect, serve_session

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


@contextlib.asynccontextmanager
async def world(kind="plain", hops=1, protocols=Protocol.TCP | Protocol.HTTPS, streams=True):
    """Yield tunnels that know an exit, the port of a SOCKS5 server for them, and the exit."""
    rules = ExitRules(protocols=Protocol.BITTORRENT | Protocol.DHT | protocols)
    flags = EXIT_FLAGS | ({PEER_FLAG_EXIT_STREAMS} if streams else set())
    exit_config = make_config(flags, exit_rules=rules, allow_private=True)
    async with opened(exit_config) as (exit_node,):
        relays = [make_config(RELAY_FLAGS, [address_of(exit_node)], allow_private=True) for _ in range(3)]
        async with opened(*(relays if hops > 1 else [])) as others:
            known = [address_of(node) for node in (exit_node, *others)]
            async with tunnels(kind, known, allow_private=True) as tunnel:
                lane = Lane(hops)
                dispatcher, server = serve_session(tunnel, lane, lambda is_lost: None, steering=True)
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
        reader, writer, reply = await socks_connect(port, *server.address)
        assert reply == ReplyCode.SUCCEEDED
        writer.write(HANDSHAKE + MEGABYTE)
        writer.write_eof()
        assert await reader.read(-1) == HANDSHAKE + MEGABYTE
        writer.close()
        assert len(server.connections) == 1
        await until(lambda: not any(streams_of(end).open for end in exit_node.exit_sockets.values()))
