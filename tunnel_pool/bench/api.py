"""The daemon's answers under load: a list of a thousand torrents, while another downloads at full speed.

Requests are sent when they are due, whether or not those before were answered,
and their time counts from then: a server that stands still for a second is seen to.
"""

import asyncio
import base64
import math
import os
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import libtorrent as lt
from rich.console import Console
from rich.table import Table

from tunnel_pool.bench.harness import daemon
from tunnel_pool.private_swarm.swarm import LocalSwarm
from tunnel_pool.torrent.metainfo import new_creator

RATES = (1, 2, 5, 10, 15, 20, 200)
TORRENTS = 1000
FILE_BYTES = 16384
IDLE_S = 10.0
RPC = "/transmission/rpc"
SESSION_HEADER = "X-Transmission-Session-Id"
# What transmission-remote --list asks for.
LIST_FIELDS = (
    "addedDate", "error", "errorString", "eta", "id", "isFinished", "leftUntilDone", "name",
    "peersGettingFromUs", "peersSendingToUs", "rateDownload", "rateUpload", "sizeWhenDone", "status", "uploadRatio",
)  # fmt: skip
OF_2016 = "2016's theses, on Tribler: mean 74 to 134 ms, maxima of a second, saturated at 13 requests a second"


async def measure(size_mb: int, workers: int, seconds: float) -> dict[str, Any]:
    """Measure answers by kind of request and rate. Raises UserError."""
    async with LocalSwarm(size_mb << 20, seeders=2, exits=2, relays=0, log_level="error") as swarm:
        with tempfile.TemporaryDirectory() as folder:
            more = [f"--workers={workers}", "--hops=0", *daemon.network_of(swarm)]
            async with daemon.started(Path(folder), more) as client:
                await _add_many(client, Path(folder))
                idle = await _loop_delays(client, IDLE_S)
                rpc = await _session(client)
                loading = asyncio.get_running_loop().create_task(_download_again_and_again(client, swarm))
                try:
                    rows, under_load = await _measure_all(client, rpc, seconds)
                finally:
                    loading.cancel()
                    with suppress(asyncio.CancelledError):
                        await loading
    return {"torrents": TORRENTS, "requests": rows, "loop": {"idle": idle, "under load": under_load}}


async def _add_many(client: daemon.Client, folder: Path, torrents: int = TORRENTS) -> None:
    """Add small torrents whose files are all there, to be seeded without hops."""
    async for metainfo in make_torrents(folder, torrents):
        await client.add(metainfo=metainfo, hops=0)


async def make_torrents(folder: Path, torrents: int) -> AsyncIterator[str]:
    """Make small files in a daemon's downloads; yield the metainfo of each, as its API takes it."""
    downloads = folder / "downloads"
    downloads.mkdir(exist_ok=True)
    for number in range(torrents):
        yield await asyncio.to_thread(_make, downloads, number)


def _make(downloads: Path, number: int) -> str:
    file = downloads / f"file {number:04}.bin"
    file.write_bytes(os.urandom(FILE_BYTES))
    creator = new_creator(file, FILE_BYTES)
    lt.set_piece_hashes(creator, str(downloads))
    return base64.b64encode(lt.bencode(creator.generate())).decode()


async def _session(client: daemon.Client) -> dict[str, str]:
    async with client.http.post(client.base + RPC) as response:
        return {SESSION_HEADER: response.headers[SESSION_HEADER]}


async def _download_again_and_again(client: daemon.Client, swarm: LocalSwarm) -> None:
    while True:
        infohash = await client.add(source=daemon.magnet_of(swarm), hops=1)
        while (await client.get(f"/api/torrents/{infohash}"))["progress"] < 1:  # noqa: ASYNC110
            await asyncio.sleep(0.5)
        await client.remove(infohash)


async def _measure_all(
    client: daemon.Client, rpc: dict[str, str], seconds: float
) -> tuple[list[dict[str, Any]], list[tuple[float, float]]]:
    asked = {"method": "torrent-get", "arguments": {"fields": LIST_FIELDS, "format": "table"}}

    async def smallest() -> int:
        async with client.http.get(f"{client.base}/api/status") as response:
            return len(await response.read()) if response.status == 200 else 0

    async def own() -> int:
        async with client.http.get(f"{client.base}/api/torrents") as response:
            return len(await response.read()) if response.status == 200 else 0

    async def transmissions() -> int:
        async with client.http.post(client.base + RPC, json=asked, headers=rpc) as response:
            return len(await response.read()) if response.status == 200 else 0

    while not (await client.get("/api/status"))["down_bytes_per_s"]:  # noqa: ASYNC110
        await asyncio.sleep(0.1)
    before = await client.loop_delays()
    rows = []
    # The first shows what any answer takes, however small, while the download keeps all cores busy.
    kinds = ("GET /api/status", smallest), ("GET /api/torrents", own), ("torrent-get", transmissions)
    for name, request in kinds:
        for rate in RATES:
            speeds: list[int] = []
            watching = asyncio.get_running_loop().create_task(_watch(client, speeds))
            took, begun_s = await _load(request, rate, seconds)
            watching.cancel()
            rows.append({"request": name, "rate": rate, **_figures(took, begun_s), "mb_per_s": _mean_mb(speeds)})
    return rows, _ecdf((await client.loop_delays()).since(before))


async def _watch(client: daemon.Client, speeds: list[int]) -> None:
    while True:
        speeds.append((await client.get("/api/status"))["down_bytes_per_s"])
        await asyncio.sleep(1)


def _mean_mb(speeds: Sequence[int]) -> float:
    return round(statistics.mean(speeds) / 1e6, 1) if speeds else 0.0


async def _load(request: Any, rate: int, seconds: float) -> tuple[list[tuple[float, int]], float]:
    """Return (seconds, bytes) of each request, and how long all took."""
    begun_s = time.monotonic()
    took: list[tuple[float, int]] = []

    async def one(due_s: float) -> None:
        size = await request()
        took.append((time.monotonic() - due_s, size))

    async with asyncio.TaskGroup() as group:
        for number in range(max(1, int(rate * seconds))):
            due_s = begun_s + number / rate
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            group.create_task(one(due_s))
    return took, time.monotonic() - begun_s


def _figures(took: Sequence[tuple[float, int]], seconds: float) -> dict[str, Any]:
    milliseconds = sorted(1000 * took_s for took_s, _ in took)
    return {
        "answered_per_s": round(sum(size > 0 for _, size in took) / max(seconds, 1e-9), 1),
        "kilobytes": round(statistics.mean(size for _, size in took) / 1000),
        "mean_ms": round(statistics.mean(milliseconds), 2),
        "sd_ms": round(statistics.pstdev(milliseconds), 2),
        "p50_ms": round(_quantile(milliseconds, 0.5), 2),
        "p99_ms": round(_quantile(milliseconds, 0.99), 2),
        "max_ms": round(milliseconds[-1], 2),
    }


def _quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)]


async def _loop_delays(client: daemon.Client, seconds: float) -> list[tuple[float, float]]:
    before = await client.loop_delays()
    await asyncio.sleep(seconds)
    return _ecdf((await client.loop_delays()).since(before))


def _ecdf(delays: daemon.LoopDelays) -> list[tuple[float, float]]:
    """Return pairs of milliseconds and the share of the delays that were no longer."""
    total = delays.timers[math.inf]
    return [
        (1000 * bound_s, round(count / total, 4) if total else 0.0)
        for bound_s, count in delays.timers.items()
        if bound_s < math.inf
    ]


def describe(result: dict[str, Any]) -> str:
    table = Table(title=f"A list of {result['torrents']} torrents, asked for while another downloads over one hop")
    columns = ("rate/s", "answered/s", "kB", "mean ms", "sd ms", "p50 ms", "p99 ms", "max ms", "download MB/s")
    table.add_column("")
    for column in columns:
        table.add_column(column, justify="right")
    keys = ("rate", "answered_per_s", "kilobytes", "mean_ms", "sd_ms", "p50_ms", "p99_ms", "max_ms", "mb_per_s")
    for row in result["requests"]:
        table.add_row(row["request"], *(str(row[key]) for key in keys))
    loop = Table(title="The loop's delay: share of 100 ms timers that were no later")
    loop.add_column("")
    bounds = [f"{bound:g}" for bound, _ in result["loop"]["idle"]]
    for bound in bounds:
        loop.add_column(bound, justify="right")
    for name, shares in result["loop"].items():
        loop.add_row(f"{name}, ms", *(f"{share:.1%}" if share < 1 else "all" for _, share in shares))
    console = Console(width=170)
    with console.capture() as captured:
        console.print(table)
        console.print(OF_2016)
        console.print(loop)
    return captured.get().rstrip()


async def measure_starts(runs: int) -> dict[str, Any]:
    """Return the seconds from the command until it listens, without torrents and with a thousand. Raises UserError."""
    starts: dict[str, list[float]] = {}
    for torrents in (0, TORRENTS):
        with tempfile.TemporaryDirectory() as folder:
            if torrents:
                async with daemon.started(Path(folder), ["--workers=1"]) as client:
                    await _add_many(client, Path(folder), torrents)
            for _ in range(runs):
                begun_s = time.monotonic()
                async with daemon.started(Path(folder), ["--workers=1"]) as client:
                    starts.setdefault(str(torrents), []).append(round(time.monotonic() - begun_s, 3))
                    assert len(await client.get("/api/torrents")) == torrents
    return {"starts": starts}


def describe_starts(result: dict[str, Any]) -> str:
    table = Table(title="From the command until clients find it")
    for column in ("torrents", "starts", "mean s", "sd s", "min s", "max s"):
        table.add_column(column, justify="right")
    for torrents, seconds in result["starts"].items():
        spread = statistics.mean(seconds), statistics.pstdev(seconds), min(seconds), max(seconds)
        table.add_row(torrents, str(len(seconds)), *(f"{value:.3f}" for value in spread))
    console = Console(width=100)
    with console.capture() as captured:
        console.print(table)
    return captured.get().rstrip()
