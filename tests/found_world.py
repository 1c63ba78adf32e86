"""Seed with hops, and let a plain BitTorrent client, to which nobody can connect, find the seeder.

found_world.py FOLDER HOPS udp|http|dht ours|plain|rust libtorrent|transmission [OPTION...]

The client knows a UDP tracker, an HTTP tracker or the DHT alone. The exits are `ours`, or plain pyipv8's with its own
endpoint, or with that of ipv8-rust-tunnels. The seeder runs in a network namespace of its own, as in leak_world.py;
frames that leave it for others than nodes are counted. Prints one JSON object.
"""

import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path

import libtorrent as lt

from tests.blocked_world import plain_relay
from tests.commands import MODULE, command
from tests.leak_world import CLIENT, NET, TRACKER, WORLD, Client, Wire, added_by, asking, is_word_to, run
from tests.network import COMMUNITY_ID, until
from tests.recording_tracker import recording_tracker
from tests.swarms import dht_nodes
from tunnel_pool.private_swarm.swarm import EXIT_NET, LocalSwarm, same_bytes
from tunnel_pool.torrent.libtorrent_session import open_session
from tunnel_pool.torrent.session_settings import PRIVATE_DHT

DHT = [f"44.{number}.5.1" for number in range(11, 16)]  # in networks of their own, as each has one vote
PEERS = [f"{NET}.6.{number}" for number in range(1, 5)]
SIZE_BYTES = 32 << 20
ASK_AGAIN_S = 1.0


def torrent_with(swarm, name, tracker, *, private=False):
    """Write the swarm's torrent with this tracker alone; None for none."""
    decoded = lt.bdecode(swarm.torrent.read_bytes())
    decoded.pop(b"announce", None)
    if tracker is not None:
        decoded[b"announce"] = tracker.encode()
    if private:
        decoded[b"info"][b"private"] = 1
    path = swarm.torrent.with_name(name)
    path.write_bytes(lt.bencode(decoded))
    return path


class PlainPeer:
    """Downloads by plain libtorrent, without a port that others could connect to."""

    def __init__(self, host, torrent, folder, nodes=()):
        settings = {
            "listen_interfaces": f"{host}:0",
            "enable_incoming_tcp": False,
            "enable_incoming_utp": False,
            "enable_lsd": False,
            "enable_upnp": False,
            "enable_natpmp": False,
            "enable_dht": bool(nodes),
            "dht_bootstrap_nodes": "",
            "allow_multiple_connections_per_ip": True,
            "min_reconnect_time": 1,
            "alert_mask": 0,
            **PRIVATE_DHT,
        }
        self._session = open_session(settings)
        self._nodes = nodes
        parameters = lt.load_torrent_file(str(torrent))
        parameters.save_path = str(folder)
        self.handle = self._session.add_torrent(parameters)
        self.seen = set()  # peers that it has been connected to

    async def downloaded(self, timeout_s=60):
        """Return when the first byte and the last came, in seconds."""
        started_s, first_s, asked_s = time.monotonic(), None, 0.0
        while True:
            now_s = time.monotonic() - started_s
            status = self.handle.status()
            if status.total_payload_download and first_s is None:
                first_s = now_s
            self.seen |= {info.ip for info in self.handle.get_peer_info()}
            if status.is_seeding:
                return first_s, now_s
            if now_s > timeout_s:
                raise TimeoutError(f"not found: {status.state}, {status.num_peers} peers, {self.seen}")
            if now_s - asked_s > ASK_AGAIN_S:
                asked_s = now_s
                self._ask()
            await asyncio.sleep(0.05)

    def _ask(self):
        self.handle.force_reannounce(0, -1, lt.torrent_handle.ignore_min_interval)
        for node in self._nodes:
            self._session.add_dht_node(node)
        self.handle.force_dht_announce()

    async def close(self):
        holder = [self._session]
        del self._session, self.handle
        await asyncio.to_thread(holder.clear)


class Machine:
    """A host with a network namespace of its own, so that what it sends comes from its address alone."""

    def __init__(self, host):
        self._host = host
        self._holder = subprocess.Popen(["unshare", "-n", "sleep", "600"])
        self.enter = ["nsenter", "-t", str(self._holder.pid), "-n"]

    def join(self):
        ours, theirs = (os.readlink(f"/proc/{pid}/ns/net") for pid in ("self", self._holder.pid))
        if ours == theirs:
            return False
        here = "port" + self._host.rpartition(".")[2]
        run("ip", "addr", "del", f"{self._host}/32", "dev", "world")
        run("ip", "link", "add", here, "type", "veth", "peer", "name", "out", "netns", str(self._holder.pid))
        run("ip", "link", "set", here, "master", "world", "up")
        run(*self.enter, "ip", "addr", "add", f"{self._host}/16", "dev", "out")
        for device in ("lo", "out"):
            run(*self.enter, "ip", "link", "set", device, "up")
        run(*self.enter, "ip", "route", "add", "default", "via", WORLD)
        return True

    def close(self):
        self._holder.kill()
        self._holder.wait()


async def plain_exit(host, stack):
    machine = Machine(host)
    stack.callback(machine.close)
    await until(machine.join, what="an exit's namespace")
    return await plain_relay("exit", host, stack, machine.enter)


async def open_swarm(exits, stack):
    """Return a swarm, and the addresses of its exits."""
    plain = []
    if exits != "ours":
        os.environ["PLAIN_ENDPOINT"] = "rust" if exits == "rust" else ""
        plain = [await plain_exit(f"{NET}.{EXIT_NET}.{number}", stack) for number in (1, 2)]
    return await stack.enter_async_context(
        LocalSwarm(
            SIZE_BYTES, seeders=1, exits=0 if plain else 2, relays=4, log_level="error", net=NET,
            community_id=COMMUNITY_ID, more_nodes=tuple(plain),
        )
    )  # fmt: skip


def daemon_of(folder, hops, swarm, places, client, options):
    """Return the command that seeds."""
    return command(
        "daemon", f"--hops={hops}", "--workers=2", f"--state={folder / 'state'}", f"--folder={folder / 'seeded'}",
        "--rpc=127.0.0.1:0", "--json", f"--listen={CLIENT}:0", f"--bootstrap={','.join(map(str, swarm.nodes))}",
        "--allow-private", f"--community-id={swarm.community_id.hex()}", "--min-free=1 MB",
        f"--dht={','.join(f'{host}:{port}' for host, port in places)}", *options,
        program=[*client.enter, *MODULE],
    )  # fmt: skip


def url_of(source, tracker):
    path = "/announce" if source == "http" else ""
    return None if source == "dht" else f"{source}://{TRACKER}:{tracker.port}{path}"


async def found(folder, client, hops, *, source, exits, peer, options, stack):
    swarm = await open_swarm(exits, stack)
    tracker = await stack.enter_async_context(recording_tracker(TRACKER))
    _, places = await stack.enter_async_context(dht_nodes(DHT))
    wire = Wire(client.mac, "port")
    torrent = torrent_with(swarm, f"{source}.torrent", url_of(source, tracker))
    (folder / "seeded").mkdir()
    shutil.copy(swarm.file, folder / "seeded")
    daemon = await stack.enter_async_context(daemon_of(folder, hops, swarm, places, client, options))
    ask = await asking(daemon, client)
    await ask("torrent_add", added_by(str(torrent)))
    plain = PlainPeer(PEERS[0], torrent, folder / "got", places if source == "dht" else ())
    stack.push_async_callback(plain.close)
    try:
        first_s, last_s = await plain.downloaded()
    except TimeoutError as error:
        print(json.dumps({"error": str(error), "told": tracker.told and list(map(str, tracker.told))}))
        print("\n".join(daemon.lines))
        raise
    await ask("session_close", {})
    code, report, lines = await daemon.ended()
    hosts = {node.host for node in swarm.nodes}
    return {
        "code": code,
        "verified": same_bytes(swarm.file, folder / "got" / swarm.file.name),
        "first_s": round(first_s, 1),
        "bytes_per_s": round(SIZE_BYTES / (last_s - first_s)),
        "seen": sorted(f"{host}:{port}" for host, port in plain.seen),
        "told": [f"{told.by} {told.host}:{told.port} {told.event} {told.left}" for told in tracker.told],
        "wrong_connection_ids": tracker.wrong_connection_ids,
        "elsewhere": {where: number for where, number in wire.packets.items() if not is_word_to(where, hosts)},
        "lines": lines[-5:],
    }


async def scenario(folder, hops, **how):
    client = Client(folder)
    try:
        await until(client.join_bridge, what="the client's namespace")
        run("ip", "link", "set", "lo", "up")
        nodes = [f"{NET}.{part}.{number}" for part in (1, 2, 3) for number in range(1, 9)]
        for host in [TRACKER, *DHT, *PEERS, *nodes]:
            run("ip", "addr", "add", f"{host}/32", "dev", "world")
        # Where there is no way to everybody, libtorrent hears those next to it alone.
        run("ip", "route", "add", "default", "via", CLIENT, "dev", "world")
        async with AsyncExitStack() as stack:
            return await found(folder, client, hops, stack=stack, **how)
    finally:
        client.close()


if __name__ == "__main__":
    where, hop_count, source, exits, peer, *more = sys.argv[1:]
    run_it = scenario(Path(where), int(hop_count), source=source, exits=exits, peer=peer, options=more)
    print(json.dumps(asyncio.run(run_it)))
