"""Tests that a node on a machine of several addresses answers from the one that it was asked at."""

import socket

import pytest

from tests.worlds.device_world import reaches_the_echo
from tests.worlds.network import EXIT_FLAGS, Echo, make_config, opened, unused_host
from tunnel_pool.overlay.ground.config import HostPort
from tunnel_pool.overlay.wire import udp
from tunnel_pool.overlay.wire.udp import Arrivals, arrivals_of, bind_udp

ANYWHERE = "0.0.0.0"


@pytest.mark.usefixtures("engine")
async def test_a_node_answers_from_the_address_that_it_was_asked_at():
    """By its routes the node would answer from 127.0.0.1, an address that the other has not asked."""
    async with opened(make_config(EXIT_FLAGS, host=ANYWHERE, allow_private=True)) as (node,):
        asked = HostPort(unused_host(), node.endpoint.get_address()[1])
        async with opened(make_config(frozenset(), [asked])) as (client,):
            client.settings.max_circuits = 2
            client.build_tunnels(1)
            with Echo() as echo:
                await reaches_the_echo(client, echo)
            assert {circuit.hop.address for circuit in client.find_circuits()} == {tuple(asked)}


def test_datagrams_leave_from_where_they_came_and_from_elsewhere_once_that_is_gone(monkeypatch):
    monkeypatch.setattr(udp, "MAX_ARRIVALS", 3)
    ours = bind_udp(ANYWHERE, 0)
    port, place = ours.getsockname()[1], unused_host()
    with ours, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as theirs:
        arrivals = arrivals_of(ours)
        theirs.bind((unused_host(), 0))
        theirs.settimeout(5)
        theirs.sendto(b"asked", (place, port))
        ours.setblocking(True)
        size, source = arrivals.receive(ours, bytearray(9))
        assert (size, source) == (5, theirs.getsockname())
        arrivals.send(ours, b"answer", source)
        assert theirs.recvfrom(9) == (b"answer", (place, port))
        arrivals._at[source] = socket.inet_aton("192.0.2.1")
        arrivals.send(ours, b"answer", source)
        assert theirs.recvfrom(9) == (b"answer", ("127.0.0.1", port))
        for number in range(9):
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as another:
                another.sendto(b"%d" % number, (place, port))
                arrivals.receive(ours, bytearray(9))
        assert len(arrivals._at) <= 3


def test_a_socket_of_one_address_learns_nothing():
    with bind_udp(unused_host(), 0) as ours:
        assert arrivals_of(ours) is None
    with bind_udp(ANYWHERE, 0) as ours:
        assert isinstance(arrivals_of(ours), Arrivals)
