"""Disturb a daemon while its owners change its torrents. Runs in namespaces that `unshare -n -m` made.

python -m tests.chaos.world FOLDER FAULTS SEED START_METHOD    prints one JSON object, what was seen

Checks after each restart and at the end that every acknowledged change has been kept, that no child of an earlier
daemon is left, that no packet reached the seeder of anonymous torrents but from an exit, and that no line of the log
is one to report as a bug. At the end, every torrent has to be downloaded, to the byte.
"""

import asyncio
import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import aiohttp
import psutil

from tests.chaos.faults import FAULTS
from tests.chaos.wire import PlainPackets
from tests.tunnel_pool.daemon.owner import Owner, Seeder, right_files
from tests.tunnel_pool.daemon.rpc import Rpc
from tests.worlds.commands import command, is_pool_child
from tunnel_pool.bench.harness.daemon import PRIVATE
from tunnel_pool.overlay.ground.config import HostPort
from tunnel_pool.private_swarm.swarm import LocalSwarm, free_port
from tunnel_pool.rpc.lifeline import adopt_orphans, die_with_parent

ANONYMOUS_NET, PLAIN_NET = "127.78", "127.79"  # of the seeders
NODES_NET = "127.77"
DISK = "200m"
GONE_WITHIN_S = 10.0
STARTED_WITHIN_S, ENDED_WITHIN_S = 60.0, 60.0
DOWNLOADED_WITHIN_S = 240.0
PAUSE_S = 0.5  # between faults, at most
TO_REPORT = re.compile(r"Traceback|please report|unexpected|never retrieved|never awaited")


def is_of_a_pool(process):
    """Return whether a process is a child or a template of a pool."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return is_pool_child(process) or (
            process.status() != psutil.STATUS_ZOMBIE and "--template" in process.cmdline()
        )
    return False


class World:
    """The daemon, its owners, the nodes and seeders around it."""

    def __init__(self, folder, swarm, rng, start_method):
        self.folder = folder
        self.disk = folder / "disk"
        self.swarm = swarm
        self.random = rng
        self.seeders = [Seeder(folder / net, f"{net}.1.1", speed=1_500_000) for net in (ANONYMOUS_NET, PLAIN_NET)]
        for seeder in self.seeders:
            for number in range(6):
                seeder.seed(f"{'anonymous' if seeder is self.seeders[0] else 'plain'}-{number}")
        folders = [str(self.disk / "downloads"), str(self.disk / "deep/er"), str(folder / "elsewhere")]
        self.owners = [
            Owner(self.seeders[0], folders, hops=(1, 1, 2), rng=rng, is_alone=False),
            Owner(self.seeders[1], folders, hops=(0,), rng=rng, is_alone=False),
        ]
        self.wire = PlainPackets(ANONYMOUS_NET, f"{swarm.exits[0].host.rpartition('.')[0]}")
        self.running = self.address = self.rpc = self._http = None
        self.restarts = 0
        self.most = Counter()
        self._may_act = asyncio.Event()
        self._acting = asyncio.Lock()
        self._ends = contextlib.AsyncExitStack()
        (folder / "daemon.toml").write_text('[daemon]\nworkers = "2"\n')  # without one, SIGHUP ends it
        self._arguments = [
            "daemon", f"--state={self.disk / 'state'}", f"--folder={self.disk / 'downloads'}",
            f"--config={folder / 'daemon.toml'}",
            f"--rpc=127.0.0.1:{free_port('127.0.0.1')}", *PRIVATE, f"--start-method={start_method}", "--hops=1",
            f"--listen={HostPort(swarm.client_host, free_port(swarm.client_host))}",
            f"--bootstrap={','.join(map(str, swarm.nodes))}", f"--community-id={swarm.community_id.hex()}",
        ]  # fmt: skip

    # The daemon

    async def start(self):
        """Start the daemon, and check that every acknowledged change has been kept."""
        self.running = await self._ends.enter_async_context(command(*self._arguments))
        line = await self.running.until_line(lambda line: "clients find them at" in line, STARTED_WITHIN_S)
        match = re.search(r"http://([\d.]+):(\d+)/", line)
        self.address = HostPort(match[1], int(match[2]))
        self.rpc = await self._ends.enter_async_context(Rpc(self.address))
        self._http = await self._ends.enter_async_context(aiohttp.ClientSession(raise_for_status=True))
        await self.check()
        self._may_act.set()

    async def end(self, number):
        """End the daemon by this signal, and check that none of its children is left."""
        self._may_act.clear()
        async with contextlib.AsyncExitStack() as ends:
            self.running.process.send_signal(number)
            await asyncio.wait_for(self.running.process.wait(), ENDED_WITHIN_S)
            await ends.enter_async_context(self._acting)  # the owners' last request has ended
        await self._ends.aclose()
        self._note_log(self.running)
        await self._until_nothing_is_left()

    async def restart(self, number, again_after_s=None):
        await self.end(number)
        if again_after_s is not None:
            async with command(*self._arguments) as running:
                await asyncio.sleep(again_after_s)
                running.process.kill()
                await running.process.wait()
            self._note_log(running)
            await self._until_nothing_is_left()
        self.restarts += 1
        await self.start()

    async def _until_nothing_is_left(self):
        """Wait until no child is left: we adopt orphans, so that a pool's child of ours has outlived its daemon."""
        deadline_s = time.monotonic() + GONE_WITHIN_S
        while left := [process for process in psutil.Process().children() if is_of_a_pool(process)]:
            assert time.monotonic() < deadline_s, f"left of a daemon that was ended: {left}"
            await asyncio.sleep(0.05)

    @staticmethod
    def _note_log(running):
        told = [line for line in running.lines if TO_REPORT.search(line)]
        assert not told, "\n".join(running.lines)

    async def check(self):
        """Check that each owner's acknowledged changes have been kept, and that both were told of the same torrents."""
        there = [await owner.check(self.rpc) for owner in self.owners]
        assert there[0].keys() == there[1].keys()

    # Its owners

    async def act(self):
        """Change torrents without a pause, while the daemon is there."""
        while True:
            await self._may_act.wait()
            async with self._acting:
                for owner in self.owners:
                    with contextlib.suppress(aiohttp.ClientError, ConnectionError):
                        await owner.act(self.rpc)
            await asyncio.sleep(self.random.random() * 0.1)

    async def stop_acting(self, acting):
        """Wait until the owners' last request has been answered, and stop them; raises what they raised."""
        self._may_act.clear()
        async with self._acting:
            acting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await acting

    async def get(self, path):
        async with self._http.get(f"http://{self.address}{path}") as response:
            return await response.json()

    async def put(self, path, body):
        async with self._http.put(f"http://{self.address}{path}", json=body):
            pass

    async def post(self, path):
        async with self._http.post(f"http://{self.address}{path}"):
            pass

    # Processes

    def children(self):
        return self.running.pool_children()

    def random_child(self):
        return self.random.choice(self.children() or [None])

    def processes(self, switch):
        found = []
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in psutil.Process(self.running.pid).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    found += [process] * (switch in process.cmdline())
        return found

    @staticmethod
    def strike(process, number):
        with contextlib.suppress(psutil.NoSuchProcess, AttributeError):  # it has ended, or there was none
            process.send_signal(number)

    def random_node(self):
        return psutil.Process(self.random.choice([pid for pids in self.swarm.pids().values() for pid in pids]))

    async def replace_node(self, number):
        role = self.random.choice(["exits", "relays"])
        index = self.random.randrange(len(self.swarm.pids()[role]))
        await self.swarm.replace_node(role, index, number)

    def measure(self):
        """Record the highest memory and descriptor counts, and check that the daemon has not ended by itself."""
        assert self.running.process.returncode is None, "\n".join(self.running.lines)
        for name, processes in (("main", [psutil.Process(self.running.pid)]), ("child", self.children())):
            for process in processes:
                with contextlib.suppress(psutil.Error):
                    memory = process.memory_info()
                    private_mb = (memory.rss - memory.shared) >> 20
                    self.most[f"{name}_private_mb"] = max(self.most[f"{name}_private_mb"], private_mb)
                    self.most[f"{name}_descriptors"] = max(self.most[f"{name}_descriptors"], process.num_fds())
        self.most["children"] = max(self.most["children"], len(self.children()))

    # At the end

    async def until_downloaded(self):
        """Add, select and start all torrents, wait until they are downloaded, and check their files."""
        there = await self.owners[0].check(self.rpc)
        for owner in self.owners:
            for infohash in owner.may_be.keys() - there.keys():
                link = owner.seeder.links[infohash]
                hops = f"hops:{owner.hops[0]}"
                await self.rpc.call("torrent_add", {"filename": link, "labels": [hops]})
        await self.rpc.call("torrent_set", {"files_wanted": []})
        await self.rpc.call("torrent_start", {})
        fields = ["hash_string", "name", "download_dir", "percent_done", "left_until_done", "status", "error_string"]
        deadline_s, torrents = time.monotonic() + DOWNLOADED_WITHIN_S, []
        while not torrents or any(torrent["percent_done"] < 1 for torrent in torrents):
            late = [torrent for torrent in torrents if torrent["percent_done"] < 1]
            assert time.monotonic() < deadline_s, (late, self.running.lines[-40:])
            await asyncio.sleep(0.5)
            torrents = (await self.rpc.call("torrent_get", {"fields": fields}))["torrents"]
        assert len(torrents) == sum(len(owner.may_be) for owner in self.owners)
        for torrent in torrents:
            (owner,) = [owner for owner in self.owners if torrent["hash_string"] in owner.may_be]
            assert right_files(owner.seeder, torrent), torrent


async def disturb(world, faults):
    """Return how often each fault came."""
    counts = Counter()
    acting = asyncio.create_task(world.act())
    try:
        for number in range(faults):
            (fault,) = world.random.choices(list(FAULTS), list(FAULTS.values()))
            counts[fault.__name__] += 1
            print(f"{number} {fault.__name__}", file=sys.stderr, flush=True)
            await fault(world)
            world.measure()
            assert not world.wire.seen, world.wire.seen
            if acting.done():
                acting.result()
            await asyncio.sleep(world.random.random() * PAUSE_S)
    finally:
        await world.stop_acting(acting)
    refused = [message for owner in world.owners for message in owner.refusals if TO_REPORT.search(message)]
    assert not refused, (refused, world.running.lines[-20:])
    return counts


async def main(folder, faults, seed, start_method):
    rng = random.Random(seed)
    (folder / "disk").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", folder / "disk"], check=True)
    began_s = time.monotonic()
    async with LocalSwarm(1 << 20, seeders=0, exits=2, relays=3, log_level="error", net=NODES_NET) as swarm:
        world = World(folder, swarm, rng, start_method)
        await world.start()
        counts = await disturb(world, faults)
        await world.until_downloaded()
        world.measure()
        await world.end(signal.SIGTERM)
    assert not world.wire.seen, world.wire.seen
    assert await world.wire.hears(), "the capture does not work"
    seen = {
        "seed": seed,
        "faults": counts,
        "restarts": world.restarts,
        "acknowledged": sum(owner.acknowledged for owner in world.owners),
        "refused": Counter(message for owner in world.owners for message in owner.refusals),
        "longest_s": {kind: took for owner in world.owners for kind, took in owner.took_s.items()},
        "most": world.most,
        "seconds": round(time.monotonic() - began_s),
    }
    print(json.dumps(seen))


if __name__ == "__main__":
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    die_with_parent(os.getppid())
    adopt_orphans()
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]))
