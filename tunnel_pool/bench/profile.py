"""Draws where the native engine's time goes, by perf: shares of one node's CPU.

python -m tunnel_pool.bench.profile --output docs/engine-profile.svg

Needs perf (linux-perf) and the right to profile; the figure in docs/ is made by this.
"""

import argparse
import asyncio
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tunnel_pool.bench import forwarding
from tunnel_pool.bench.harness.contenders import BY_NAME
from tunnel_pool.bench.harness.datagrams import PAYLOAD_BYTES
from tunnel_pool.packet_engine import EngineChoice
from tunnel_pool.system import runner
from tunnel_pool.system.log import set_up_logging

SCENARIOS = [(role, trains) for role in forwarding.SCENARIOS for trains in (True, False)]
SECONDS = 5
THREAD = "packet engine"

# Part of the time: symbols whose share counts for it, with all that they call.
PARTS = {
    "cryptography (ring)": ("ring_core_",),
    "sendmmsg": ("__x64_sys_sendmmsg",),
    "recvmmsg": ("__x64_sys_recvmmsg",),
    "waiting, waking (epoll, sleep, interrupts)": (
        "__x64_sys_epoll_wait",
        "__x64_sys_clock_nanosleep",
        "asm_sysvec_apic_timer_interrupt",
    ),
}
REST = "engine: tables, headers, copies"


async def profile(role: str, trains: bool) -> tuple[dict[str, float], float]:
    """Share of each part, and microseconds a cell."""
    with tempfile.TemporaryDirectory() as folder:
        data = str(Path(folder) / "perf.data")
        arguments = argparse.Namespace(seconds=SECONDS)
        running = asyncio.ensure_future(forwarding.measure(role, BY_NAME[EngineChoice.NATIVE.value], trains, arguments))
        pid = await _node_pid(running)
        await asyncio.sleep(1)
        recorder = await asyncio.create_subprocess_exec(
            "perf", "record", "-q", "-g", "-o", data, "-p", str(pid), "--", "sleep", str(SECONDS - 2),
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        result = await running
        await recorder.wait()
        report = await asyncio.create_subprocess_exec(
            "perf", "report", "-i", data, "--children", "-g", "none", "--comm", THREAD, "--sort", "sym",
            "--percentage", "relative", "--stdio", "-t", ",",
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        output, _ = await report.communicate()
        return _shares(output.decode()), float(result["us_per_cell"])


async def _node_pid(running: "asyncio.Future[dict[str, Any]]") -> int:
    """Wait for the node's circuit; it is the process with an engine's thread that is not ours."""
    while True:
        await asyncio.sleep(0.1)
        if running.done():
            await running
        found = subprocess.run(["pgrep", "-f", "tunnel_pool node --engine=native"], capture_output=True, text=True)  # noqa: ASYNC221, S607, PLW1510
        if found.stdout:
            return int(found.stdout.split()[0])


def _shares(report: str) -> dict[str, float]:
    shares = dict.fromkeys(PARTS, 0.0)
    for line in report.splitlines():
        columns = line.split(",")
        if line.startswith("#") or len(columns) < 3:
            continue
        symbol = columns[2].split("]")[-1].strip()
        # Of ring, what its functions take themselves: they call nothing.
        part = next((part for part, names in PARTS.items() if symbol.startswith(names)), None)
        if part is not None:
            own = columns[1] if part.startswith("cryptography") else columns[0]
            shares[part] += float(own.strip().rstrip("%"))
    return {**shares, REST: max(0.0, 100 - sum(shares.values()))}


def draw(profiles: dict[str, tuple[dict[str, float], float]], output: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(9, 3.6), layout="constrained")
    left = dict.fromkeys(profiles, 0.0)
    for part in [*PARTS, REST]:
        widths = [shares[part] / 100 * us for shares, us in profiles.values()]
        axis.barh(list(profiles), widths, left=list(left.values()), label=part)
        left = {name: before + width for (name, before), width in zip(left.items(), widths, strict=True)}
    axis.invert_yaxis()
    axis.set_xlabel(f"microseconds of CPU a cell of {PAYLOAD_BYTES} bytes of payload")
    axis.legend(fontsize=8)
    axis.set_title("The native engine: where a node's time goes (-plain: its neighbours send no trains)", fontsize=9)
    figure.savefig(output)


async def run(output: Path) -> dict[str, object]:
    profiles = {}
    for role, trains in SCENARIOS:
        name = role if trains else f"{role}-plain"
        profiles[name] = shares, us = await profile(role, trains)
        parts = ", ".join(f"{part} {share:.0f} %" for part, share in shares.items())
        print(f"{name:12} {us:.2f} us: {parts}", flush=True)
    draw(profiles, output)
    return {"ok": True}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, metavar="SVG")
    arguments = parser.parse_args()
    if shutil.which("perf") is None:
        print("perf is needed: apt-get install linux-perf", file=sys.stderr)
        return 1
    set_up_logging("error")
    return 0 if runner.run(run(arguments.output)).result else 1


if __name__ == "__main__":
    sys.exit(main())
