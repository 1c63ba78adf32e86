"""A daemon that works for half an hour: its memory and descriptors are to stay as they are.

A file is downloaded over one hop, streamed, and removed with its data, again and again, while
clients ask for lists and listen to events, torrents come and go, and the pool grows and shrinks.
"""

import asyncio
import statistics
import tempfile
import time
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from tunnel_pool.bench.harness import daemon
from tunnel_pool.bench.harness.report import save_plot
from tunnel_pool.private_swarm.swarm import LocalSwarm

SIZE_BYTES = 60 << 20
SAMPLE_S = 5.0
PAUSE_S = 2.0
ASK_S = 0.2
SCALE_S = 60.0
SHORT_LIVED = 20  # how many torrents there are that nobody has
WARM_UP = 1 / 3  # the share of the time after which all that is loaded once is loaded


async def measure(seconds: float) -> dict[str, Any]:
    """Raises UserError."""
    async with LocalSwarm(SIZE_BYTES, seeders=2, exits=2, relays=0, log_level="error") as swarm:
        with tempfile.TemporaryDirectory() as folder:
            more = ["--workers=1", "--hops=1", "--log-level=info", *daemon.network_of(swarm)]
            async with daemon.started(Path(folder), more) as client:
                counts = {"downloads": 0, "requests": 0, "events": 0}
                work = [_download(client, swarm, counts), _ask(client, counts), _listen(client, counts), _scale(client)]
                samples = await _sample_beside(client.pid, seconds, work)
    return {"seconds": seconds, **counts, "samples": samples, "growth": growth(samples)}


async def _sample_beside(pid: int, seconds: float, work: Sequence[Coroutine[Any, Any, None]]) -> list[dict[str, Any]]:
    tasks = [asyncio.get_running_loop().create_task(each) for each in work]
    samples = []
    begun_s = time.monotonic()
    try:
        while (elapsed_s := time.monotonic() - begun_s) < seconds:
            samples.append({"seconds": round(elapsed_s, 1), **_look(pid)})
            done, _ = await asyncio.wait(tasks, timeout=SAMPLE_S, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()  # a task that has ended did so by an error
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return samples


def _look(pid: int) -> dict[str, Any]:
    main = psutil.Process(pid)
    children = []
    for child in main.children():
        with suppress(psutil.Error):
            children.append((child.memory_info().rss / 1e6, child.num_fds()))
    memory = main.memory_info()
    return {
        "main_rss_mb": round(memory.rss / 1e6, 2),
        # Without pages of files, which libtorrent maps, and the kernel may take back.
        "main_private_mb": round((memory.rss - memory.shared) / 1e6, 2),
        "main_fds": main.num_fds(),
        "threads": main.num_threads(),
        "children": len(children),
        "child_rss_mb": round(max((rss for rss, _ in children), default=0.0), 2),
        "child_fds": max((fds for _, fds in children), default=0),
    }


async def _download(client: daemon.Client, swarm: LocalSwarm, counts: dict[str, int]) -> None:
    while True:
        infohash = await client.add(source=daemon.magnet_of(swarm))
        await client.until_begun(infohash)
        async with client.http.get(f"{client.base}/stream/{infohash}/0") as response:
            async for _ in response.content.iter_any():
                pass
        first = 1 + counts["downloads"] * SHORT_LIVED
        others = [await client.add(source=f"{number:040x}") for number in range(first, first + SHORT_LIVED)]
        for each in (infohash, *others):
            await client.remove(each)
        counts["downloads"] += 1
        await asyncio.sleep(PAUSE_S)


async def _ask(client: daemon.Client, counts: dict[str, int]) -> None:
    while True:
        for path in ("torrents", "pool", "circuits", "history", "dropped"):
            await client.get(f"/api/{path}")
            counts["requests"] += 1
            await asyncio.sleep(ASK_S)


async def _listen(client: daemon.Client, counts: dict[str, int]) -> None:
    """Count the daemon's events, over a connection that is closed and opened again all the time."""
    while True:
        with suppress(TimeoutError, aiohttp.ClientError):
            async with asyncio.timeout(10), client.http.get(f"{client.base}/api/events") as response:
                async for line in response.content:
                    counts["events"] += line.startswith(b"event")


async def _scale(client: daemon.Client) -> None:
    while True:
        for number in (2, 1):
            await asyncio.sleep(SCALE_S)
            workers = {"least": number, "most": number}
            async with client.http.put(f"{client.base}/api/pool/workers", json=workers) as response:
                response.raise_for_status()


def growth(samples: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return by how much each measurement grows in an hour after the warm-up: the slope that fits best."""
    steady = samples[int(WARM_UP * len(samples)) :]
    hours = [sample["seconds"] / 3600 for sample in steady]
    keys = ("main_rss_mb", "main_private_mb", "child_rss_mb", "main_fds", "child_fds", "threads")
    return {
        key: round(statistics.linear_regression(hours, [float(sample[key]) for sample in steady]).slope, 2)
        for key in keys
    }


def describe(result: dict[str, Any]) -> str:
    first, last = result["samples"][int(WARM_UP * len(result["samples"]))], result["samples"][-1]
    lines = [
        f"{result['seconds']:.0f} s: {result['downloads']} downloads and streams of {SIZE_BYTES >> 20} MiB, "
        f"{result['requests']} requests, {result['events']} events"
    ]
    for key, slope in result["growth"].items():
        lines.append(f"{key:14} {first[key]:>8} after the warm-up, {last[key]:>8} at the end, {slope:+.1f} an hour")
    return "\n".join(lines)


def draw(result: dict[str, Any], path: Path) -> None:
    """Raises UserError when the file can't be written."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    samples = result["samples"]
    minutes = [sample["seconds"] / 60 for sample in samples]
    panels = [
        (
            "resident memory, MB",
            {
                "main process": "main_rss_mb",
                "without pages of files": "main_private_mb",
                "largest child": "child_rss_mb",
            },
        ),
        ("descriptors and threads", {"main": "main_fds", "a child": "child_fds", "threads of main": "threads"}),
        ("children", {"children": "children"}),
    ]
    figure, axes = pyplot.subplots(len(panels), 1, figsize=(9, 6), sharex=True, layout="constrained")
    for axis, (title, lines) in zip(axes, panels, strict=True):
        for name, key in lines.items():
            axis.plot(minutes, [sample[key] for sample in samples], label=name, linewidth=1)
        axis.set_title(title, fontsize=9)
        axis.set_ylim(bottom=0)
        axis.tick_params(labelsize=8)
        axis.legend(fontsize=8, loc="lower right")
    axes[-1].set_xlabel(f"minutes; {result['downloads']} downloads meanwhile", fontsize=9)
    save_plot(figure, path)
