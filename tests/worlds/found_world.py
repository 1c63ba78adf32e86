"""Seed with hops, and let plain BitTorrent clients, to which nobody can connect, find the seeder.

found_world.py FOLDER HOPS udp|http|dht ours|plain|rust WHAT [OPTION...]

The clients know a UDP tracker, an HTTP tracker or the DHT alone. The exits are `ours`, or plain pyipv8's with its own
endpoint, or with that of ipv8-rust-tunnels. WHAT is one of these:

    libtorrent     one client downloads, then the seeder downloads the same from a plain seeder
    transmission   Debian's transmission-daemon downloads
    killed         the exit over which three clients download is killed
    account        a private torrent changes hops, and its daemon is restarted and killed
    churn          all children are killed, again and again, and the daemon is restarted

The seeder runs in a network namespace of its own, as in leak_world.py; frames that leave it for others than nodes are
counted. Prints one JSON object. With FOUND_MIB in the environment, the file has so many MiB.
"""

import asyncio
import json
import os
import shutil
import signal
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

import libtorrent as lt

from tests.worlds.blocked_world import plain_relay
from tests.worlds.commands import MODULE, command
from tests.worlds.leak_world import CLIENT, NET, TRACKER, Client, Wire, added_by, asking, is_word_to, run
from tests.worlds.network import COMMUNITY_ID, until
from tests.worlds.plain_machines import Machine, PlainPeer
from tests.worlds.recording_tracker import Tracker, recording_tracker
from tests.worlds.swarms import dht_nodes
from tunnel_pool.bench.harness.daemon import magnet_of
from tunnel_pool.private_swarm.swarm import EXIT_NET, LocalSwarm, same_bytes

DHT = [f"44.{number}.5.1" for number in range(11, 16)]  # in networks of their own, as each has one vote
# libtorrent gives a tracker's connection id from one session to another of the process: each peer has its own tracker.
TRACKERS = [f"{NET}.4.{number}" for number in range(2, 6)]
PEERS = [f"{NET}.6.{number}" for number in range(1, 5)]
SIZE_BYTES = int(os.environ.get("FOUND_MIB", "32")) << 20
SLOWLY = 1 << 20  # bytes a second
LEAST_S, KILLS, BETWEEN_KILLS_S = 12, 6, 4.0
WAITS = 1  # a tracker's announce_state in Transmission's RPC, while no announce is on its way


def torrent_with(swarm, name, tracker, *, private=False):
    """Write the swarm's torrent with this tracker alone; None for none. It is one of BEP 3, as transmission 3 reads."""
    decoded = lt.bdecode(swarm.torrent.read_bytes())
    del decoded[b"piece layers"], decoded[b"info"][b"meta version"], decoded[b"info"][b"file tree"]
    decoded.pop(b"announce", None)
    if tracker is not None:
        decoded[b"announce"] = tracker.encode()
    if private:
        decoded[b"info"][b"private"] = 1
    path = swarm.torrent.with_name(name)
    path.write_bytes(lt.bencode(decoded))
    return path


async def joined(host, stack):
    machine = Machine(host)
    stack.callback(machine.close)
    await until(machine.join, what="a namespace")
    return machine


async def plain_exit(host, stack):
    machine = await joined(host, stack)
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


def url_of(source, host, port):
    path = "/announce" if source == "http" else ""
    return None if source == "dht" else f"{source}://{host}:{port}{path}"


async def reverse(world):
    """Download the same file from a plain seeder with an open port; return bytes a second."""
    folder = world.folder / "reverse"
    arguments = [magnet_of(world.swarm), f"--hops={world.hops}", "--workers=2", f"--state={folder}", f"--save={folder}"]
    arguments += [f"--listen={CLIENT}:0", f"--bootstrap={','.join(map(str, world.swarm.nodes))}", "--allow-private"]
    arguments += [f"--community-id={world.swarm.community_id.hex()}", "--json"]
    async with command("download", *arguments, program=[*world.client.enter, *MODULE]) as download:
        code, report, lines = await download.ended()
    assert code == 0, lines
    return round(report["mb_per_s"] * 1e6)


class World(NamedTuple):
    """Holds the network, and what the seeder is started with."""

    folder: Path
    client: Client
    hops: int
    swarm: LocalSwarm
    tracker: Tracker
    places: list
    stack: AsyncExitStack
    source: str
    is_private: bool
    options: list

    def daemon(self):
        """Return the command that seeds."""
        return command(
            "daemon", f"--hops={self.hops}", "--workers=2", "--rpc=127.0.0.1:0", "--json", f"--listen={CLIENT}:0",
            f"--state={self.folder / 'state'}", f"--folder={self.folder / 'seeded'}", "--allow-private",
            f"--bootstrap={','.join(map(str, self.swarm.nodes))}", f"--community-id={self.swarm.community_id.hex()}",
            f"--dht={','.join(f'{host}:{port}' for host, port in self.places)}", "--min-free=1 MB", *self.options,
            program=[*self.client.enter, *MODULE],
        )  # fmt: skip

    def torrent(self, host=TRACKER):
        """Return a .torrent file that names the tracker by one of its addresses."""
        url = url_of(self.source, host, self.tracker.port)
        return torrent_with(self.swarm, f"{self.source}{host}.torrent", url, private=self.is_private)

    def peer(self, number, speed=0):
        nodes = self.places if self.source == "dht" else ()
        peer = PlainPeer(PEERS[number], self.torrent(TRACKERS[number]), self.folder / f"got{number}", nodes, speed)
        self.stack.push_async_callback(peer.close)
        return peer

    def ours(self):
        """Return what the tracker was told by the seeder."""
        return [told for told in self.tracker.told if told.host not in PEERS]


async def opened(folder, client, hops, *, source, exits, what, options, stack):
    swarm = await open_swarm(exits, stack)
    tracker = await stack.enter_async_context(recording_tracker(TRACKER, *TRACKERS))
    _, places = await stack.enter_async_context(dht_nodes(DHT))
    (folder / "seeded").mkdir()
    shutil.copy(swarm.file, folder / "seeded")
    return World(folder, client, hops, swarm, tracker, places, stack, source, what == "account", options)


async def seeding(world, daemon):
    """Add the torrent, and return a function that asks the daemon, once others can find the torrent."""
    ask = await asking(daemon, world.client)
    await ask("torrent_add", added_by(str(world.torrent())))
    await daemon.until_line(lambda line: "Others find the torrents" in line)
    await until(lambda: world.source == "dht" or any(told.port > 1 for told in world.ours()), what="an announce")
    return ask


async def found_by_libtorrent(world):
    async with world.daemon() as daemon:
        ask = await seeding(world, daemon)
        peer = world.peer(0)
        first_s, others_s = await peer.downloaded()
        await ask("session_close", {})
        code, _, lines = await daemon.ended()
    return {
        "code": code,
        "lines": lines,
        "verified": same_bytes(world.swarm.file, world.folder / "got0" / world.swarm.file.name),
        "first_s": round(first_s, 1),
        "bytes_per_s": round(SIZE_BYTES / others_s),
        "reverse_bytes_per_s": await reverse(world),
        "seen": [host for host, _ in peer.seen],
        "by": sorted(peer.by),
        "announces": [(told.event, told.host, told.port) for told in world.ours()],
    }


async def found_by_transmission(world):
    folder = world.folder / "transmission"
    (folder / "watched").mkdir(parents=True)
    settings = {
        "rpc-enabled": False, "dht-enabled": world.source == "dht", "pex-enabled": False,
        "lpd-enabled": False, "port-forwarding-enabled": False, "utp-enabled": True, "encryption": 0,
        "download-dir": str(folder), "watch-dir": str(folder / "watched"), "watch-dir-enabled": True,
        "rename-partial-files": True,
    }  # fmt: skip
    (folder / "settings.json").write_text(json.dumps(settings))
    machine = await joined(PEERS[3], world.stack)
    async with world.daemon() as daemon:
        ask = await seeding(world, daemon)
        shutil.copy(world.torrent(TRACKERS[3]), folder / "watched")
        process = await asyncio.create_subprocess_exec(
            *machine.enter, "transmission-daemon", "-f", "-g", folder,
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        started_s = time.monotonic()
        try:
            whole = folder / world.swarm.file.name
            await until(whole.exists, timeout_s=60, what="transmission's download")
        finally:
            process.kill()
            await process.wait()
        seconds = time.monotonic() - started_s
        await ask("session_close", {})
        code, _, lines = await daemon.ended()
    return {
        "code": code,
        "lines": lines,
        "verified": same_bytes(world.swarm.file, whole),
        "seconds": round(seconds, 1),
        "told_of_transmission": [told.port for told in world.tracker.told if told.host == PEERS[3]],
    }


async def found_again(world):
    """Kill the exit over which three clients download; return when each of them gets something over another."""
    async with world.daemon() as daemon:
        ask = await seeding(world, daemon)
        peers = [world.peer(number, SLOWLY) for number in range(3)]
        await asyncio.gather(*(peer.until(lambda status: status.total_payload_download > SLOWLY) for peer in peers))
        used = {host for peer in peers for host, _ in peer.seen}
        for pid, node in zip(world.swarm.pids()["exits"], world.swarm.exits, strict=True):
            if node.host in used:
                os.kill(pid, signal.SIGKILL)
        seconds = await asyncio.gather(
            *(peer.until(lambda _, peer=peer: {host for host, _ in peer.seen} - used, 100) for peer in peers)
        )
        await ask("session_close", {})
        code, _, lines = await daemon.ended()
    return {
        "code": code,
        "lines": lines,
        "used": sorted(used),
        "seen": [[host for host, _ in peer.seen] for peer in peers],
        "again_s": [round(each, 1) for each in seconds],
    }


async def announced(world, ask, before):
    """Return once the tracker was told where the torrent is, after so many announces `before`, and has been heard.

    Until libtorrent has its answer, it would not tell it when the torrent is stopped (torrent.cpp, start_sent).
    """

    def is_told():
        return any(told.event != "stopped" and told.port > 1 for told in world.ours()[before:])

    await until(is_told, what="an announce")
    for _ in range(100):
        (torrent,) = (await ask("torrent_get", {"fields": ["tracker_stats"]}))["torrents"]
        (tracker,) = torrent["tracker_stats"]
        if tracker["last_announce_succeeded"] and tracker["announce_state"] == WAITS:
            return
        await asyncio.sleep(0.1)
    raise TimeoutError(f"not announced: {tracker}")


async def uploaded(world, ask, before=0):
    """Stop the torrent and start it again; return what the daemon counts, and what the tracker was told of it then.

    The announces `before` are those of an earlier session.
    """
    await announced(world, ask, before)
    before = len(world.ours())
    await ask("torrent_stop", {})
    await until(lambda: any(told.event == "stopped" for told in world.ours()[before:]), what="the last announce")
    told = world.ours()[-1]
    wanted = [told.uploaded, told.downloaded]
    for _ in range(20):  # what is shown is up to some seconds old
        (torrent,) = (await ask("torrent_get", {"fields": ["uploaded_ever", "downloaded_ever"]}))["torrents"]
        counted = [torrent["uploaded_ever"], torrent["downloaded_ever"]]
        if counted == wanted:
            break
        await asyncio.sleep(0.1)
    before = len(world.ours())
    await ask("torrent_start", {})
    await announced(world, ask, before)
    return {
        "counted": counted,
        "told": wanted,
        "key": told.key,
        "host": told.host,
    }


async def accounts(world):
    """Return what daemon and tracker count after each step."""
    steps = {}
    everything = {"ids": 1}
    async with world.daemon() as daemon:
        ask = await seeding(world, daemon)
        await world.peer(0).downloaded()
        steps["seeded"] = await uploaded(world, ask)
        await ask("torrent_set", {**everything, "hops": 2})
        await world.peer(1).downloaded()
        steps["2 hops"] = await uploaded(world, ask)
        before = len(world.ours())
        await ask("torrent_set", {**everything, "hops": 1, "confirm_fewer_hops": True})
        steps["1 hop"] = await uploaded(world, ask, before)
        await ask("session_close", {})
        await daemon.ended()
    before = len(world.ours())
    async with world.daemon() as daemon:
        ask = await asking(daemon, world.client)
        steps["restarted"] = await uploaded(world, ask, before)
        await world.peer(2).downloaded()
        steps["seeded more"] = await uploaded(world, ask)
        os.kill(daemon.pid, signal.SIGKILL)
        await daemon.process.wait()
    before = len(world.ours())
    async with world.daemon() as daemon:
        ask = await asking(daemon, world.client)
        steps["killed"] = await uploaded(world, ask, before)
        await ask("session_close", {})
        code, _, lines = await daemon.ended()
    return {"code": code, "lines": lines, "steps": steps, "keys": sorted({told.key for told in world.ours()})}


async def churned(world):
    """Return when the tracker was told of what, and from where, while all circuits end again and again."""
    world.tracker.least_s = LEAST_S
    for kills in (KILLS, 0):
        before = len(world.ours())
        async with world.daemon() as daemon:
            ask = await (seeding(world, daemon) if kills else asking(daemon, world.client))
            for _ in range(kills):
                children = daemon.pool_children()
                for child in children:
                    child.kill()
                await until(lambda children=children: len(set(daemon.pool_children()) - set(children)) == len(children))
                await asyncio.sleep(BETWEEN_KILLS_S)
            await announced(world, ask, before)
            await ask("session_close", {})
            code, _, lines = await daemon.ended()
    told = zip(world.tracker.at_s, world.tracker.told, strict=True)
    announces = [(round(at_s, 1), told.event, told.host, told.port) for at_s, told in told]
    return {"code": code, "lines": lines, "announces": announces}


SCENARIOS = {
    "churn": churned,
    "libtorrent": found_by_libtorrent,
    "transmission": found_by_transmission,
    "killed": found_again,
    "account": accounts,
}


async def watched(client, what, stack, **how):
    world = await opened(stack=stack, client=client, what=what, **how)
    wire = Wire(client.mac, "port")
    try:
        result = await SCENARIOS[what](world)
    except Exception:
        told = [(told.host, told.port, told.event, told.uploaded, told.key) for told in world.ours()]
        print(f"The tracker was told {told}", file=sys.stderr)
        raise
    hosts = {node.host for node in world.swarm.nodes}
    return {
        **result,
        "lines": result["lines"][-5:],
        "told": sorted({told.host for told in world.ours()}),
        "agents": sorted(world.tracker.agents),
        "wrong_connection_ids": world.tracker.wrong_connection_ids,
        "elsewhere": {where: number for where, number in wire.packets.items() if not is_word_to(where, hosts)},
        "unseen": wire.dropped(),
    }


async def scenario(folder, what, **how):
    client = Client(folder)
    try:
        await until(client.join_bridge, what="the client's namespace")
        run("ip", "link", "set", "lo", "up")
        nodes = [f"{NET}.{part}.{number}" for part in (1, 2, 3) for number in range(1, 9)]
        for host in [TRACKER, *TRACKERS, *DHT, *PEERS, *nodes]:
            run("ip", "addr", "add", f"{host}/32", "dev", "world")
        # Where there is no way to everybody, libtorrent hears those next to it alone.
        run("ip", "route", "add", "default", "via", CLIENT, "dev", "world")
        async with AsyncExitStack() as stack:
            return await watched(client, what, stack, folder=folder, **how)
    finally:
        client.close()


if __name__ == "__main__":
    where, hop_count, source, exits, what, *more = sys.argv[1:]
    run_it = scenario(Path(where), what, hops=int(hop_count), source=source, exits=exits, options=more)
    print(json.dumps(asyncio.run(run_it)))
