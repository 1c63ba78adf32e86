"""Tests that a stranger cannot make a node send a third party more bytes than the stranger sent."""

import asyncio
import contextlib
import os
import socket
import time

import pytest
from ipv8.dht.payload import (
    ConnectPeerRequestPayload,
    FindRequestPayload,
    FindResponsePayload,
    PingRequestPayload,
    StorePeerRequestPayload,
    StoreRequestPayload,
)
from ipv8.dht.routing import Node
from ipv8.keyvault.crypto import default_eccrypto
from ipv8.messaging.anonymization.payload import (
    CreatedPayload,
    CreatePayload,
    DestroyPayload,
    ExtendPayload,
    PeersRequestPayload,
    PeersResponsePayload,
)
from ipv8.messaging.interfaces.udp.endpoint import UDPv4Address
from ipv8.peer import Peer

from tests.worlds.marks import ENGINES_PYTHON_SLOW
from tests.worlds.network import RELAY_FLAGS, address_of, make_config, network, opened, until, unused_host
from tunnel_pool.overlay.hidden_swarms.introduced import IntroducedSeeder
from tunnel_pool.overlay.peers.proven import Source
from tunnel_pool.overlay.peers.questions import Questions

INFOHASH = b"h" * 20
pytestmark = [pytest.mark.usefixtures("engine"), ENGINES_PYTHON_SLOW]


class Counted:
    """A victim's socket, which returns the packets that have reached it."""

    def __init__(self):
        self.sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.sock.bind((unused_host(), 0))
        self.sock.setblocking(False)

    @property
    def address(self):
        return UDPv4Address(*self.sock.getsockname())

    def received(self):
        packets = []
        with contextlib.suppress(BlockingIOError):
            while True:
                packets.append(self.sock.recv(65535))
        return packets

    def received_bytes(self):
        return sum(map(len, self.received()))


def messages(stranger, node, victim):
    """Yield name and bytes of each message that a stranger can send; the stranger claims the victim's address."""
    aim, place = victim.address, UDPv4Address(*node.endpoint.get_address())
    circuit_id = 0x01020304

    def cell(payload):
        return (
            node.get_prefix()
            + b"\0"
            + circuit_id.to_bytes(4, "big")
            + b"\1\0"
            + bytes([payload.msg_id])
            + (stranger.serializer.pack_serializable(payload)[4:])
        )

    key = default_eccrypto.generate_key("curve25519").pub().key_to_bin()
    yield "introduction request", stranger.create_introduction_request(place)
    yield "introduction response", stranger.create_introduction_response(aim, aim, 1)
    yield "puncture request", stranger.create_puncture_request(aim, aim, 1)
    yield "puncture", stranger.create_puncture(aim, aim, 1)
    yield "create", cell(CreatePayload(circuit_id, 1, key, os.urandom(32)))
    yield "extend", cell(ExtendPayload(circuit_id, 1, key, os.urandom(32), aim))
    yield "created", cell(CreatedPayload(circuit_id, 1, os.urandom(32), os.urandom(32), b""))
    yield "destroy", stranger.ezr_pack(DestroyPayload.msg_id, DestroyPayload(circuit_id, 1))
    yield "garbage", node.get_prefix() + os.urandom(200)
    yield "a cell of no circuit", node.get_prefix() + b"\0" + os.urandom(200)
    yield from of_overlay("PEX", stranger.pex[INFOHASH], place, aim)
    dht = stranger.dht_provider.dht_community
    yield from of_overlay("DHT", dht, place, aim)
    for payload in (
        PingRequestPayload(1),
        FindRequestPayload(2, aim, INFOHASH, 0, False),
        FindRequestPayload(3, aim, INFOHASH, 0, True),
        StoreRequestPayload(4, b"t" * 20, INFOHASH, [b"v" * 100] * 8),
        StorePeerRequestPayload(5, b"t" * 20, stranger.my_peer.mid),
        ConnectPeerRequestPayload(6, aim, node.my_peer.mid),
        FindResponsePayload(7, b"t" * 20, [], dht_nodes(aim)),
    ):
        dht.my_peer = Peer(default_eccrypto.generate_key("curve25519"), aim)
        yield f"DHT {type(payload).__name__.removesuffix('Payload')}", dht.ezr_pack(payload.msg_id, payload)


def of_overlay(name, overlay, place, aim):
    yield f"{name} introduction request", overlay.create_introduction_request(place)
    yield f"{name} introduction response", overlay.create_introduction_response(aim, aim, 1)
    yield f"{name} puncture request", overlay.create_puncture_request(aim, aim, 1)


def dht_nodes(address):
    return [Node(default_eccrypto.generate_key("curve25519").pub(), address) for _ in range(8)]


@contextlib.asynccontextmanager
async def quiet_network():
    """Yield a node that is an introduction point, a stranger, and the node's five peers; none sends by itself."""
    config = make_config(RELAY_FLAGS, allow_private=True)
    async with network(exits=2, relays=3) as known, opened(config, make_config(RELAY_FLAGS)) as (node, stranger):
        dht = node.dht_provider.dht_community
        for other in known:
            node.walk_to(UDPv4Address(*address_of(other)))
            dht.walk_to(UDPv4Address(*address_of(other)))
        await until(lambda: len(node.candidates) == 5 and len(dht.get_peers()) == 5)
        await until(lambda: all(peer.public_key.key_to_bin() in dht._answered for peer in dht.get_peers()))
        for seeder in range(10):
            node.announce_seeder(IntroducedSeeder(bytes([seeder]) * 74, INFOHASH))
        stranger.announce_seeder(IntroducedSeeder(b"s" * 74, INFOHASH))
        for each in (node, stranger, *known):
            for busy in (each.ipv8, *each.ipv8.overlays):
                await asyncio.gather(*busy.cancel_all_pending_tasks(), return_exceptions=True)
        for overlay in node.ipv8.overlays:
            overlay._questions = Questions()  # as if the questions of before had been forgotten
        yield node, stranger, known


async def test_a_stranger_gets_no_more_out_of_a_node_than_it_puts_in(capsys):
    async with quiet_network() as (node, stranger, known):
        victim = Counted()
        aim = victim.address
        for overlay in stranger.ipv8.overlays:
            overlay.my_peer = Peer(default_eccrypto.generate_key("curve25519"), aim)
        # What third parties get besides; cells of the native engine go to the victim alone.
        third, send = [], node.endpoint.send
        node.endpoint.send = lambda to, packet: (
            third.append((to, len(packet))) if tuple(to) != aim else None,
            send(to, packet),
        )
        rows = []
        for name, packet in messages(stranger, node, victim):
            third.clear()
            victim.received_bytes()
            victim.sock.sendto(packet, node.endpoint.get_address())
            await asyncio.sleep(0.15)
            rows.append((name, len(packet), victim.received_bytes() + sum(size for _, size in third)))
        with capsys.disabled():
            print()
            for name, came, left in rows:
                print(f"{name:28} {came:5} bytes in, {left:5} out, {left / came:.2f}")
        assert {name: left / came for name, came, left in rows if left > came} == {}
        victim.sock.close()


def peers_request(stranger):
    request = PeersRequestPayload(1, 1, INFOHASH)
    return stranger.ezr_pack(request.msg_id, request, sig=False)


async def test_who_asks_for_peers_from_nowhere_gets_no_more_than_it_sent(capsys):
    """A peers-request of py-ipv8 is unsigned, and comes from exits that nobody can ask whether they are there."""
    async with quiet_network() as (node, stranger, known):
        victim = Counted()
        packet = peers_request(stranger)
        for _ in range(100):
            victim.sock.sendto(packet, node.endpoint.get_address())
        await until(lambda: node.dropped()["peers_request_of_stranger"] == 100)
        answers = victim.received()
        left, came = sum(map(len, answers)), 100 * len(packet)
        with capsys.disabled():
            print(f"\n100 x peers-request            {came:5} bytes in, {left:5} out, {left / came:.2f}")
        assert len(answers) >= 95
        assert left <= came
        assert not any(node.serializer.unpack_serializable(PeersResponsePayload, each, 23)[0].peers for each in answers)
        victim.sock.close()


async def test_an_exit_at_the_address_of_a_node_is_told_the_peers_now_and_then():
    async with quiet_network() as (node, stranger, known):
        exit_socket = Counted()
        node.proven.add(Source((exit_socket.address[0], 1), b"key"), time.monotonic())
        for _ in range(100):
            exit_socket.sock.sendto(peers_request(stranger), node.endpoint.get_address())
        await until(lambda: node.dropped()["peers_request_too_often"] >= 80)
        answers = exit_socket.received()
        assert 5 <= len(answers) <= 20
        answer, _ = node.serializer.unpack_serializable(PeersResponsePayload, answers[0], 23)
        assert answer.peers
        exit_socket.sock.close()
