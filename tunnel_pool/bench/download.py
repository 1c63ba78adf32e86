"""The same file over libtorrent direct, and over 0, 1 and 2 workers: throughput, CPU seconds per GB by role."""

import argparse
import asyncio
import json
import os
import statistics
import sys
import time
from typing import Any

import libtorrent as lt
from rich.console import Console
from rich.table import Table

from tunnel_pool.cli import options
from tunnel_pool.cli.demo import ROLES
from tunnel_pool.errors import UserError
from tunnel_pool.measure import Meter
from tunnel_pool.seeder import seeder_settings
from tunnel_pool.swarm import LocalSwarm, same_bytes
from tunnel_pool.torrents import parse_torrent

DEFAULTS = {"size": 100, "hops": 1, "runs": 3, "workers": (0, 1, 2)}
SEEDERS = 2
DIRECT = "libtorrent direct"
POLL_S = 0.02
METER_INTERVAL_S = 0.5


def _counts(text: str) -> tuple[int, ...]:
    return tuple(options.workers(part) for part in text.split(","))


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("download", help=__doc__, description=__doc__)
    number = options.whole_number
    parser.add_argument("--size", type=number(1, 1 << 20), default=DEFAULTS["size"], metavar="MB")
    parser.add_argument("--hops", type=number(1, 3), default=DEFAULTS["hops"], metavar="H")
    parser.add_argument("--runs", type=number(1, 100), default=DEFAULTS["runs"], metavar="R", help="medians are shown")
    parser.add_argument("--workers", type=_counts, default=DEFAULTS["workers"], metavar="N,N,...")
    parser.add_argument("--json", action="store_true")


async def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Every run of every row; raises UserError when one fails."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for number in range(arguments.runs):
        # Row by row within each run, so that a drifting machine hits them all.
        for workers in (None, *arguments.workers):
            name = DIRECT if workers is None else f"--workers {workers}"
            print(f"run {number + 1} of {arguments.runs}: {name}", file=sys.stderr, flush=True)
            result = await (_direct(arguments.size) if workers is None else _demo(arguments, workers))
            rows.setdefault(name, []).append(result)
    return {"size_mb": arguments.size, "hops": arguments.hops, "rows": rows}


async def _demo(arguments: argparse.Namespace, workers: int) -> dict[str, Any]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tunnel_pool", "demo", f"--workers={workers}", f"--hops={arguments.hops}",
        f"--size={arguments.size}", "--json", "--log-level=error",
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        output, errors = await process.communicate()
    except asyncio.CancelledError:
        process.terminate()
        await process.wait()
        raise
    report: dict[str, Any] = json.loads(output.splitlines()[-1]) if output else {"ok": False}
    if not report["ok"]:
        raise UserError(f"a run failed: {report.get('error') or errors.decode()[-300:]}")
    return {key: report[key] for key in ("mb_per_s", "cpu_seconds", "bytes", "worker_rss_mb")}


async def _direct(size_mb: int) -> dict[str, Any]:
    """The same file from the same seeders, by uTP, without a tunnel."""
    meter = Meter()
    async with LocalSwarm(size_mb << 20, seeders=SEEDERS, exits=0, relays=0, log_level="error") as swarm:
        session = lt.session(seeder_settings(swarm.client_host))  # type: ignore[call-overload]
        parameters = parse_torrent(str(swarm.torrent))
        parameters.save_path = str(swarm.download_dir)
        parameters.flags &= ~(lt.torrent_flags.paused | lt.torrent_flags.auto_managed)
        pids = {"main": [os.getpid()], **swarm.pids()}
        meter.sample(pids)
        start_s = next_sample_s = time.monotonic()
        handle = session.add_torrent(parameters)
        for seeder in swarm.seeders:
            handle.connect_peer(seeder)
        while not handle.status().is_seeding:
            if time.monotonic() >= next_sample_s:
                next_sample_s += METER_INTERVAL_S
                meter.sample(pids)
            await asyncio.sleep(POLL_S)
        seconds = time.monotonic() - start_s
        meter.sample(pids)
        handle.flush_cache()
        del handle, session
        if not same_bytes(swarm.file, swarm.download_dir / swarm.file.name):
            raise UserError("libtorrent's own download differs from the file")
    size_bytes = size_mb << 20
    cpu = {role: meter.cpu_seconds().get(role, 0.0) for role in ROLES}
    return {"mb_per_s": size_bytes / 1e6 / seconds, "cpu_seconds": cpu, "bytes": size_bytes, "worker_rss_mb": []}


def describe(report: dict[str, Any]) -> str:
    """A table of medians."""
    table = Table(title=f"{report['size_mb']} MiB, {report['hops']} hop(s), {SEEDERS} seeders: medians")
    table.add_column("")
    for column in ("MB/s", "times direct", *(f"{role} s/GB" for role in ROLES), "all s/GB"):
        table.add_column(column, justify="right")
    direct = statistics.median(float(run["mb_per_s"]) for run in report["rows"][DIRECT])
    for name, runs in report["rows"].items():
        speed = statistics.median(run["mb_per_s"] for run in runs)
        per_gb = {role: statistics.median(_per_gb(run, role) for run in runs) for role in ROLES}
        total = statistics.median(sum(_per_gb(run, role) for role in ROLES) for run in runs)
        cells = [f"{speed:.1f}", f"{speed / direct:.2f}", *(f"{per_gb[role]:.1f}" for role in ROLES), f"{total:.1f}"]
        table.add_row(name, *cells)
    console = Console(width=120)
    with console.capture() as capture:
        console.print(table)
    return capture.get().rstrip()


def _per_gb(run: dict[str, Any], role: str) -> float:
    return float(run["cpu_seconds"][role]) / (float(run["bytes"]) / 1e9)
