"""Tests the DHT of introduction points: which nodes it remembers and asks, also among nodes of plain py-ipv8."""

import asyncio
import logging
import os
from contextlib import asynccontextmanager
from functools import partial

import pytest
from ipv8.community import CommunitySettings
from ipv8.dht.community import DHTCommunity
from ipv8.dht.discovery import DHTDiscoveryCommunity
from ipv8.dht.payload import FindResponsePayload, PingRequestPayload, PingResponsePayload
from ipv8.dht.routing import Node
from ipv8.keyvault.crypto import default_eccrypto
from ipv8.messaging.interfaces.udp.endpoint import UDPEndpoint, UDPv4Address
from ipv8.peer import Peer
from ipv8.peerdiscovery.network import Network

from tests.worlds.network import address_of, network, until, unused_host
from tunnel_pool.overlay.hidden_swarms.introduced import IntroducedSeeder
from tunnel_pool.overlay.peers import dht as own
from tunnel_pool.overlay.peers.dht import BoundedStorage

TARGET = b"t" * 20


def new_key():
    return default_eccrypto.generate_key("curve25519")


@asynccontextmanager
async def plain_node(kind=DHTDiscoveryCommunity):
    """Yield a node of py-ipv8's own DHT."""
    endpoint = UDPEndpoint(0, unused_host())
    await endpoint.open()
    peer = Peer(new_key(), UDPv4Address(*endpoint.get_address()))
    node = kind(CommunitySettings(my_peer=peer, endpoint=endpoint, network=Network()))
    node.my_estimated_wan = UDPv4Address(*endpoint.get_address())
    try:
        yield node
    finally:
        await node.unload()
        endpoint.close()


@asynccontextmanager
async def dht_of(relays):
    """Yield the DHT overlays of `relays` nodes that know each other."""
    async with network(exits=0, relays=relays) as nodes:
        overlays = [node.dht_provider.dht_community for node in nodes]
        await until(lambda: all(len(dht.get_peers()) == relays - 1 for dht in overlays))
        yield overlays


def known_to(dht):
    nodes = (node for table in dht.routing_tables.values() for node in table.closest_nodes(TARGET, 99))
    return {node.public_key.key_to_bin() for node in nodes}


@pytest.mark.parametrize("kind", [DHTCommunity, DHTDiscoveryCommunity])
async def test_nodes_of_py_ipv8_store_and_find(kind):
    """Nodes to which they were not introduced answer them, too, after a check that they are at their address."""
    async with dht_of(4) as overlays, plain_node(kind) as one, plain_node(kind) as other:
        one.walk_to(UDPv4Address(*address_of(overlays[0])))
        other.walk_to(UDPv4Address(*address_of(overlays[1])))
        await until(lambda: known_to(one) and known_to(other))
        assert await one.store_value(TARGET, b"value")
        assert len(known_to(one)) > 1  # met in the look-up alone
        assert (await other.find_values(TARGET))[0][0] == b"value"


async def test_who_is_not_there_is_neither_remembered_nor_told_of():
    async with dht_of(2) as (dht, _), plain_node() as stranger:
        key = new_key()
        stranger.my_peer = Peer(key, stranger.my_peer.address)
        stranger.decode_map[PingRequestPayload.msg_id] = None  # does not hear what is sent where it says that it is
        stranger.ez_send(Peer(dht.my_peer.key, address_of(dht)), PingRequestPayload(1))
        stranger._send_find_request(Node(dht.my_peer.key, address_of(dht)), TARGET, True)
        await until(lambda: len(dht._held._held) == 1)
        assert key.pub().key_to_bin() not in known_to(dht)
        stranger.decode_map[PingRequestPayload.msg_id] = stranger.on_ping_request
        stranger._send_find_request(Node(dht.my_peer.key, address_of(dht)), TARGET, True)
        await asyncio.sleep(0)
        stranger.my_peer = Peer(new_key(), stranger.my_peer.address)
        found = await stranger._send_find_request(Node(dht.my_peer.key, address_of(dht)), TARGET, True)
        assert found["nodes"]
        assert key.pub().key_to_bin() not in known_to(dht)


async def test_an_answer_in_another_name_is_none():
    async with dht_of(2) as (dht, other), plain_node() as stranger:
        asked = Node(other.my_peer.key, address_of(other))
        other.decode_map[5] = other.decode_map[1] = None  # silent
        found = dht._send_find_request(asked, TARGET, True)
        ping = dht.ping(asked)
        await asyncio.sleep(0)
        questions = {known.prefix: known for known in dht.request_cache._identifiers.values() if known.node is asked}
        here = Peer(dht.my_peer.key, address_of(dht))
        stranger.ez_send(here, FindResponsePayload(questions["find"].number, b"t" * 20, [], [asked]))
        stranger.ez_send(here, PingResponsePayload(questions["ping"].number))
        await until(lambda: dht.counters["dht_response_unasked"] == 2)
        assert not found.done()
        assert not ping.done()


async def test_of_each_address_that_an_answer_names_one_node_is_asked():
    async with dht_of(2) as (dht, _), plain_node() as liar, plain_node() as victim:
        asked = []
        host, port = victim.my_peer.address
        forbidden = ("127.9.9.9", 9)
        dht.may_contact = lambda host, port: (host, port) != forbidden
        here = UDPv4Address(host, port)
        named = [Node(victim.my_peer.public_key, here), *(Node(new_key().pub(), here) for _ in range(6))]
        named.append(Node(new_key().pub(), UDPv4Address(*forbidden)))
        sent, send = [], dht.endpoint.send
        dht.endpoint.send = lambda to, packet: (sent.append(tuple(to)), send(to, packet))

        def answer(node, nodes, source, data):
            payload, _ = node.serializer.unpack_serializable(own.FindRequestPayload, data, offset=99)
            node.ez_send(Peer(dht.my_peer.key, source), FindResponsePayload(payload.identifier, b"t" * 20, [], nodes))

        liar.decode_map[5] = partial(answer, liar, named)
        victim.decode_map[5] = lambda source, data: (asked.append(data), answer(victim, [], source, data))
        dht.walk_to(liar.my_peer.address)
        await until(lambda: liar.my_peer.public_key.key_to_bin() in known_to(dht))
        await dht.find_nodes(TARGET)
        assert len(asked) == 1
        assert forbidden not in sent


async def test_a_node_that_asks_without_end_is_answered_now_and_then():
    async with dht_of(2) as (dht, _), plain_node() as greedy:
        here = Node(dht.my_peer.key, address_of(dht))
        answers = [greedy._send_find_request(here, TARGET, True) for _ in range(100)]
        assert await answers[0]
        more = [greedy._send_find_request(here, TARGET, True) for _ in range(100)]
        await until(lambda: dht.counters["dht_request_too_often"] >= 80)
        await until(lambda: sum(answer.done() for answer in more) >= 3)
        assert sum(answer.done() for answer in more) <= 15


async def test_garbage_is_not_told_of(caplog):
    """A stranger does not fill the log, by the overlays of the tunnels, of the DHT or of a swarm's PEX."""
    async with network(exits=0, relays=1) as (node,), plain_node() as stranger:
        node.announce_seeder(IntroducedSeeder(b"s" * 74, TARGET))
        assert len(node.ipv8.overlays) == 3
        for overlay in node.ipv8.overlays:
            signed = overlay.ezr_pack(1, PingRequestPayload(1))[23:]
            for number in range(256):
                for rest in (b"", os.urandom(150), signed, signed[:90] + os.urandom(60)):
                    stranger.endpoint.send(address_of(node), overlay.get_prefix() + bytes([number]) + rest)
                await asyncio.sleep(0)
        answered = stranger.ping(Node(node.my_peer.key, address_of(node)))
        assert await answered is not None
    ours = [record for record in caplog.records if record.name != type(stranger).__name__]
    assert [record.getMessage() for record in ours if record.levelno >= logging.WARNING] == []


async def test_the_number_of_a_ping_is_not_guessed():
    async with dht_of(2) as (dht, other):
        for _ in range(8):
            dht.ping(Node(other.my_peer.key, address_of(other)))
        assert max(known.number for known in dht.request_cache._identifiers.values()) > 2**16


async def test_nodes_that_did_not_answer_are_asked_again():
    """After a minute without a network all are in that state, and who is not asked can't show that it is there."""
    async with dht_of(3) as (asking, *others):
        await until(lambda: len(known_to(asking)) == 2)
        for node in asking.nodes():
            node.failed = 9
        assert not known_to(asking)
        asking.ping_all()
        await until(lambda: len(known_to(asking)) == 2)


def test_values_are_stored_while_there_is_room(monkeypatch):
    monkeypatch.setattr(own, "MAX_KEYS", 3)
    storage = BoundedStorage()
    for number in range(100):
        storage.put(TARGET, b"%d" % number)
    assert len(storage.get(TARGET)) == own.MAX_VALUES
    assert storage.get(TARGET, limit=1) == [b"99"]
    for number in range(5):
        storage.put(b"%d" % number, b"value", max_age=-1)
    assert len(storage.items) == 3
    storage.clean()
    assert not storage.items
