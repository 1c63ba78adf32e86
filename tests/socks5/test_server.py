"""Tests the SOCKS5 server over real sockets, as libtorrent and other clients use it."""

import asyncio
import contextlib
import errno
import socket
from contextlib import asynccontextmanager

import pytest

from tests.worlds.network import until
from tunnel_pool.socks5 import asyncio_network
from tunnel_pool.socks5 import server as own
from tunnel_pool.socks5.address import decode_address, encode_address
from tunnel_pool.socks5.asyncio_network import AsyncioNetwork
from tunnel_pool.socks5.messages import ReplyCode
from tunnel_pool.socks5.server import CannotListenError, Connection, Socks5Server
from tunnel_pool.socks5.twisted_network import TwistedNetwork

PEER = encode_address("1.2.3.4", 6881)
NO_ADDRESS = b"\x01\x00\x00\x00\x00\x00\x00"


STREAM_PORT = 443


class Consumer:
    def __init__(self):
        self.associations = []
        self.received = []
        self.clients = []
        self.usual = []
        self.requests = []
        self.refusal = None
        self.streams = []

    def association_opened(self, association):
        self.associations.append(association)

    def association_closed(self, association):
        self.associations.remove(association)

    def client_known(self, association):
        self.clients.append(association.client)

    def usual_known(self, association):
        self.usual.append(association)

    def is_for_streams(self, address):
        return address.port == STREAM_PORT

    def open_stream(self, sock, address, early):
        self.streams.append((sock, address, early))

    def why_no_connection(self, address):
        return self.refusal

    async def http_request(self, address, request):
        self.requests.append((address, request))
        return b"answered"

    def datagram_received(self, association, address, payload):
        self.received.append((address, payload))


@pytest.fixture(autouse=True, params=[TwistedNetwork, AsyncioNetwork])
def network(request, monkeypatch):
    """Run each test on Twisted's network and on asyncio's."""
    monkeypatch.setattr("tests.socks5.test_server.used_network", request.param)


used_network = TwistedNetwork


@asynccontextmanager
async def serving():
    consumer = Consumer()
    server = Socks5Server(used_network(), consumer)
    port = server.listen()
    try:
        yield consumer, server, port
    finally:
        await server.close()
        await until(lambda: not consumer.associations)


async def associate(port, client=NO_ADDRESS):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"\x05\x01\x00")
    assert await reader.readexactly(2) == b"\x05\x00"
    writer.write(b"\x05\x03\x00" + client)
    answer = await reader.readexactly(10)
    assert answer[:4] == b"\x05\x00\x00\x01"
    assert answer[4:8] == b"\x7f\x00\x00\x01"
    return writer, ("127.0.0.1", int.from_bytes(answer[8:], "big"))


def udp_socket(address="127.0.0.1"):
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind((address, 0))
    sock.setblocking(False)
    return sock


async def test_datagrams_both_ways(loop):
    async with serving() as (consumer, server, port):
        writer, relay = await associate(port)
        with udp_socket() as client:
            client.sendto(b"\x00\x00\x00" + PEER + b"to the peer", relay)
            await until(lambda: consumer.received)
            assert consumer.received == [(PEER, b"to the peer")]
            consumer.associations[0].send(PEER, b"from the peer")
            answer = await asyncio.wait_for(loop.sock_recv(client, 2000), 5)
            assert answer == b"\x00\x00\x00" + PEER + b"from the peer"
        writer.close()


async def test_the_association_ends_with_its_connection():
    async with serving() as (consumer, server, port):
        writer, _ = await associate(port)
        assert len(consumer.associations) == 1
        writer.close()
        await until(lambda: not consumer.associations)


async def test_malformed_and_foreign_datagrams_are_dropped_and_counted():
    async with serving() as (consumer, server, port):
        writer, relay = await associate(port)
        with udp_socket() as client, udp_socket() as other, udp_socket("127.0.0.2") as elsewhere:
            elsewhere.sendto(b"\x00\x00\x00" + PEER + b"no", relay)
            await until(lambda: server.counters["socks5_foreign_source"] == 1)
            client.sendto(b"\x00\x00\x00" + PEER + b"first", relay)
            await until(lambda: consumer.received)
            other.sendto(b"\x00\x00\x00" + PEER + b"no", relay)
            client.sendto(b"\x00\x00\x01" + PEER + b"a fragment", relay)
            client.sendto(b"\x00", relay)
            await until(lambda: server.counters["socks5_malformed"] == 2)
            await until(lambda: server.counters["socks5_foreign_source"] == 2)
            assert consumer.received == [(PEER, b"first")]
        writer.close()


async def test_the_announced_port_is_the_only_one():
    async with serving() as (consumer, server, port):
        with udp_socket() as client, udp_socket() as other:
            writer, relay = await associate(port, encode_address("127.0.0.1", client.getsockname()[1]))
            other.sendto(b"\x00\x00\x00" + PEER + b"no", relay)
            await until(lambda: server.counters["socks5_foreign_source"] == 1)
            client.sendto(b"\x00\x00\x00" + PEER + b"yes", relay)
            await until(lambda: consumer.received == [(PEER, b"yes")])
            writer.close()


async def test_a_client_elsewhere_is_not_served():
    async with serving() as (consumer, server, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"\x05\x01\x00\x05\x03\x00" + encode_address("8.8.8.8", 1))
        assert await reader.read() == b"\x05\x00\x05\x01\x00" + NO_ADDRESS
        writer.close()


async def test_bind_is_refused_and_closed():
    async with serving() as (consumer, server, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"\x05\x01\x00\x05\x02\x00" + PEER)
        assert await reader.read() == b"\x05\x00\x05\x07\x00" + NO_ADDRESS
        writer.close()


async def test_connect_takes_one_http_request_and_gives_its_answer():
    async with serving() as (consumer, server, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"\x05\x01\x00\x05\x01\x00" + PEER + b"GET / HTTP/1.1\r\n\r\n")
        assert await reader.read() == b"\x05\x00\x05\x00\x00" + NO_ADDRESS + b"answered"
        assert consumer.requests == [(decode_address(PEER), b"GET / HTTP/1.1\r\n\r\n")]
        writer.close()


async def test_a_connection_that_is_for_a_stream_is_handed_over_with_what_the_client_has_sent_and_goes_on():
    async with serving() as (consumer, server, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        peer = encode_address("1.2.3.4", STREAM_PORT)
        # All at once, so that what the server has answered is not sent yet when it gives the connection away.
        writer.write(b"\x05\x01\x00\x05\x01\x00" + peer + b"early")
        await until(lambda: consumer.streams)
        ((sock, address, early),) = consumer.streams
        assert (address, early) == (decode_address(peer), b"early")
        assert not server.connections
        with sock:
            sock.setblocking(True)
            sock.sendall(b"reply")
            writer.write(b"more")
            assert await reader.readexactly(7) == b"\x05\x00reply"
            assert await asyncio.to_thread(sock.recv, 100) == b"more"
        assert await reader.read() == b""
        writer.close()


async def test_connect_is_refused_with_the_reason_that_the_consumer_gives():
    async with serving() as (consumer, server, port):
        consumer.refusal = ReplyCode.NETWORK_UNREACHABLE, "no exit"
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"\x05\x01\x00\x05\x01\x00" + PEER)
        assert await reader.read() == b"\x05\x00\x05\x03\x00" + NO_ADDRESS
        writer.close()


async def test_a_client_that_never_speaks_is_presumed_where_it_listens():
    async with serving() as (consumer, server, port):
        with udp_socket() as client:
            writer, relay = await associate(port, NO_ADDRESS)
            assert consumer.clients == []
            server.set_usual_client(client.getsockname()[1])
            assert consumer.clients == [client.getsockname()]
            consumer.associations[0].send(PEER, b"first")
            loop = asyncio.get_running_loop()
            assert (await asyncio.wait_for(loop.sock_recv(client, 100), 5)).endswith(b"first")
            writer.close()


async def test_of_several_clients_the_usual_one_is_presumed_where_it_has_no_association_yet(monkeypatch):
    """Two sessions of one client share the server: the usual one's second association may say nothing for long."""
    monkeypatch.setattr(own, "SPEAKS_WITHIN_S", 0.05)
    async with serving() as (consumer, server, port):
        with udp_socket() as usual, udp_socket() as other:
            first, _ = await associate(port)
            server.set_usual_client(usual.getsockname()[1])
            assert consumer.usual == [consumer.associations[0]]
            second, relay = await associate(port)
            await asyncio.sleep(0.1)
            assert consumer.associations[1].client is None
            other.sendto(b"\0\0\0" + PEER + b"asked", relay)
            await until(lambda: consumer.associations[1].client == other.getsockname())
            first.close()
            await until(lambda: len(consumer.associations) == 1)
            third, _ = await associate(port)
            await until(lambda: consumer.associations[1].client == usual.getsockname())
            assert consumer.usual[-1] is consumer.associations[1]
            for writer in (second, third):
                writer.close()


async def test_a_client_that_opens_an_association_before_its_last_one_is_gone_is_presumed_once_it_is(monkeypatch):
    monkeypatch.setattr(own, "SPEAKS_WITHIN_S", 0.05)
    async with serving() as (consumer, server, port):
        with udp_socket() as usual:
            first, _ = await associate(port)
            server.set_usual_client(usual.getsockname()[1])
            second, _ = await associate(port)
            await asyncio.sleep(0.1)
            assert consumer.associations[1].client is None
            first.close()
            await until(lambda: len(consumer.associations) == 1)
            await until(lambda: consumer.associations[0].client == usual.getsockname())
            second.close()


async def test_a_client_that_spoke_before_it_is_known_as_the_usual_one_is_so_then():
    async with serving() as (consumer, server, port):
        with udp_socket() as usual:
            writer, relay = await associate(port)
            usual.sendto(b"\0\0\0" + PEER + b"asked", relay)
            await until(lambda: consumer.clients)
            assert consumer.usual == []
            server.set_usual_client(usual.getsockname()[1])
            assert consumer.usual == consumer.associations
            writer.close()


async def test_it_listens_on_loopback_alone():
    async with serving() as (consumer, server, port):
        assert server.address == ("127.0.0.1", port)


async def test_a_port_in_use_is_an_error():
    async with serving() as (consumer, server, port):
        try:
            Socks5Server(used_network(), Consumer()).listen(port)
        except CannotListenError:
            pass
        else:
            raise AssertionError("two servers on one port")


class FullAtFirst(socket.socket):
    """A listening socket of a process that has no descriptors left, once."""

    refusals = 0

    def accept(self):
        if not self.refusals:
            self.refusals += 1
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


async def test_a_client_waits_while_there_are_no_descriptors(monkeypatch):
    monkeypatch.setattr(asyncio_network, "PAUSE_S", 0.05)
    server = Socks5Server(AsyncioNetwork(), Consumer())
    with FullAtFirst(socket.AF_INET, socket.SOCK_STREAM) as sock:
        sock.bind(("127.0.0.1", 0))
        sock.setblocking(False)
        stop = AsyncioNetwork().listen(sock, lambda stream: Connection(server, stream))
        reader, writer = await asyncio.open_connection(*sock.getsockname())
        writer.write(b"\x05\x01\x00")
        assert await asyncio.wait_for(reader.readexactly(2), 5) == b"\x05\x00"
        assert sock.refusals == 1
        writer.close()
        stop()
    await server.close()


async def test_a_client_that_comes_as_the_server_closes_is_turned_away():
    async with serving() as (consumer, server, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await server.close()
        writer.write(b"\x05\x01\x00\x05\x03\x00" + NO_ADDRESS)
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), 5) == b""
        assert not consumer.associations
        writer.close()
