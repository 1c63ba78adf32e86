"""Run a client in a network namespace of its own, and record where the packets that leave it go.

leak_world.py SOURCE FOLDER [kill|daemon|change|restart] [OPTION...]

SOURCE is one of http, udp, dht, hostile, plain-dht and feed.

Runs in a network namespace that `unshare` made. The client runs in another, whose
name server does not exist; only a veth pair joins the two. All frames that leave
the client are counted. Prints one JSON object: how the client ended, and where its
packets went.
"""

import asyncio
import base64
import ctypes
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import libtorrent as lt

from tests.worlds.commands import MODULE, ROOT, command
from tests.worlds.feed_server import feed_of, feed_server
from tests.worlds.https import HTTPS_PORT, authority
from tests.worlds.network import until
from tests.worlds.swarms import OPENTRACKER, announce, dht_nodes, http_tracker, opentracker
from tunnel_pool.private_swarm.swarm import EXIT_NET, RELAY_NET, LocalSwarm, same_bytes
from tunnel_pool.torrent.metainfo import parse_torrent, swarm_hash_of

NET = "44.7"
WORLD, CLIENT = f"{NET}.250.1", f"{NET}.250.2"
WORLD_6, CLIENT_6, OUTSIDE_6 = "2a44:7::1", "2a44:7::2", "2a45::80"
NAME_SERVER = "45.0.0.53"  # past the gateway, so that a question is a packet and no ARP request
TRACKER, DHT = f"{NET}.4.1", [f"{NET}.5.{number}" for number in range(1, 5)]
SEEDER = f"{NET}.6.1"  # hidden
FEED, FEED_NAME = f"{NET}.7.1", "feed.example"
ETH_P_ALL, ETH_P_IP, ETH_P_IPV6 = 3, 0x0800, 0x86DD
ICMPV6, HOP_BY_HOP = 58, 0
TCP, TCP_RESET = 6, 4  # RFC 9293, 3.1
OF_NEIGHBOURS = {*range(130, 138), 143}  # types of ICMPv6: who is there, and who listens
SO_ATTACH_FILTER = 26  # asm-generic/socket.h
SOL_PACKET, PACKET_STATISTICS, PACKET_IGNORE_OUTGOING = 263, 6, 23  # linux/if_packet.h
OUTSIDE, OUTSIDE_PORT = "45.0.0.80", 8080  # past the gateway, too
SCHEMES = ("ws", "wss", "https", "i2p", "ftp", "WS", "socks5", "file")
KILLED_AFTER_S = (0.05, 0.3, 0.8, 1.5, 2.5)  # since the daemon answers
SILENT_FOR_S = 14.0  # a look-up in the DHT ends in an announcement within 12 s
TRACKERS_NAME = "tracker.example"
DHT_NAME = "router.example"


def run(*arguments):
    return subprocess.run(arguments, check=True, capture_output=True).stdout


class Client:
    """The client's network and mount namespace; `enter` is the command prefix that runs a program in it."""

    def __init__(self, folder):
        (folder / "resolv.conf").write_text(f"nameserver {NAME_SERVER}\n")
        (folder / "hosts").write_text("127.0.0.1 localhost\n")
        self._holder = subprocess.Popen(["unshare", "-n", "-m", "sleep", "600"])
        self.enter = ["nsenter", "-t", str(self._holder.pid), "-n", "-m"]
        self._folder = folder

    def join(self):
        """Join both namespaces by a veth pair; return False while `unshare` has not made the client's yet."""
        return self._joined("world")

    def join_bridge(self):
        """Join both namespaces by a bridge named `world`, whose port to the client is `port`; return as `join`."""
        return self._joined("port")

    def _joined(self, device):
        ours, theirs = (os.readlink(f"/proc/{pid}/ns/net") for pid in ("self", self._holder.pid))
        if ours == theirs:
            return False
        run("ip", "link", "add", device, "type", "veth", "peer", "name", "wire")
        if device != "world":
            run("ip", "link", "add", "world", "type", "bridge")
            run("ip", "link", "set", device, "master", "world", "up")
        (wire,) = json.loads(run("ip", "-json", "link", "show", "wire"))
        self.mac = bytes.fromhex(wire["address"].replace(":", ""))
        run("ip", "link", "set", "wire", "netns", str(self._holder.pid))
        run("ip", "addr", "add", f"{WORLD}/16", "dev", "world")
        run("ip", "addr", "add", f"{WORLD_6}/64", "dev", "world", "nodad")
        run("ip", "link", "set", "world", "up")
        for file in ("resolv.conf", "hosts"):
            run(*self.enter, "mount", "--bind", str(self._folder / file), f"/etc/{file}")
        run(*self.enter, "ip", "addr", "add", f"{CLIENT}/16", "dev", "wire")
        run(*self.enter, "ip", "addr", "add", f"{CLIENT_6}/64", "dev", "wire", "nodad")
        for name in ("lo", "wire"):
            run(*self.enter, "ip", "link", "set", name, "up")
        for gateway in (WORLD, WORLD_6):
            run(*self.enter, "ip", "route", "add", "default", "via", gateway)
        return True

    def close(self):
        self._holder.kill()
        self._holder.wait()


# linux/filter.h: pass over UDP to hosts of the nodes (their nets are the third number), keep all else.
_TO_NODES = [
    (0x28, 0, 0, 12),  # the ethertype
    (0x15, 0, 6, ETH_P_IP),
    (0x30, 0, 0, 23),  # the protocol
    (0x15, 0, 4, socket.IPPROTO_UDP),
    (0x20, 0, 0, 30),  # the destination
    (0x74, 0, 0, 8),
    (0x15, 2, 0, int.from_bytes(socket.inet_aton(f"0.{NET}.{EXIT_NET}"), "big")),
    (0x15, 1, 0, int.from_bytes(socket.inet_aton(f"0.{NET}.{RELAY_NET}"), "big")),
    (0x06, 0, 0, 256),
    (0x06, 0, 0, 0),
]


class Wire:
    """Counts the client's frames that do not go to a node, by destination."""

    def __init__(self, mac, device="world"):
        """Listen to the client's frames, whose source is `mac`; other frames on the device are ignored."""
        self._device = device
        self.packets = Counter()
        self.infohash = None  # whose name in a frame is noted
        self._mac = mac
        self._received_before = self._received()
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
        code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *line) for line in _TO_NODES))
        program = struct.pack("@HP", len(_TO_NODES), ctypes.addressof(code))
        self._socket.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)
        self._socket.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
        self._socket.bind((device, 0))
        threading.Thread(target=self._listen, daemon=True).start()

    def _received(self):
        (device,) = json.loads(run("ip", "-statistics", "-json", "link", "show", self._device))
        return device["stats64"]["rx"]["packets"]

    def to_nodes(self):
        """Return how many packets went to nodes: all that came, without those counted in `packets`."""
        return self._received() - self._received_before - self.packets.total()

    def _listen(self):
        with suppress(OSError):  # the wire is gone with the client
            while True:
                frame, (_, kind, *_) = self._socket.recvfrom(256)
                if frame[6:12] == self._mac:
                    named = " names the torrent" if self.infohash and self.infohash in frame else ""
                    self.packets[self._destination(frame, kind) + named] += 1

    @staticmethod
    def _destination(frame, kind):
        if kind == ETH_P_IPV6:
            return _destination_6(frame[14:])
        if kind != ETH_P_IP:
            return f"ethertype {kind:04x}"
        header = frame[14:]
        length = (header[0] & 15) * 4
        protocol, destination = header[9], socket.inet_ntoa(header[16:20])
        port = struct.unpack_from("!H", header, length + 2)[0] if protocol in (6, 17) else 0
        return f"{_protocol_name(protocol, header[length:])} {destination}:{port}"

    def dropped(self):
        """Return how many frames the kernel dropped before we read them (packet(7), PACKET_STATISTICS)."""
        return struct.unpack("II", self._socket.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8))[1]


def _protocol_name(protocol, above):
    """Name a protocol; "reset" is what the kernel answers by TCP to who connects to a port that nobody listens at."""
    if protocol == TCP and above[13] & TCP_RESET:
        return "reset"
    return {TCP: "tcp", 17: "udp"}.get(protocol, protocol)


def _destination_6(header):
    protocol, above = header[6], header[40:]
    if protocol == HOP_BY_HOP:
        protocol, above = above[0], above[8 * (above[1] + 1) :]
    if protocol == ICMPV6 and above[0] in OF_NEIGHBOURS:
        return "neighbours"
    port = struct.unpack_from("!H", above, 2)[0] if protocol in (6, 17) else 0
    return f"{_protocol_name(protocol, above)} [{socket.inet_ntop(socket.AF_INET6, header[24:40])}]:{port}"


async def find_seeder(source, swarm, stack):
    """Announce the swarm's seeder at this source; return the link and further arguments for the download."""
    infohash = swarm_hash_of(parse_torrent(str(swarm.torrent)))
    if source == "hostile":
        return await hostile_torrent(swarm, infohash, stack), []
    # A DHT node and a peer that whoever made the link named: libtorrent would ask the name server for the node.
    link = f"magnet:?xt=urn:btih:{infohash.hex()}&dht=nobody.example:6881&x.pe=peer.example:6881"
    if source in ("http", "udp"):
        if OPENTRACKER is None:
            tracker, _ = await stack.enter_async_context(http_tracker(TRACKER))
        else:
            tracker = await stack.enter_async_context(opentracker(TRACKER, infohash))
        await announce(tracker, infohash, swarm.seeders[0])
        return f"{link}&tr={source}://{TRACKERS_NAME}:{tracker[1]}/announce", []
    if source == "feed":
        return await hostile_feed(swarm, infohash, stack), []
    sessions, places = await stack.enter_async_context(dht_nodes(DHT))
    if source == "plain-dht":
        # A tracker that never answers, besides.
        return f"{link}&tr=udp://{OUTSIDE}:{OUTSIDE_PORT}/announce", [f"--dht={places[0][0]}:{places[0][1]}"]
    await seed_in_dht(sessions, places, swarm, infohash)
    return link, [f"--dht={DHT_NAME}:{places[0][1]}"]


async def hostile_torrent(swarm, infohash, stack):
    """Write a torrent file that names hosts past the proxy, and run a tracker that does, too; return the path."""
    names = ["peer.example", "localhost.example", OUTSIDE_6]
    tracker, _ = await stack.enter_async_context(http_tracker(TRACKER, names))
    await announce(tracker, infohash, swarm.seeders[0])
    decoded = lt.bdecode(swarm.torrent.read_bytes())
    # libtorrent asks one after the other, until one answers.
    urls = [
        f"{scheme}://{host}:{OUTSIDE_PORT}/announce"
        for scheme in SCHEMES
        for host in ("x.example", OUTSIDE, f"[{OUTSIDE_6}]")
    ]
    urls.append(f"http://{TRACKERS_NAME}:{tracker[1]}/moved")
    decoded |= {
        b"announce": urls[0].encode(),
        b"announce-list": [[url.encode()] for url in urls],
        b"url-list": [
            b"http://seed.example/",
            b"https://seed.example/",
            f"https://{OUTSIDE}:443/".encode(),
            f"http://{OUTSIDE}:{OUTSIDE_PORT}/".encode(),
            f"http://[{OUTSIDE_6}]/".encode(),
        ],
        b"httpseeds": [b"http://httpseed.example/seed"],
        b"nodes": [[b"node.example", 6881], [OUTSIDE.encode(), 6881], [OUTSIDE_6.encode(), 6881]],
    }
    path = swarm.torrent.with_name("hostile.torrent")
    path.write_bytes(lt.bencode(decoded))
    return str(path)


async def hostile_feed(swarm, infohash, stack):
    """Serve a feed that names addresses past the tunnels, and then the swarm's torrent."""
    tracker, _ = await stack.enter_async_context(http_tracker(TRACKER))
    await announce(tracker, infohash, swarm.seeders[0])
    trusted, tls = authority(swarm.torrent.parent, FEED_NAME)
    server = await stack.enter_async_context(feed_server(FEED, HTTPS_PORT, tls))
    outside = (
        f"{OUTSIDE}:{OUTSIDE_PORT}",
        f"[{OUTSIDE_6}]:{OUTSIDE_PORT}",
        "x.example",
        WORLD,
        "192.168.7.1",
        "127.0.0.1:9",
    )
    urls = [f"{scheme}://{place}/x.torrent" for place in outside for scheme in ("http", "https", "ftp", "file")]
    urls += [f"//{OUTSIDE}:{OUTSIDE_PORT}/x.torrent", f"https://{FEED_NAME}/moved"]
    server.pages["/moved"] = f"http://{OUTSIDE}:{OUTSIDE_PORT}/x.torrent"
    server.pages["/get"] = f"magnet:?xt=urn:btih:{infohash.hex()}&tr=http://{TRACKERS_NAME}:{tracker[1]}/announce"
    server.pages["/rss"] = feed_of(*((url, url) for url in urls), ("the one", "/get"))
    server.trusted = trusted
    return server


async def seed_in_dht(sessions, places, swarm, infohash):
    seeding = lt.load_torrent_file(str(swarm.torrent))
    seeding.save_path = str(swarm.file.parent)
    seeding.flags |= lt.torrent_flags.seed_mode
    seeding.flags &= ~(lt.torrent_flags.paused | lt.torrent_flags.auto_managed)
    handle = sessions[-1].add_torrent(seeding)
    found, asked_s = set(), 0.0

    def announced():
        nonlocal asked_s
        if time.monotonic() < asked_s + 0.5:
            return False
        asked_s = time.monotonic()
        for session in sessions:  # which forget all nodes when they learn their address
            for place in places:
                session.add_dht_node(place)
        handle.force_dht_announce()
        sessions[0].dht_get_peers(lt.sha1_hash(infohash))
        for alert in sessions[0].pop_alerts():
            if isinstance(alert, lt.dht_get_peers_reply_alert) and alert.num_peers():
                found.add(alert.num_peers())
        return found

    await until(announced, what="the seeder in the DHT")


async def scenario(source, folder, how, options):
    client = Client(folder)
    try:
        await until(client.join, what="the client's namespace")
        run("ip", "link", "set", "lo", "up")
        hosts = [f"{NET}.{part}.{number}" for part in (1, 2, 3) for number in range(1, 5)]
        for host in [*hosts, TRACKER, *DHT, SEEDER, FEED]:
            run("ip", "addr", "add", f"{host}/32", "dev", "world")  # libtorrent has no DHT on loopback devices
        # Exits know names that the client's name server would not tell.
        names = {"127.0.0.1": "localhost", TRACKER: TRACKERS_NAME, DHT[0]: DHT_NAME, FEED: FEED_NAME}
        (folder / "world-hosts").write_text("".join(f"{host} {name}\n" for host, name in names.items()))
        run("mount", "--bind", str(folder / "world-hosts"), "/etc/hosts")
        async with AsyncExitStack() as stack:
            return await downloaded(source, folder, client, how, options=options, stack=stack)
    finally:
        client.close()


async def downloaded(source, folder, client, how, *, options, stack):
    size_bytes = (48 if how == "kill" else 4) << 20
    swarm = await stack.enter_async_context(
        LocalSwarm(size_bytes, seeders=1, exits=2, relays=1, log_level="error", net=NET, seeder_speed=4_000_000)
    )
    link, more = await find_seeder(source, swarm, stack)
    wire = Wire(client.mac)
    arguments = ["--workers=2", f"--state={folder / 'state'}", "--json", *more, *options]
    arguments += [f"--listen={CLIENT}:0", f"--bootstrap={','.join(map(str, swarm.nodes))}", "--allow-private"]
    arguments += [f"--community-id={swarm.community_id.hex()}"]
    is_daemon = how in ("daemon", "change", "restart")
    arguments += [f"--folder={folder}", "--rpc=127.0.0.1:0"] if is_daemon else [f"--save={folder}", link]
    arguments += ["--hops=0", f"--plain-listen={CLIENT}:0"] if how == "change" else []
    name = "daemon" if is_daemon else "download"
    for after_s in KILLED_AFTER_S if how == "restart" else ():
        async with command(name, *arguments, program=[*client.enter, *MODULE]) as killed:
            ask = await asking(killed, client)
            if after_s == KILLED_AFTER_S[0]:
                await ask("torrent_add", added_by(link))
            await asyncio.sleep(after_s)
            os.kill(killed.pid, signal.SIGKILL)
            await killed.process.wait()
    environment = {"SSL_CERT_FILE": str(link.trusted)} if source == "feed" else None
    download = await stack.enter_async_context(
        command(name, *arguments, program=[*client.enter, *MODULE], environment=environment)
    )
    silence = None
    if how == "kill":
        await download.until_downloaded(4)
        silence = await kill_all_children(download, wire)
    elif source == "feed":
        await download_by_feed(download, client, link)
    elif how in ("daemon", "restart"):
        await download_by_daemon(download, link if how == "daemon" else None, client)
    elif how == "change":
        silence = await change_hops(download, link, client, wire, swarm)
    code, report, lines = await download.ended()
    # By host: py-ipv8 tries an introduced peer's other port at its address, too.
    hosts = {node.host for node in swarm.nodes}
    return {
        "code": code,
        "error": report and report.get("error"),
        "verified": same_bytes(swarm.file, folder / swarm.file.name),
        "locked_down": report and report.get("lockdown"),
        "restarts": report and report.get("worker_restarts"),
        "streams": sum(circuit["streams"] for circuit in (report or {}).get("circuits", ())),
        "to_nodes": wire.to_nodes(),
        "elsewhere": {where: number for where, number in wire.packets.items() if not is_word_to(where, hosts)},
        "while_childless": silence,
        "unseen": wire.dropped(),
        "exits": [exit_.host for exit_ in swarm.exits],
        "asked": link.asked if source == "feed" else None,
        "lines": lines[-3:],
    }


async def asking(daemon, client):
    """Return a coroutine function that calls the daemon's RPC from within the client's namespace."""
    line = await daemon.until_line(lambda line: "clients find them at" in line)
    asking = [
        *client.enter,
        "env",
        f"PYTHONPATH={ROOT}",
        sys.executable,
        "-m",
        "tests.tunnel_pool.daemon.ask",
        line.split("/")[2],
    ]

    async def ask(method, parameters):
        answer = await asyncio.to_thread(run, *asking, method, json.dumps(parameters))
        return json.loads(answer)

    return ask


def added_by(link):
    """Return the parameters of torrent_add for `link`, a magnet link or the path of a .torrent file."""
    if link.startswith("magnet:"):
        return {"filename": link}
    return {"metainfo": base64.b64encode(Path(link).read_bytes()).decode()}


async def download_by_daemon(daemon, link, client):
    """Add the torrent unless `link` is None, wait until it is downloaded, and end the daemon."""
    ask = await asking(daemon, client)
    if link is not None:
        await ask("torrent_add", added_by(link))
    async with asyncio.timeout(60):
        while not await is_done(ask):  # noqa: ASYNC110
            await asyncio.sleep(0.2)
    await ask("session_close", {})


async def download_by_feed(daemon, client, server):
    """Add a feed and a rule, wait until its torrent is downloaded and all else was asked for, and end the daemon."""
    ask = await asking(daemon, client)
    rpc = f"--rpc={daemon.lines[-1].split('/')[2]}"
    url = f"https://{FEED_NAME}/rss"
    for words in (("rules", "set", "all", "--match=*"), ("feeds", "add", url, "--hops=2")):
        await asyncio.to_thread(run, *client.enter, "env", f"PYTHONPATH={ROOT}", *MODULE, *words, rpc)
    async with asyncio.timeout(120):
        while not await is_done(ask):  # noqa: ASYNC110
            await asyncio.sleep(0.2)
    await ask("session_close", {})


async def is_done(ask):
    return (await ask("torrent_get", {"fields": ["percent_done"]}))["torrents"] == [{"percent_done": 1.0}]


async def change_hops(daemon, link, client, wire, swarm):
    """Give a plain torrent 2 hops, then none, then 1; return the packets past the nodes after each change to hops.

    The second time, another torrent stays plain, so that only packets that name the torrent are returned.
    """
    ask = await asking(daemon, client)
    (added,) = (await ask("torrent_add", {"filename": link, "hops": 0})).values()
    wire.infohash = swarm_hash_of(parse_torrent(str(swarm.torrent)))
    hosts = {node.host for node in swarm.nodes}
    left = {}
    for hops in (2, 1):
        if hops == 1:  # another stays plain now, and in the DHT
            await ask("torrent_add", {"filename": f"magnet:?xt=urn:btih:{'ab' * 20}", "hops": 0})
        before = wire.packets.copy()
        await until(lambda before=before: in_dht(wire.packets - before), what="the plain torrent in the DHT")
        answer = await ask("torrent_set", {"ids": added["id"], "hops": hops})
        left["notice"] = answer.get("notice", "")
        acknowledged = wire.packets.copy()
        await asyncio.sleep(SILENT_FOR_S)
        sent = (wire.packets - acknowledged).items()
        left |= {where: n for where, n in sent if not is_word_to(where, hosts) and (hops == 2 or "names" in where)}
        await ask("torrent_set", {"ids": added["id"], "hops": 0, "confirm_fewer_hops": True})
    await ask("session_close", {})
    return left


def in_dht(packets):
    return any("names" in where and where.split()[1].partition(":")[0] in DHT for where in packets)


def is_word_to(where, hosts):
    """Return whether the packet is ICMP (protocol 1) to a host, which the kernel sends once a child has ended."""
    protocol, _, destination = where.partition(" ")
    return protocol == "1" and destination.partition(":")[0] in hosts


async def kill_all_children(download, wire):
    """Kill all children, and return the packets that leave from then until a new child is there."""
    children = download.pool_children()
    for child in children:
        os.kill(child.pid, signal.SIGKILL)
    for child in children:
        await until(lambda child=child: not child.is_running() or child.status() == "zombie")
    await asyncio.sleep(0)
    before = wire.packets.copy()
    dead = {child.pid for child in children}
    await until(lambda: any(child.pid not in dead for child in download.pool_children()), what="a new child")
    return dict(wire.packets - before)


if __name__ == "__main__":
    result = asyncio.run(scenario(sys.argv[1], Path(sys.argv[2]), "".join(sys.argv[3:4]), sys.argv[4:]))
    print(json.dumps(result))
