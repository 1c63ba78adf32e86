"""The real Tribler with its own tunnels and with ours: speed, CPU, and how soon there are circuits.

It is measured in a network namespace that has loopback alone: Tribler by itself would ask its bootstrap servers.
"""

import asyncio
import contextlib
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from tunnel_pool.bench.harness import tribler_core
from tunnel_pool.bench.harness.daemon import magnet_of
from tunnel_pool.overlay.ground.config import TRIBLER_COMMUNITY_ID
from tunnel_pool.private_swarm.swarm import LocalSwarm, same_bytes
from tunnel_pool.system.errors import UserError
from tunnel_pool.system.measure import Meter

HOPS = (1, 3)
SEEDERS, EXITS, RELAYS = 2, 2, 3
DOWNLOAD_TIMEOUT_S = 300.0
CIRCUITS_TIMEOUT_S = 120.0
SAMPLE_S = 0.2

Figures = dict[str, float]


async def measure(source: Path | None, python: str | None, workers: int, size_mb: int, runs: int) -> dict[str, Any]:
    """Return figures by tunnels ("plain", "workers") and hop count. Raises UserError."""
    wish = {"python": _found(python or sys.executable), "source": _checked(source), "workers": workers}
    wish |= {"size_mb": size_mb, "runs": runs}
    flags = "-n" if os.geteuid() == 0 else "-rn"
    process = await asyncio.create_subprocess_exec(
        "unshare", flags, sys.executable, "-m", "tunnel_pool.bench.tribler", json.dumps(wish),
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        output = await process.stdout.read()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()
    if not output:
        raise UserError("no figures came; see above")
    told: dict[str, Any] = json.loads(output.splitlines()[-1])
    if "error" in told:
        raise UserError(told["error"])
    return told


def _checked(source: Path | None) -> str:
    """Return where Tribler's source is. Raises UserError when it can't be measured."""
    if source is None:
        raise UserError("name the folder of Tribler's source: --tribler DIR")
    tribler_core.check_source(source)
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        raise UserError("unshare and ip are needed, to keep Tribler from its bootstrap servers (util-linux, iproute2)")
    return str(source.resolve())


def _found(python: str) -> str:
    """Return the path of this Python. Raises UserError."""
    if (path := shutil.which(python)) is None:
        raise UserError(f"no Python to run Tribler with: {python}")
    return path


async def _measure_all(wish: Namespace) -> dict[str, Any]:
    seen: dict[str, dict[str, list[Figures]]] = {}
    # One that can't run Tribler is told of before anything is started.
    await tribler_core.default_configuration(wish.python, Path(wish.source), Path(tempfile.gettempdir()))
    for number in range(wish.runs):
        for tunnels, workers in (("plain", 0), ("workers", wish.workers)):
            for hops in HOPS:
                print(f"run {number + 1} of {wish.runs}: {tunnels}, {hops} hops", file=sys.stderr, flush=True)
                figures = await _measure(wish, workers, hops)
                seen.setdefault(tunnels, {}).setdefault(str(hops), []).append(figures)
    return {
        tunnels: {
            hops: {name: round(statistics.median(each[name] for each in figures), 2) for name in figures[0]}
            for hops, figures in by_hops.items()
        }
        for tunnels, by_hops in seen.items()
    }


async def _measure(wish: Namespace, workers: int, hops: int) -> Figures:
    async with (
        LocalSwarm(
            wish.size_mb << 20,
            seeders=SEEDERS,
            exits=EXITS,
            relays=RELAYS,
            log_level="error",
            community_id=TRIBLER_COMMUNITY_ID,
        ) as swarm,
        _started(wish, workers, swarm) as (process, tribler),
    ):
        ready_s = time.monotonic()
        await _first_circuit(tribler)
        circuit_s = time.monotonic() - ready_s
        main = psutil.Process(process.pid)
        meter = Meter()
        _sample_once(meter, main)
        sampling = asyncio.ensure_future(_sample(meter, main))
        infohash = await tribler.add(magnet_of(swarm), swarm.download_dir, hops)
        await tribler.until(infohash, lambda known: known.get("progress", 0) > 0, DOWNLOAD_TIMEOUT_S)
        begun_s = time.monotonic()
        known = await tribler.until_done(infohash, DOWNLOAD_TIMEOUT_S)
        seconds = time.monotonic() - begun_s
        sampling.cancel()
        _sample_once(meter, main)
        if known.get("progress") != 1 or not same_bytes(swarm.file, swarm.download_dir / swarm.file.name):
            raise UserError(f"the download over {hops} hops did not complete, or is not right: {known}")
        megabytes = swarm.file.stat().st_size / 1e6
        return {
            "mb_per_s": megabytes / seconds,
            "cpu_s_per_gb": meter.cpu_seconds()["tribler"] / megabytes * 1000,
            "first_circuit_s": circuit_s,
        }


def _sample_once(meter: Meter, main: psutil.Process) -> None:
    meter.sample({"tribler": [each.pid for each in (main, *main.children())]})


async def _sample(meter: Meter, main: psutil.Process) -> None:
    while True:
        with contextlib.suppress(psutil.Error):
            _sample_once(meter, main)
        await asyncio.sleep(SAMPLE_S)


async def _first_circuit(tribler: tribler_core.Tribler) -> None:
    """Return when a circuit is ready. Raises UserError."""
    deadline_s = time.monotonic() + CIRCUITS_TIMEOUT_S
    while not any(circuit["state"] == "READY" for circuit in await tribler.circuits()):
        if time.monotonic() > deadline_s:
            raise UserError(f"no circuit was ready in {CIRCUITS_TIMEOUT_S:.0f} s")
        await asyncio.sleep(SAMPLE_S)


@contextlib.asynccontextmanager
async def _started(
    wish: Namespace, workers: int, swarm: LocalSwarm
) -> AsyncIterator[tuple[asyncio.subprocess.Process, tribler_core.Tribler]]:
    source = Path(wish.source)
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder) / "state"
        await tribler_core.prepare(wish.python, source, state, swarm)
        process = await asyncio.create_subprocess_exec(
            *tribler_core.command_line(wish.python, source, workers, "CRITICAL"),
            env={**os.environ, **tribler_core.environment_of(source, state, ours=workers > 0)},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )

        def check() -> None:
            if process.returncode is not None:
                raise UserError(f"Tribler ended by itself (exit code {process.returncode})")

        try:
            async with tribler_core.asked() as tribler:
                await tribler.until_ready(check)
                yield process, tribler
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def describe(measured: dict[str, Any]) -> str:
    console = Console(width=100)
    table = Table(title="A download in Tribler, its own tunnels (plain) and over workers")
    for column in ("tunnels", "hops", "MB/s", "CPU s/GB", "first circuit after REST, s"):
        table.add_column(column, justify="right")
    for tunnels, by_hops in measured.items():
        for hops, figures in by_hops.items():
            row = (figures["mb_per_s"], figures["cpu_s_per_gb"], figures["first_circuit_s"])
            table.add_row(tunnels, hops, *(f"{value:.1f}" for value in row))
    with console.capture() as captured:
        console.print(table)
    return captured.get()


async def _main(wish: Namespace) -> dict[str, Any]:
    process = await asyncio.create_subprocess_exec("ip", "link", "set", "lo", "up")
    await process.wait()
    try:
        return await _measure_all(wish)
    except UserError as error:
        return {"error": str(error)}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_main(Namespace(**json.loads(sys.argv[1]))))))
