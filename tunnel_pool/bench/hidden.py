"""Measures what it costs to seed many hidden torrents that nobody downloads, and how soon any of them answers."""

import asyncio
import base64
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import libtorrent as lt
import psutil
from ipv8.messaging.anonymization.tunnel import CIRCUIT_TYPE_IP_SEEDER

from tunnel_pool.bench.api import make_torrents
from tunnel_pool.bench.harness import daemon
from tunnel_pool.overlay.discovery import QUESTIONS_OF_AN_ANNOUNCEMENT
from tunnel_pool.overlay.ground.config import HostPort
from tunnel_pool.pool.scaling import WorkerRange
from tunnel_pool.private_swarm.swarm import LocalSwarm
from tunnel_pool.system.errors import UserError
from tunnel_pool.system.measure import CpuMeter
from tunnel_pool.torrent.client import TorrentClient
from tunnel_pool.torrent.isolation import Isolation
from tunnel_pool.torrent.sessions.lockdown import LockdownMode
from tunnel_pool.tunnels import NodeOptions

TORRENTS = 2000
EXITS, RELAYS = 12, 4
HOPS = 1
OFFERED_TIMEOUT_S = 900.0
POLL_S = 1.0
# For each torrent: introduction points, which are exits, announce one after another. Some have twice as many as others,
# and not all of them know all DHT nodes, by whose number they go.
SETTLE_S = 3 * QUESTIONS_OF_AN_ANNOUNCEMENT / (EXITS + RELAYS) / EXITS
ANSWER_TIMEOUT_S = 60.0


async def measure(torrents: int, workers: int, downloads: int, seconds: float) -> dict[str, Any]:
    """Measure a daemon that seeds so many hidden torrents, and time the downloads of some. Raises UserError."""
    async with LocalSwarm(1 << 20, seeders=0, exits=EXITS, relays=RELAYS, log_level="error") as swarm:
        with tempfile.TemporaryDirectory() as folder:
            more = [f"--workers={workers}", f"--hops={HOPS}", *daemon.network_of(swarm)]
            async with daemon.started(Path(folder), more) as client:
                begun_s = time.monotonic()
                made = [metainfo async for metainfo in make_torrents(Path(folder), torrents)]
                for metainfo in made:
                    await client.add(metainfo=metainfo, hops=HOPS)
                added_s = time.monotonic() - begun_s
                offered_s = await _until_offered(client, torrents)
                await asyncio.sleep(SETTLE_S * torrents)
                try:
                    idle = await _idle(client, swarm, seconds)
                except psutil.NoSuchProcess:
                    raise UserError("a process ended while it was measured: leave the machine to the bench") from None
                circuits = [circuit["type"] for circuit in await client.get("/api/circuits")]
                answers = await _answers(swarm, random.sample(made, min(downloads, torrents)), Path(folder))
                swarms = await client.get("/api/swarms")
    return {
        "torrents": torrents,
        "added_s": round(added_s, 1),
        "all_offered_s": round(offered_s, 1),
        "introduction_circuits": circuits.count(CIRCUIT_TYPE_IP_SEEDER),
        "circuits": len(circuits),
        **idle,
        "offered_at_the_end": sum(known["offered"] for known in swarms),
        **_described(answers),
    }


async def _until_offered(client: daemon.Client, torrents: int) -> float:
    """Return the seconds until introduction points name all of them. Raises UserError."""
    begun_s, offered = time.monotonic(), 0
    try:
        async with asyncio.timeout(OFFERED_TIMEOUT_S):
            while offered < torrents:
                await asyncio.sleep(POLL_S)
                offered = sum(known["offered"] for known in await client.get("/api/swarms"))
    except TimeoutError:
        raise UserError(f"{offered} of {torrents} torrents are offered after {OFFERED_TIMEOUT_S:.0f} s") from None
    return time.monotonic() - begun_s


async def _idle(client: daemon.Client, swarm: LocalSwarm, seconds: float) -> dict[str, float]:
    """Return what the daemon uses in CPU and memory, and an introduction point of its torrents."""
    main = psutil.Process(client.pid)
    children = main.children(recursive=True)
    points = [psutil.Process(pid) for pid in swarm.pids()["exits"]]
    meter = CpuMeter()
    for process in (main, *children, *points):
        meter.cores(process.pid, time.monotonic())
    await asyncio.sleep(seconds)
    now_s = time.monotonic()

    def percent(processes: Sequence[psutil.Process]) -> float:
        return round(100 * sum(meter.cores(process.pid, now_s) for process in processes), 2)

    return {
        "main_cpu_percent": percent([main]),
        "children_cpu_percent": percent(children),
        "main_mb": round(main.memory_info().rss / 1e6, 1),
        "children_mb": round(sum(process.memory_info().rss for process in children) / 1e6, 1),
        "point_cpu_percent": round(percent(points) / EXITS, 2),
        "point_mb": round(max(process.memory_info().rss for process in points) / 1e6, 1),
    }


async def _answers(swarm: LocalSwarm, made: Sequence[str], folder: Path) -> list[float | None]:
    """Return how long each download took, from its start to its last byte; None for one that did not end in time."""
    node = NodeOptions(
        workers=WorkerRange(0, 0),
        state_dir=folder / "downloader",
        listen=HostPort(swarm.client_host, 0),
        bootstrap=swarm.nodes,
        community_id=swarm.community_id,
        allow_private=True,
    )
    took: list[float | None] = []
    left = list(made)
    while left:  # a client that waits for one download in vain would wait for it with all others
        async with TorrentClient(
            node, HOPS, exits=False, lockdown=LockdownMode.AUTO, isolation=Isolation.NONE
        ) as client:
            while left:
                took.append(await _answer(client, left.pop(0), folder / "downloaded"))
                if took[-1] is None:
                    break
    return took[1:] or took  # while the first waits, the downloader meets the network


async def _answer(client: TorrentClient, metainfo: str, folder: Path) -> float | None:
    begun_s = time.monotonic()
    client.download(lt.load_torrent_buffer(base64.b64decode(metainfo)), folder)
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            await client.wait_circuits(lambda client: None)
            await client.wait_finished(lambda client: None)
    except TimeoutError:
        return None
    return time.monotonic() - begun_s


def _described(answers: Sequence[float | None]) -> dict[str, float]:
    """Raises UserError when nothing was answered."""
    there = [seconds for seconds in answers if seconds is not None]
    if not there:
        raise UserError(f"none of {len(answers)} downloads ended in {ANSWER_TIMEOUT_S:.0f} s")
    return {
        "answers": len(there),
        "unanswered": len(answers) - len(there),
        "answer_mean_s": round(sum(there) / len(there), 2),
        "answer_max_s": round(max(there), 2),
    }


def describe(result: dict[str, Any]) -> str:
    lines = [f"{result['torrents']} hidden torrents over {HOPS} hop, {EXITS} exits"]
    return "\n".join([*lines, *(f"{name:22}{value:>12}" for name, value in result.items() if name != "torrents")])
