"""Measures what isolating idle torrents costs: memory, threads, CPU, circuits and what these send, by `--isolate`."""

import asyncio
import os
import secrets
import tempfile
import time
from pathlib import Path

import psutil

from tunnel_pool.overlay.ground.config import HostPort
from tunnel_pool.pool.scaling import WorkerRange
from tunnel_pool.private_swarm.swarm import LocalSwarm
from tunnel_pool.system.measure import CpuMeter
from tunnel_pool.torrent.client import TorrentClient
from tunnel_pool.torrent.isolation import MOST_LANES, Isolation
from tunnel_pool.torrent.metainfo import parse_torrent
from tunnel_pool.torrent.sessions.lockdown import LockdownMode
from tunnel_pool.tunnels import NodeOptions

WAIT_S = 120
SETTLE = 0.5  # times the seconds measured
HOPS = 2
EXITS = 4
RELAYS = 8
TORRENTS = MOST_LANES // 2

Figures = dict[str, float]


async def measure(workers: int, seconds: float) -> dict[str, Figures]:
    """Measure each isolation with torrents that nobody has, and what each torrent after the first adds."""
    results = {mode.value: await _measure(mode, workers, seconds) for mode in (Isolation.NONE, Isolation.TORRENT)}
    shared, isolated = results.values()
    each = {name: round((isolated[name] - shared[name]) / (TORRENTS - 1), 3) for name in isolated}
    return {**results, "each more": each}


async def _measure(isolation: Isolation, workers: int, seconds: float) -> Figures:
    async with LocalSwarm(1 << 20, seeders=0, exits=EXITS, relays=RELAYS, log_level="error") as swarm:
        with tempfile.TemporaryDirectory() as state:
            node = NodeOptions(
                workers=WorkerRange(workers, workers),
                state_dir=Path(state),
                listen=HostPort(swarm.client_host, 0),
                bootstrap=swarm.nodes,
                community_id=swarm.community_id,
                allow_private=True,
            )
            async with TorrentClient(node, HOPS, lockdown=LockdownMode.AUTO, isolation=isolation) as client:
                for _ in range(TORRENTS):
                    link = f"magnet:?xt=urn:btih:{secrets.token_hex(20)}"
                    client.download(parse_torrent(link), Path(state))
                return await _measure_client(client, seconds)


async def _measure_client(client: TorrentClient, seconds: float) -> Figures:
    begun_s = time.monotonic()
    waiting = asyncio.ensure_future(client.wait_finished(lambda client: None))  # nobody has them: it does not end
    try:
        async with asyncio.timeout(WAIT_S):
            while any(client.tunnels.tunnels_ready(*lane) < 1 for lane in client.lanes()):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        ready_s = time.monotonic() - begun_s
        await asyncio.sleep(SETTLE * seconds)
        main, family = psutil.Process(os.getpid()), [psutil.Process(pid) for pid in client.pool_pids.values()]
        meter, before = CpuMeter(), await _carried(client)
        for process in (main, *family):
            meter.cores(process.pid, time.monotonic())
        await asyncio.sleep(seconds)
        now_s = time.monotonic()
        return {
            "sessions": len(client.lanes()),
            "circuits": len(client.tunnels.circuits),
            "all_circuits_s": round(ready_s, 2),
            "threads": main.num_threads(),
            "main_mb": round(main.memory_info().rss / 1e6, 1),
            "children_mb": round(sum(process.memory_info().rss for process in family) / 1e6, 1),
            "main_cpu_percent": round(100 * meter.cores(main.pid, now_s), 2),
            "children_cpu_percent": round(100 * sum(meter.cores(process.pid, now_s) for process in family), 2),
            "bytes_per_s": round((await _carried(client) - before) / seconds, 1),
        }
    finally:
        waiting.cancel()


async def _carried(client: TorrentClient) -> int:
    """Return how many bytes the present circuits have carried, both ways."""
    await client.tunnels.update_statistics()
    return sum(circuit.bytes_up + circuit.bytes_down for circuit in client.tunnels.circuits.values())


def describe(result: dict[str, Figures]) -> str:
    """Return a table with a column for each isolation, and what each isolated torrent more costs."""
    names = list(next(iter(result.values())))
    lines = [
        f"{TORRENTS} torrents that nobody has, {HOPS} hops",
        f"{'':22}" + "".join(f"{mode:>12}" for mode in result),
    ]
    lines += [f"{name:22}" + "".join(f"{figures[name]:>12}" for figures in result.values()) for name in names]
    return "\n".join(lines)
