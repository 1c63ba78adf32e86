"""A tracker over UDP (BEP 15) and HTTP (BEP 3, 7, 23) that records what it is told, as a private tracker does.

It gives seeders to those who lack something, and nobody to those who lack nothing: so it is always the former that
begin a connection. A UDP client's connection id is taken from the address alone that it was given to.
"""

import asyncio
import secrets
import struct
import time
import urllib.parse
from contextlib import asynccontextmanager
from typing import NamedTuple

import libtorrent as lt
from aiohttp import web

INTERVAL_S = 1800
PROTOCOL = 0x41727101980
CONNECT, ANNOUNCE, SCRAPE, ERROR = 0, 1, 2, 3
_HEAD = struct.Struct("!QII")
_ANNOUNCE = struct.Struct("!20s20sQQQIIIiH")
EVENTS = ["", "completed", "started", "stopped"]


class Told(NamedTuple):
    by: str  # "udp" or "http"
    host: str
    port: int
    infohash: bytes
    peer_id: bytes
    key: int
    uploaded: int
    downloaded: int
    left: int
    event: str


class Tracker:
    def __init__(self):
        self.told = []
        self.agents = set()  # the User-Agents of those who asked over HTTP
        self.at_s = []  # when each of these came (monotonic)
        self.least_s = None  # `min interval` of answers over HTTP
        self.port = 0
        self.wrong_connection_ids = 0
        self._peers = {}  # by infohash and key: address, and whether it lacks something
        self._connections = {}

    def take(self, told):
        """Record an announce, and return the addresses of the peers that it gets."""
        self.told.append(told)
        self.at_s.append(time.monotonic())
        peers = self._peers.setdefault(told.infohash, {})
        if told.event == "stopped":
            peers.pop(told.key, None)
            return []
        peers[told.key] = (told.host, told.port), told.left > 0
        return [address for address, lacks in peers.values() if told.left and not lacks]

    def answer_to(self, data, source):
        """Return the answer to a datagram, None where there is none."""
        if len(data) < _HEAD.size:
            return None
        connection, action, transaction = _HEAD.unpack_from(data)
        if (connection, action) == (PROTOCOL, CONNECT):
            given = secrets.randbits(64)
            self._connections[given] = source
            return struct.pack("!IIQ", CONNECT, transaction, given)
        if self._connections.get(connection) != source:
            self.wrong_connection_ids += 1
            return struct.pack("!II", ERROR, transaction) + b"wrong connection id"
        if action == ANNOUNCE:
            infohash, peer_id, downloaded, left, uploaded, event, _, key, _, port = _ANNOUNCE.unpack_from(
                data, _HEAD.size
            )
            peers = self.take(
                Told("udp", source[0], port, infohash, peer_id, key, uploaded, downloaded, left, EVENTS[event])
            )
            return struct.pack("!IIIII", ANNOUNCE, transaction, INTERVAL_S, 1, 1) + packed(peers)
        return None

    async def answer(self, request):
        query = urllib.parse.parse_qs(request.rel_url.raw_query_string, encoding="latin-1")
        text = {name: values[0] for name, values in query.items()}
        self.agents.add(request.headers.get("User-Agent", "none"))
        numbers = [int(text[name]) for name in ("uploaded", "downloaded", "left")]
        key = int(text.get("key", "0"), 16)
        hashes = text["info_hash"].encode("latin-1"), text["peer_id"].encode("latin-1")
        told = Told("http", request.remote, int(text["port"]), *hashes, key, *numbers, text.get("event", ""))
        answer = {b"interval": INTERVAL_S, b"peers": packed(self.take(told))}
        if self.least_s is not None:
            answer[b"min interval"] = self.least_s
        return web.Response(body=lt.bencode(answer))


def packed(peers):
    return b"".join(bytes(map(int, host.split("."))) + port.to_bytes(2, "big") for host, port in peers)


class _Udp(asyncio.DatagramProtocol):
    def __init__(self, tracker):
        self._tracker = tracker

    def connection_made(self, transport):
        self._transport = transport

    def datagram_received(self, data, source):
        if (answer := self._tracker.answer_to(data, source)) is not None:
            self._transport.sendto(answer, source)


@asynccontextmanager
async def recording_tracker(*hosts):
    """Run one tracker at these addresses, at one port for UDP and HTTP."""
    tracker = Tracker()
    app = web.Application()
    app.router.add_get("/announce", tracker.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    transports = []
    try:
        for host in hosts:
            await web.TCPSite(runner, host, tracker.port).start()
            tracker.port = runner.addresses[0][1]
            transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
                lambda: _Udp(tracker), local_addr=(host, tracker.port)
            )
            transports.append(transport)
        yield tracker
    finally:
        for transport in transports:
            transport.close()
        await runner.cleanup()
