"""An elastic pool under a load that comes and goes: one real download, held back and let go, then many circuits.

On the Python engine, whose children are short of CPU at a tenth of what the
native engine's carry: few cores are enough to see the pool grow.
"""

import asyncio
import tempfile
import time
from pathlib import Path
from typing import Any

from tunnel_pool.bench.harness.report import save_plot
from tunnel_pool.overlay.ground.config import HostPort
from tunnel_pool.packet_engine import EngineChoice
from tunnel_pool.pool.policy import ChildState
from tunnel_pool.pool.scaling import CIRCUITS_PER_CHILD, WorkerRange
from tunnel_pool.private_swarm.swarm import LocalSwarm
from tunnel_pool.system.errors import UserError
from tunnel_pool.system.measure import CpuMeter
from tunnel_pool.torrent.client import TorrentClient
from tunnel_pool.torrent.isolation import Isolation
from tunnel_pool.torrent.metainfo import parse_torrent
from tunnel_pool.tunnels import NodeOptions

SEEDERS = EXITS = 2
CALM_BYTES_PER_S = 500_000
CALM_SHARE = 1.25
SAMPLE_S = 1.0
Sample = dict[str, float]


async def measure(workers: WorkerRange, size_mb: int, seconds: float) -> dict[str, Any]:
    """Run calm, traffic, calm, a wish for circuits, calm: a load lasts `seconds`, a calm until the pool can shrink.

    Raises UserError when the file is too small for that.
    """
    async with LocalSwarm(size_mb << 20, seeders=SEEDERS, exits=EXITS, relays=0, log_level="error") as swarm:
        with tempfile.TemporaryDirectory() as state:
            node = NodeOptions(
                workers=workers,
                state_dir=Path(state),
                listen=HostPort(swarm.client_host, 0),
                bootstrap=swarm.nodes,
                community_id=swarm.community_id,
                engine=EngineChoice.PYTHON,
            )
            async with TorrentClient(node, hops=1, isolation=Isolation.NONE) as client:
                client.download(parse_torrent(str(swarm.torrent)), swarm.download_dir, swarm.seeders)
                await client.wait_circuits(lambda client: None)
                return {"workers": str(workers), "samples": await _run(client, seconds)}


async def _run(client: TorrentClient, seconds: float) -> list[Sample]:
    most = client.options.workers.most
    calm_s = CALM_SHARE * seconds * most  # the pool lets a child go after 30 s of calm, and drains it for a while
    many = CIRCUITS_PER_CHILD * most
    meter, samples, start_s = CpuMeter(), [], time.monotonic()
    kept = client.tunnels.circuits_needed[client.hops]
    calm = CALM_BYTES_PER_S, kept
    for (limit, circuits), lasts_s in [
        (calm, 10.0),
        ((0, kept), seconds),
        (calm, calm_s),
        ((calm[0], many), seconds),
        (calm, calm_s),
    ]:
        client.set_download_limit(limit)
        client.tunnels.circuits_needed[client.hops] = circuits
        until_s = time.monotonic() + lasts_s
        while time.monotonic() < until_s:
            await asyncio.sleep(SAMPLE_S)
            samples.append(_sample(client, meter, start_s))
            if all(status.finished for status in client.statuses):
                raise UserError("the file was complete before the end: name a larger --size, or fewer --seconds")
    return samples


def _sample(client: TorrentClient, meter: CpuMeter, start_s: float) -> Sample:
    now_s = time.monotonic()
    pool = client.tunnels.pool
    assert pool is not None
    return {
        "seconds": round(now_s - start_s, 1),
        "running": len(pool.running()),
        "draining": len(pool.in_state(ChildState.DRAINING)),
        "circuits": len(client.circuits()),
        "cpu_cores": round(sum(meter.cores(pool.pid(slot), now_s) for slot in pool.working()), 2),
        "mb_per_s": round(sum(status.download_bytes_per_s for status in client.statuses) / 1e6, 2),
    }


def describe(result: dict[str, Any]) -> str:
    """Return every change of the number of children, and what was going on then."""
    lines = [f"{'seconds':>8}{'running':>9}{'draining':>10}{'circuits':>10}{'CPU cores':>11}{'MB/s':>8}"]
    before = None
    for sample in result["samples"]:
        if (sample["running"], sample["draining"]) != before:
            before = sample["running"], sample["draining"]
            lines.append(
                f"{sample['seconds']:8.0f}{sample['running']:9}{sample['draining']:10}{sample['circuits']:10}"
                f"{sample['cpu_cores']:11.2f}{sample['mb_per_s']:8.1f}"
            )
    return "\n".join(lines)


def draw(result: dict[str, Any], path: Path) -> None:
    """Draw children, circuits, CPU and speed over time. Raises UserError when the file can't be written."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    samples: list[Sample] = result["samples"]
    times = [sample["seconds"] for sample in samples]
    panels = [
        ("children that run, and with those that drain", ("running", "draining")),
        ("circuits", ("circuits",)),
        ("CPU of the children, cores", ("cpu_cores",)),
        ("download, MB/s", ("mb_per_s",)),
    ]
    figure, axes = pyplot.subplots(len(panels), 1, figsize=(9, 7), sharex=True, layout="constrained")
    for axis, (title, names) in zip(axes, panels, strict=True):
        below = [0.0] * len(samples)
        for name, colour in zip(names, ("#4c78a8", "#f58518"), strict=False):
            above = [base + sample[name] for base, sample in zip(below, samples, strict=True)]
            axis.fill_between(times, below, above, step="post", color=colour, alpha=0.8, linewidth=0)
            below = above
        axis.set_title(title, fontsize=9)
        axis.tick_params(labelsize=8)
        axis.set_ylim(bottom=0)
    axes[-1].set_xlabel(f"seconds; --workers {result['workers']}", fontsize=9)
    save_plot(figure, path)
