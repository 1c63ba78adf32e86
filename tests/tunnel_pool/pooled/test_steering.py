"""Tests a SOCKS5 client whose datagrams the children read themselves, also when children die."""

import asyncio
import os
import signal
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from tests.socks5.test_server import associate, udp_socket
from tests.worlds.marks import ENGINES_PYTHON_SLOW
from tests.worlds.network import Echo, address_of, dht_like, network, tunnels, until
from tunnel_pool.framework import own_network
from tunnel_pool.overlay.ground.lanes import Lane
from tunnel_pool.socks5.address import encode_address
from tunnel_pool.socks5.messages import UDP_HEADER_START, split_udp_request
from tunnel_pool.socks5.server import MAX_ASSOCIATIONS, Socks5Server
from tunnel_pool.torrent.sessions.dispatch import Dispatcher, connect

DESTINATIONS = 12


@pytest.fixture(params=[True, False], ids=["steered", "stream"])
def steering(request):
    return request.param


class Setup:
    """A client with an association, and echoes outside."""

    def __init__(self, tunnel, dispatcher, sock, relay, echoes, *, server):
        self.tunnel, self.dispatcher, self.server = tunnel, dispatcher, server
        self.relay, self.echoes = relay, echoes
        self._sock = sock
        self._loop = asyncio.get_running_loop()

    @asynccontextmanager
    async def another_client(self):
        """Another client of the same server, with an association of its own."""
        writer, relay = await associate(self.server.address[1])
        with udp_socket() as sock:
            yield Setup(self.tunnel, self.dispatcher, sock, relay, self.echoes, server=self.server)
        writer.close()

    def listen_as_the_usual_one(self):
        self.server.set_usual_client(self._sock.getsockname()[1])

    async def hears(self, text, timeout_s=5):
        """Return whether a datagram that ends with `text` comes, from any source."""
        try:
            while True:
                answer = await asyncio.wait_for(self._loop.sock_recv(self._sock, 2000), timeout_s)
                if answer.endswith(text):
                    return True
        except TimeoutError:
            return False

    async def ask(self, echo, text, timeout_s=5):
        """Send to an echo; returns whether the answer came, from the association's own port."""
        self._sock.sendto(UDP_HEADER_START + encode_address(*echo.address) + dht_like(text), self.relay)
        try:
            while True:
                answer, source = await asyncio.wait_for(self._loop.sock_recvfrom(self._sock, 2000), timeout_s)
                assert source == self.relay
                if split_udp_request(answer) == (encode_address(*echo.address), dht_like(text)):
                    return True
        except TimeoutError:
            return False

    async def everybody_answers(self, text):
        """Return whether every echo answers, at the second attempt at the latest: a datagram may be lost."""
        return all([await self.ask(echo, text) or await self.ask(echo, text) for echo in self.echoes])

    def exits_seen(self):
        """Return, by destination, the exit addresses that it was reached from."""
        return [{source for _, source in echo.received} for echo in self.echoes]


@asynccontextmanager
async def client_of(kind, workers, steering):
    lost = []
    async with network(exits=2) as nodes, tunnels(kind, map(address_of, nodes), workers, circuits=4) as tunnel:
        carrier = tunnel.carrier(Lane(1), lost.append) if steering else None
        dispatcher = Dispatcher(tunnel, Lane(1), lost.append, carrier)
        dispatcher.lost = lost
        connect(tunnel, [dispatcher])
        server = Socks5Server(own_network(), dispatcher, steering)
        writer, relay = await associate(server.listen())
        echoes = [Echo() for _ in range(DESTINATIONS)]
        try:
            tunnel.build_tunnels(1)
            await until(lambda: tunnel.tunnels_ready(1) == 1.0)
            if kind == "pooled":
                await until(lambda: len(tunnel.slots_with_circuits(Lane(1))) == workers)
            with udp_socket() as sock:
                yield Setup(tunnel, dispatcher, sock, relay, echoes, server=server)
        finally:
            for echo in echoes:
                echo.__exit__()
            writer.close()
            await server.close()


@pytest.mark.parametrize(("kind", "workers"), [("plain", 0), ("pooled", 2)])
async def test_every_destination_answers_and_meets_one_exit_address(engine, kind, workers, steering):
    async with client_of(kind, workers, steering) as setup:
        for text in (b"first", b"second", b"third"):
            assert await setup.everybody_answers(text)
        assert all(len(exits) == 1 for exits in setup.exits_seen())
        # Over several circuits, not one.
        assert len(set().union(*setup.exits_seen())) > 1
        assert setup.dispatcher.dropped().total() == 0


@ENGINES_PYTHON_SLOW
@pytest.mark.parametrize(("kind", "workers"), [("plain", 0), ("pooled", 2)])
async def test_each_of_several_clients_gets_the_answers_to_what_it_asked(engine, kind, workers, steering):
    """Tribler has a libtorrent session for torrents and one for metadata, which use one SOCKS5 server."""
    async with client_of(kind, workers, steering) as setup, setup.another_client() as other:
        for text in (b"first", b"second"):
            for number, echo in enumerate(setup.echoes):
                asker = (setup, other)[number % 2]
                assert await asker.ask(echo, text) or await asker.ask(echo, text)
        # The older one, the newer one and the older one again have the same peer.
        for asker, text in ((setup, b"older"), (other, b"newer"), (setup, b"older again")):
            assert await asker.ask(setup.echoes[0], text) or await asker.ask(setup.echoes[0], text)


@ENGINES_PYTHON_SLOW
@pytest.mark.parametrize(("kind", "workers"), [("plain", 0), ("pooled", 2)])
async def test_what_nobody_asked_for_is_for_the_usual_client(engine, kind, workers, steering):
    async with client_of(kind, workers, steering) as setup, setup.another_client() as other:
        # An exit lets strangers in over circuits that have told the DHT where they are found.
        announce = b"1:q13:announce_peer"
        assert await setup.everybody_answers(announce)
        assert await other.ask(setup.echoes[0], announce) or await other.ask(setup.echoes[0], announce)
        setup.listen_as_the_usual_one()
        (source, *_) = [source for _, source in setup.echoes[1].received]
        with Echo() as stranger:
            for number in range(50):  # until the children were told
                stranger.sock.sendto(dht_like(b"unasked %d" % number), source)
                if await setup.hears(dht_like(b"unasked %d" % number), 0.1):
                    break
            else:
                raise AssertionError("the usual client hears nothing")
            stranger.sock.sendto(dht_like(b"and on"), source)
            assert await setup.hears(dht_like(b"and on"))
        assert not await other.hears(dht_like(b"and on"), 0.2)


async def test_many_clients_that_end_at_once_trouble_nobody(engine, caplog):
    async with client_of("pooled", 2, True) as setup:
        setup.listen_as_the_usual_one()
        for pause_s in (0, 0.05, 0.2):
            async with AsyncExitStack() as stack:
                others = [await stack.enter_async_context(setup.another_client()) for _ in range(MAX_ASSOCIATIONS - 2)]
                await asyncio.gather(*(other.ask(setup.echoes[0], b"asked", pause_s) for other in others))
        await until(lambda: len(setup.server.connections) == 1)
        assert await setup.everybody_answers(b"and on")
    assert [record.getMessage() for record in caplog.records if record.levelname in ("WARNING", "ERROR")] == []


async def test_the_main_process_sees_no_datagram_once_the_buckets_are_given_out(engine):
    async with client_of("pooled", 2, True) as setup:
        assert await setup.everybody_answers(b"first")
        seen = []
        setup.dispatcher.datagram_received = lambda *arguments: seen.append(arguments)
        setup.tunnel.datagram_received = lambda *arguments: seen.append(arguments)
        for number in range(20):
            assert await setup.everybody_answers(b"more %d" % number)
        assert seen == []


@ENGINES_PYTHON_SLOW
@pytest.mark.parametrize("how", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.slow)])
async def test_a_dead_childs_destinations_go_to_another_and_back_to_its_successor(engine, how):
    async with client_of("pooled", 2, True) as setup:
        pool = setup.tunnel.pool
        assert await setup.everybody_answers(b"before")
        dead = pool.pid(0)
        os.kill(dead, how)
        await until(lambda: pool.pid(0) not in (None, dead) and 0 in setup.tunnel.slots_with_circuits(Lane(1)), 30)
        await until(lambda: setup.dispatcher.lost, what="peers told to reconnect")
        for echo in setup.echoes:
            # Datagrams may be lost while the child was dead, never later.
            assert await setup.ask(echo, b"after") or await setup.ask(echo, b"once more")
        # The port has stayed (`ask` looks at it), and the new child has its share.
        exits = [exits for exits in setup.exits_seen() if len(exits) > 1]
        assert exits
        assert await setup.everybody_answers(b"and on")


async def test_without_circuits_datagrams_are_dropped_and_counted(engine):
    async with client_of("pooled", 1, True) as setup:
        assert await setup.everybody_answers(b"before")
        setup.tunnel.circuits_needed.clear()
        for circuit_id in list(setup.tunnel.circuits):
            await setup.tunnel.remove_circuit(circuit_id)
        assert not await setup.ask(setup.echoes[0], b"nobody", 0.3)
        dropped = setup.dispatcher.dropped() + setup.tunnel.dropped()
        assert dropped["no_circuit"] > 0
        assert all(len(exits) == 1 for exits in setup.exits_seen())


async def test_a_foreign_process_can_not_use_an_association(engine):
    async with client_of("pooled", 1, True) as setup:
        assert await setup.everybody_answers(b"ours")
        before = [len(echo.received) for echo in setup.echoes]
        with udp_socket() as stranger:
            for echo in setup.echoes:
                stranger.sendto(UDP_HEADER_START + encode_address(*echo.address) + dht_like(b"x"), setup.relay)
            await until(lambda: setup.tunnel.dropped()["socks5_foreign_source"] >= DESTINATIONS)
        assert [len(echo.received) for echo in setup.echoes] == before
