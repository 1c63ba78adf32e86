"""Measures what an idle pool costs: memory per child, CPU, and how soon it has circuits, by start method."""

import asyncio
import os
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from tunnel_pool.overlay.ground.config import HostPort, slot_of
from tunnel_pool.pool.command import StartMethod
from tunnel_pool.pool.scaling import WorkerRange
from tunnel_pool.pooled.community import PooledTunnelCommunity
from tunnel_pool.private_swarm.swarm import LocalSwarm
from tunnel_pool.system.measure import CpuMeter
from tunnel_pool.tunnels import NodeOptions, open_pool

WAIT_S = 60
SWARM_START_S = 10.0
# How many times the measured seconds to wait first: introductions, first circuits and the DHT's
# first rounds, a minute after the start, are not idle time.
SETTLE = 2.0
HOPS = 1
# More would be let go again (overlay/peers/balance.py), so an idle node of a large network does as much as one of this.
EXITS = 8
RELAYS = 16


async def measure(workers: int, seconds: float) -> dict[str, Any]:
    """Measure each start method with a node that knows enough others, keeps its circuits and carries nothing."""
    return {method.value: await _measure(method, workers, seconds) for method in StartMethod}


async def _measure(method: StartMethod, workers: int, seconds: float) -> dict[str, Any]:
    async with LocalSwarm(1 << 20, seeders=0, exits=EXITS, relays=RELAYS, log_level="error") as swarm:
        await asyncio.sleep(min(SWARM_START_S, seconds))
        with tempfile.TemporaryDirectory() as state:
            node = NodeOptions(
                workers=WorkerRange(workers, workers),
                state_dir=Path(state),
                listen=HostPort(swarm.client_host, 0),
                bootstrap=swarm.nodes,
                community_id=swarm.community_id,
                serves=True,
                start_method=method,
            )
            start_s = time.monotonic()
            pooled = await open_pool(node)
            try:
                return await _measure_pool(pooled, start_s, seconds)
            finally:
                await pooled.unload()


async def _measure_pool(pooled: PooledTunnelCommunity, start_s: float, seconds: float) -> dict[str, Any]:
    first_child_s = time.monotonic() - start_s
    pooled.build_tunnels(HOPS)
    async with asyncio.timeout(WAIT_S):
        await _until_circuit(pooled)
        first_circuit_s = time.monotonic() - start_s
        await pooled.pool.all_settled()
        all_children_s = time.monotonic() - start_s
        added_s = await _add_child(pooled)
    await asyncio.sleep(SETTLE * seconds)
    main = psutil.Process(os.getpid())
    family = [process for process in main.children() if process.status() != psutil.STATUS_ZOMBIE]
    of_pool = {pooled.pool.pid(slot) for slot in pooled.pool.working()}
    children = [process for process in family if process.pid in of_pool]
    # Only the pool's records tell the template from the children that it forked.
    template = [process for process in family if process.pid == pooled.pool.template_pid]
    idle_cpu = await _cpu(main, [*children, *template], seconds)
    return {
        "children": len(children),
        "first_child_s": round(first_child_s, 2),
        "first_circuit_s": round(first_circuit_s, 2),
        "all_children_s": round(all_children_s, 2),
        "added_child_s": round(added_s, 2),
        **_memory(children, "child"),
        **_memory(template, "template"),
        **idle_cpu,
    }


async def _until_circuit(pooled: PooledTunnelCommunity, slot: int | None = None) -> None:
    ready = asyncio.Event()

    def look() -> None:
        if any(slot in (None, slot_of(circuit.circuit_id)) for circuit in pooled.find_circuits(hops=HOPS)):
            ready.set()

    pooled.watchers.append(look)
    look()
    await ready.wait()
    pooled.watchers.remove(look)


async def _add_child(pooled: PooledTunnelCommunity) -> float:
    """Return seconds until a child that is added to a pool at work has its first circuit."""
    slot = len(pooled.pool.records)
    start_s = time.monotonic()
    pooled.pool.open_slots([slot])
    await _until_circuit(pooled, slot)
    return time.monotonic() - start_s


def _memory(processes: Iterable[psutil.Process], name: str) -> dict[str, float]:
    """Return the median process' memory in MB: all of its pages, those that are its alone, its share of all."""
    try:
        full = [process.memory_full_info() for process in processes]
    except psutil.AccessDenied:  # children let nobody but root look into their memory
        full = []
    if not full:
        return {}
    return {f"{name}_{kind}_mb": round(median(getattr(info, kind) for info in full) / 1e6, 1) for kind in _KINDS}


_KINDS = ("rss", "uss", "pss")


async def _cpu(main: psutil.Process, children: list[psutil.Process], seconds: float) -> dict[str, float]:
    """Measure the percent of one core that is used over this time."""
    meter = CpuMeter()

    def percent() -> tuple[float, float]:
        now_s = time.monotonic()
        return 100 * meter.cores(main.pid, now_s), 100 * sum(meter.cores(child.pid, now_s) for child in children)

    percent()
    await asyncio.sleep(seconds)
    of_main, of_children = percent()
    return {
        "main_cpu_percent": round(of_main, 2),
        "children_cpu_percent": round(of_children, 2),
        "cpu_percent": round(of_main + of_children, 2),
    }


def describe(result: dict[str, Any]) -> str:
    """Return a table with a column for each start method."""
    names = list(dict.fromkeys(name for figures in result.values() for name in figures))
    lines = [f"{'':22}" + "".join(f"{method:>12}" for method in result)]
    for name in names:
        lines.append(f"{name:22}" + "".join(f"{figures.get(name, '-'):>12}" for figures in result.values()))
    return "\n".join(lines)
