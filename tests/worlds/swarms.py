"""Runs real trackers and DHT nodes on loopback, where tests find a torrent's peers, and announces a seeder there."""

import asyncio
import getpass
import os
import shutil
import socket
import tempfile
import urllib.parse
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import aiohttp
import libtorrent as lt
from aiohttp import web
from yarl import URL

from tests.worlds.network import until, unused_host
from tunnel_pool.private_swarm.seeder import seeder_settings
from tunnel_pool.private_swarm.swarm import free_port
from tunnel_pool.torrent.sessions.libtorrent_session import open_session
from tunnel_pool.torrent.sessions.session_settings import PRIVATE_DHT


def _find_opentracker():
    """Return opentracker's path; None if it is missing, or cannot drop root in a namespace without other users."""
    is_root = os.geteuid() == 0
    users = sum(int(line.split()[2]) for line in Path("/proc/self/uid_map").read_text().splitlines())
    return None if is_root and users < 2 else shutil.which("opentracker", path="/usr/bin:/usr/sbin:/usr/local/bin")


OPENTRACKER = _find_opentracker()

ALLOWED_FILE = "allowed"


def announce_query(infohash, port):
    fields = {"info_hash": infohash, "peer_id": b"-XX0000-" + bytes(12), "port": port}
    more = {"uploaded": 0, "downloaded": 0, "left": 0, "compact": 1, "event": "started"}
    return urllib.parse.urlencode({**fields, **more}, quote_via=urllib.parse.quote)


@asynccontextmanager
async def opentracker(host, infohash):
    """Run opentracker over HTTP and UDP, and yield its address; Debian's build needs a list, here of one torrent."""
    port = free_port(host)
    with tempfile.TemporaryDirectory() as folder:
        _allow(folder, infohash)
        process = await asyncio.create_subprocess_exec(
            OPENTRACKER, "-i", host, "-p", str(port), "-P", str(port), "-d", folder, "-w", ALLOWED_FILE,
            "-u", "nobody" if os.geteuid() == 0 else getpass.getuser(),
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        try:
            yield host, port
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def _allow(folder, infohash):
    Path(folder).chmod(0o755)
    Path(folder, ALLOWED_FILE).write_text(infohash.hex() + "\n")


async def announce(tracker, infohash, peer):
    """Tell a tracker of a seeder, from the seeder's own address, as trackers want it."""
    connector = aiohttp.TCPConnector(local_addr=(peer[0], 0))
    url = f"http://{tracker[0]}:{tracker[1]}/announce?{announce_query(infohash, peer[1])}"
    async with aiohttp.ClientSession(connector=connector) as session:
        answer = {}
        for _ in range(50):
            # It is starting: nobody is there yet, or its list is not read.
            with suppress(aiohttp.ClientConnectionError):
                async with session.get(URL(url, encoded=True)) as response:
                    answer = lt.bdecode(await response.read())
                if b"failure reason" not in answer:
                    return
            await asyncio.sleep(0.1)
    raise AssertionError(f"the tracker does not take it: {answer}")


def _listed(packed, names):
    """Return peers in the form of BEP 3, with some that have a name in the place of an address."""
    places = [(".".join(map(str, peer[:4])), int.from_bytes(peer[4:], "big")) for peer in packed]
    return [{b"ip": host.encode(), b"port": port} for host, port in [*((name, 6881) for name in names), *places]]


@asynccontextmanager
async def http_tracker(host=None, names=()):
    """Run an HTTP tracker (BEP 3, 23) for machines without opentracker; yield its address, and a list of who asked.

    With `names`, it answers with dictionaries of peers (BEP 3), among them these names. /moved redirects to /announce.
    """
    peers, asked = {}, []

    async def answer(request):
        query = urllib.parse.parse_qs(request.rel_url.raw_query_string, encoding="latin-1")
        infohash = query["info_hash"][0].encode("latin-1")
        asked.append(request.remote)
        if query.get("left") == ["0"]:
            packed = bytes(map(int, request.remote.split("."))) + int(query["port"][0]).to_bytes(2, "big")
            peers.setdefault(infohash, set()).add(packed)
        found = peers.get(infohash, ())
        listed = _listed(found, names) if names else b"".join(found)
        return web.Response(body=lt.bencode({b"interval": 60, b"peers": listed}))

    async def redirect(request):
        raise web.HTTPFound(f"/announce?{request.rel_url.raw_query_string}")

    app = web.Application()
    app.router.add_get("/announce", answer)
    app.router.add_get("/moved", redirect)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, host or unused_host(), 0)
    await site.start()
    try:
        yield runner.addresses[0], asked
    finally:
        await runner.cleanup()


def _knows_its_address(session, place):
    """Tell a DHT node its address (BEP 42), and return whether it has heard it.

    A node that learns it later takes another id then, and whoever asks for the old one waits 15 s for an answer.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as voter:
        address = socket.inet_aton(place[0]) + place[1].to_bytes(2, "big")
        voter.sendto(lt.bencode({b"y": b"e", b"t": b"", b"e": [201, b""], b"ip": address}), place)
    return any(isinstance(alert, lt.external_ip_alert) for alert in session.pop_alerts())


@asynccontextmanager
async def dht_nodes(hosts):
    """Run libtorrent DHT nodes that know each other, and yield their sessions and addresses.

    libtorrent keeps its DHT off private and loopback addresses: give it others, in a namespace.
    """
    sessions = []
    for host in hosts:
        settings = {**seeder_settings(host), **PRIVATE_DHT, "enable_dht": True}
        settings["dht_block_ratelimit"] = 1000  # else who asks 50 times in 10 s is heard no more for five minutes
        kinds = lt.alert.category_t
        settings["alert_mask"] = int(
            kinds.dht_notification | kinds.dht_operation_notification | kinds.status_notification
        )
        sessions.append(open_session(settings))
    try:
        places = []
        for host, session in zip(hosts, sessions, strict=True):
            await until(session.listen_port, what="a DHT node")
            places.append((host, session.listen_port()))
            await until(partial(_knows_its_address, session, places[-1]), what="a DHT node's name for good")
        for session in sessions:
            for place in places:
                session.add_dht_node(place)
        yield sessions, places
    finally:
        for session in sessions:
            session.pause()
        await asyncio.to_thread(sessions.clear)
