"""Control beside a flood on the data stream: RPC round trips, memory, drops."""

import asyncio
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from tunnel_pool.overlay.ground.config import NOWHERE, HostPort
from tunnel_pool.pool.scaling import WorkerRange
from tunnel_pool.pooled.community import PooledTunnelCommunity
from tunnel_pool.private_swarm.swarm import LocalSwarm
from tunnel_pool.rpc import control_pb2 as pb
from tunnel_pool.rpc.streams import PENDING_BYTES, PIPE_BYTES
from tunnel_pool.system.errors import UserError
from tunnel_pool.tunnels import NodeOptions, open_pool

CALLS = 200
DISCARD_PORT = 9
DATAGRAM = b"d" + bytes(1398) + b"e"  # an exit takes it for a DHT message
BURST = 100
BURST_INTERVAL_S = 0.0005  # some 75,000 datagrams a second, twice what a child carries
CIRCUIT_TIMEOUT_S = 30
_FRAME_BYTES = len(DATAGRAM) + 15  # header and an IPv4 address, rpc/data.py


async def measure(seconds: float) -> dict[str, Any]:
    """Measure a child with a circuit to an exit, idle and flooded with more than it can carry."""
    async with LocalSwarm(1 << 20, seeders=0, exits=1, relays=0, log_level="error") as swarm:
        with tempfile.TemporaryDirectory() as state:
            node = NodeOptions(
                workers=WorkerRange(1, 1),
                state_dir=Path(state),
                listen=HostPort(swarm.client_host, 0),
                bootstrap=swarm.nodes,
                community_id=swarm.community_id,
                circuits=1,
            )
            pooled = await open_pool(node)
            try:
                return await _measure(pooled, (swarm.client_host, DISCARD_PORT), seconds)
            finally:
                await pooled.unload()


async def _measure(pooled: PooledTunnelCommunity, target: tuple[str, int], seconds: float) -> dict[str, Any]:
    pooled.build_tunnels(1)
    until_s = time.monotonic() + CIRCUIT_TIMEOUT_S
    while not (circuits := pooled.find_circuits(hops=1)):
        if time.monotonic() > until_s:
            raise UserError("no circuit could be built")
        await asyncio.sleep(0.05)
    circuit = circuits[0]
    idle = [await _round_trip_ms(pooled) for _ in range(CALLS)]
    child, main = psutil.Process(pooled.pool.pid(0)), psutil.Process(os.getpid())
    rss_before = {"main": main.memory_info().rss, "child": child.memory_info().rss}
    flooded: list[float] = []
    peak = dict(rss_before)
    offered = 0

    async def ask() -> None:
        while True:
            flooded.append(await _round_trip_ms(pooled))
            peak["main"] = max(peak["main"], main.memory_info().rss)
            peak["child"] = max(peak["child"], child.memory_info().rss)
            await asyncio.sleep(seconds / CALLS)

    asking = asyncio.ensure_future(ask())
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        for _ in range(BURST):
            pooled.send_data(circuit.hop.address, circuit.circuit_id, target, NOWHERE, DATAGRAM)
        offered += BURST
        await asyncio.sleep(BURST_INTERVAL_S)
    asking.cancel()
    dropped = pooled.dropped()["data_stream_full"]
    return {
        "seconds": seconds,
        "offered_datagrams": offered,
        "carried_datagrams": offered - dropped,
        "dropped_datagrams": dropped,
        "idle_ms": _spread(idle),
        "flooded_ms": _spread(flooded),
        "median_ratio": round(statistics.median(flooded) / statistics.median(idle), 1),
        # Where a control message would stand if it shared the data stream.
        "behind_data_ms": round((PIPE_BYTES + PENDING_BYTES) / _FRAME_BYTES / (offered - dropped) * seconds * 1000, 1),
        "rss_mb_before": {name: round(value / 1e6, 1) for name, value in rss_before.items()},
        "rss_mb_peak": {name: round(value / 1e6, 1) for name, value in peak.items()},
    }


async def _round_trip_ms(pooled: PooledTunnelCommunity) -> float:
    start_s = time.monotonic()
    await pooled.pool.call(0, "heartbeat", pb.Heartbeat())
    return (time.monotonic() - start_s) * 1000


def _spread(times_ms: list[float]) -> dict[str, float]:
    ordered = sorted(times_ms)
    return {
        "calls": len(ordered),
        "median": round(statistics.median(ordered), 2),
        "p99": round(ordered[int(len(ordered) * 0.99)], 2),
        "max": round(ordered[-1], 2),
    }


def describe(report: dict[str, Any]) -> str:
    idle, flooded = report["idle_ms"], report["flooded_ms"]
    before, peak = report["rss_mb_before"], report["rss_mb_peak"]
    per_s = report["offered_datagrams"] / report["seconds"]
    return "\n".join(
        [
            f"offered  {report['offered_datagrams']} datagrams of {len(DATAGRAM)} bytes in {report['seconds']} s "
            f"({per_s:.0f}/s)",
            f"carried  {report['carried_datagrams']}, dropped and counted {report['dropped_datagrams']}",
            f"RPC round trip idle     median {idle['median']} ms, p99 {idle['p99']}, max {idle['max']}",
            f"RPC round trip flooded  median {flooded['median']} ms, p99 {flooded['p99']}, max {flooded['max']} "
            f"({flooded['calls']} calls)",
            f"median flooded / idle   {report['median_ratio']}",
            f"waiting behind the queued data instead would take {report['behind_data_ms']} ms",
            f"RSS before the flood    main {before['main']} MB, child {before['child']} MB",
            f"RSS peak in the flood   main {peak['main']} MB, child {peak['child']} MB",
        ]
    )
