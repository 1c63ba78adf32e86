"""Tests that a user's isolated torrents have nothing in common that others could see."""

import asyncio
import re
import socket
from contextlib import asynccontextmanager

import libtorrent as lt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.worlds.network import COMMUNITY_ID, EXIT_FLAGS, address_of, make_config, until, unused_host
from tunnel_pool.overlay.ground.lanes import GroupedCircuits, Lane, group_of, is_announced
from tunnel_pool.overlay.hidden_swarms.swarm_circuits import CIRCUIT_TYPE_LOOKUP
from tunnel_pool.overlay.node import open_overlay
from tunnel_pool.overlay.requests.http import CIRCUIT_TYPE_HTTP, PEER_FLAG_EXIT_HTTP
from tunnel_pool.pool.scaling import WorkerRange
from tunnel_pool.torrent.client import TorrentClient
from tunnel_pool.torrent.isolation import PLAIN, Isolation, Isolator, share_limit
from tunnel_pool.torrent.metainfo import parse_torrent
from tunnel_pool.tunnels import NodeOptions

TORRENTS = [bytes([number]) * 20 for number in (1, 2)]


class Outside:
    """An HTTP tracker and a DHT node (BEP 5) that keep what an observer there sees."""

    def __init__(self):
        self.dht_ids = {}  # infohash: who asked the DHT for its peers
        self.dht_sources = {}  # infohash: from where, which is an exit's port for each circuit
        self.asked_over_http = set()  # infohashes
        self.dht = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.dht.bind((unused_host(), 0))
        asyncio.get_running_loop().add_reader(self.dht, self._on_dht)

    def _on_dht(self):
        data, source = self.dht.recvfrom(2000)
        query = lt.bdecode(data)
        if query[b"y"] == b"q":
            asked = query[b"a"]
            if b"info_hash" in asked:
                self.dht_ids.setdefault(asked[b"info_hash"], set()).add(asked[b"id"])
                self.dht_sources.setdefault(asked[b"info_hash"], set()).add(source)
            answer = {b"id": b"\x80" * 20, b"nodes": b"", b"token": b"t"}
            self.dht.sendto(lt.bencode({b"t": query[b"t"], b"y": b"r", b"r": answer}), source)

    async def _on_http(self, reader, writer):
        request = await reader.readuntil(b"\r\n\r\n")
        escaped = re.search(rb"info_hash=([^&]*)", request)[1]
        self.asked_over_http.add(re.sub(rb"%(..)", lambda match: bytes.fromhex(match[1].decode()), escaped))
        body = lt.bencode({b"interval": 60, b"peers": b""})
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        await writer.drain()
        writer.close()

    async def __aenter__(self):
        self._http = await asyncio.start_server(self._on_http, unused_host(), 0)
        return self

    async def __aexit__(self, *error):
        self._http.close()
        asyncio.get_running_loop().remove_reader(self.dht)
        self.dht.close()

    def link(self, infohash):
        host, port = self._http.sockets[0].getsockname()
        return parse_torrent(f"magnet:?xt=urn:btih:{infohash.hex()}&tr=http://{host}:{port}/announce")

    def has_seen_all(self):
        return all(infohash in self.dht_ids and infohash in self.asked_over_http for infohash in TORRENTS)


@asynccontextmanager
async def two_torrents(isolation, workers, tmp_path):
    """Yield a client that looks for peers of two torrents over exits in this process, and the Outside that it asks."""
    exits = []
    for _ in range(2):
        known = [address_of(node) for node in exits]
        config = make_config(EXIT_FLAGS | {PEER_FLAG_EXIT_HTTP}, known, allow_private=True)
        exits.append(await open_overlay(config))
    try:
        async with Outside() as outside:
            options = NodeOptions(
                WorkerRange(workers, workers),
                tmp_path,
                bootstrap=tuple(map(address_of, exits)),
                listen=address_of(exits[0])._replace(host=unused_host(), port=0),
                community_id=COMMUNITY_ID,
                allow_private=True,
                circuits=2,
            )
            dht = outside.dht.getsockname()
            async with TorrentClient(options, 1, dht_nodes=[dht], isolation=isolation) as client:
                for infohash in TORRENTS:
                    client.download(outside.link(infohash), tmp_path)
                watching = asyncio.ensure_future(client.wait_finished(lambda client: None))
                await until(outside.has_seen_all, 60, "every question")
                await until(lambda: client.tunnels.find_circuits(CIRCUIT_TYPE_LOOKUP, group=None))
                yield client, outside
                watching.cancel()
    finally:
        for node in exits:
            await node.unload()


def that_ask_trackers(tunnels):
    """Return the circuits of HTTP requests: their own, and those by which others find us."""
    return [c for c in tunnels.circuits.values() if c.ctype == CIRCUIT_TYPE_HTTP or is_announced(c)]


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
async def test_what_others_see_of_two_torrents_has_nothing_in_common(workers, tmp_path):
    async with two_torrents(Isolation.TORRENT, workers, tmp_path) as (client, outside):
        first, second = (outside.dht_ids[infohash] for infohash in TORRENTS)
        assert not first & second
        first, second = (outside.dht_sources[infohash] for infohash in TORRENTS)
        assert not first & second
        tunnels = client.tunnels
        await until(lambda: {group_of(c) for c in that_ask_trackers(tunnels)} == {1, 2})
        await until(
            lambda: {group_of(c) for c in tunnels.find_circuits(CIRCUIT_TYPE_LOOKUP, None, group=None)} == {1, 2}
        )
        assert not tunnels.find_circuits(None, None)  # of group 0
        assert sum(tunnels.wanted_circuits().values()) == 4


@pytest.mark.slow
async def test_without_isolation_they_share_all_that(tmp_path):
    async with two_torrents(Isolation.NONE, 0, tmp_path) as (client, outside):
        first, second = (outside.dht_ids[infohash] for infohash in TORRENTS)
        assert first == second
        assert len(that_ask_trackers(client.tunnels)) <= 2
        assert {group_of(circuit) for circuit in client.tunnels.circuits.values()} == {0}


def test_the_more_groups_there_are_the_fewer_circuits_each_has():
    book = GroupedCircuits()
    book.circuits_needed = {1: 8}
    for group, of_each in [(1, 8), (8, 8), (9, 7), (16, 4), (32, 2), (64, 2)]:
        book.groups_needed = {Lane(1, number): 8 for number in range(1, group + 1)}
        wanted = book.wanted_circuits()
        assert wanted.pop(Lane(1)) == 8
        assert set(wanted.values()) == {of_each}
    book.groups_needed = {Lane(1, 1): 96}  # of many children
    assert book.wanted_circuits()[Lane(1, 1)] == 96


# Who shares a lane

A, B, C = "a" * 40, "b" * 40, "c" * 40


def test_each_torrent_has_a_lane_of_its_own():
    isolator = Isolator(Isolation.TORRENT)
    lanes = [isolator.enter(infohash, hops) for infohash, hops in ((A, 1), (B, 1), (C, 2))]
    assert lanes == [Lane(1, 1), Lane(1, 2), Lane(2, 3)]
    assert isolator.enter(A, 1) == Lane(1, 1)


def test_plain_torrents_share_the_plain_session():
    for isolation in Isolation:
        isolator = Isolator(isolation)
        assert isolator.enter(A, PLAIN, ["x"]) == isolator.enter(B, PLAIN, ["y"]) == Lane(PLAIN)
        assert not isolator.leave(Lane(PLAIN), A)


def test_torrents_with_the_same_labels_share_a_lane():
    isolator = Isolator(Isolation.LABEL)
    lane = isolator.enter(A, 1, ["x", "y"])
    assert isolator.enter(B, 1, ["y", "x"]) == lane
    assert isolator.enter(C, 1, ["x"]) != lane
    assert isolator.is_in_place(lane, A, ["y", "x"])
    assert not isolator.is_in_place(lane, A, ["x"])
    assert not isolator.leave(lane, A)
    assert isolator.leave(lane, B)


def test_a_group_is_not_given_twice():
    isolator = Isolator(Isolation.TORRENT)
    first = isolator.enter(A, 1)
    assert isolator.leave(first, A)
    assert isolator.enter(A, 1).group != first.group


def test_when_all_lanes_are_taken_the_emptiest_of_the_hop_count_is_shared():
    isolator = Isolator(Isolation.TORRENT, most=2)
    lanes = [isolator.enter(infohash, 1) for infohash in (A, B, C)]
    assert (lanes[2], isolator.shared) == (lanes[0], 1)
    assert isolator.enter("d", 1) == lanes[1]
    assert isolator.enter("e", 3).hops == 3
    assert not isolator.leave(lanes[0], A)
    assert isolator.leave(lanes[0], C)


@given(st.integers(1, 1 << 32), st.lists(st.integers(0, 1 << 32), min_size=1, max_size=40))
def test_lanes_share_a_limit_that_all_of_them_together_keep(limit, rates):
    shares = share_limit(limit, {Lane(1, group): rate for group, rate in enumerate(rates, 1)})
    assert sum(shares.values()) <= max(limit, len(rates))
    assert min(shares.values()) >= 1


def test_who_uses_little_leaves_the_limit_to_the_others():
    idle = {Lane(1, group): 0 for group in range(1, 20)}
    shares = share_limit(10_000_000, {**idle, Lane(1, 20): 5_000_000})
    assert shares[Lane(1, 20)] >= 9_000_000
    assert share_limit(0, idle) == dict.fromkeys(idle, 0)
