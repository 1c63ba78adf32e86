"""Verbs that count what does not depend on how busy a machine is: instructions, bytes, modules, ratios."""

import os
import re
import shutil
import sys
from typing import Any

from tunnel_pool.gumby_experiments.nodes.run import Run
from tunnel_pool.gumby_experiments.plan.errors import RunError
from tunnel_pool.gumby_experiments.plan.verb_lookup import of_a_node
from tunnel_pool.gumby_experiments.results.provenance import SOURCE
from tunnel_pool.gumby_experiments.workloads import NOTHING
from tunnel_pool.packet_engine import is_built
from tunnel_pool.pool.program import own_executable

CALLGRIND = ("valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null")
CRATE = SOURCE / "tunnel_pool" / "packet_engine" / "Cargo.toml"
TARGET = SOURCE / "tunnel_pool" / "packet_engine" / "target"
BUILD_TIMEOUT_S = 600.0
COUNT_TIMEOUT_S = 300.0
_COLLECTED = re.compile(r"Collected : (\d+)")
_IMPORTED = """
import json, sys, tunnel_pool.child.__main__, tunnel_pool.child.data_path, tunnel_pool.child.host
modules = len(sys.modules)
import psutil
print(json.dumps({"modules": modules, "uss": psutil.Process().memory_full_info().uss}), flush=True)
sys.stdin.read()
"""


def why_not() -> str | None:
    """Return why no instructions can be counted here, None when they can."""
    return None if shutil.which("valgrind") else "counting instructions needs valgrind: apt-get install valgrind"


class CostsModule:
    """Counts what work costs: each verb runs a program of its own as a node, and adds to the metrics."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._burden = str(run.setting("burden"))
        # The layout of memory depends on the length of the environment and on the hashes of texts, and changes the
        # number of instructions by up to a percent. So both are drawn at random, the same for the same seed.
        padding = "x" * run.random.randrange(256)
        seed = run.random.randrange(1 << 32)
        self._empty: int | None = None  # the instructions that counting itself costs
        self._is_built = False
        self._environment = [f"PATH={os.environ.get('PATH', '')}", f"PADDING={padding}", f"PYTHONHASHSEED={seed}"]

    @of_a_node
    async def count_python(self, number: int, workload: str, times: str) -> None:
        """Set the metric WORKLOAD_instructions: what one time of the workload of `workloads.py` costs."""
        if self._empty is None:
            self._empty = await self._count_workload(number, NOTHING, "1")
        counted = await self._count_workload(number, workload, times) - self._empty
        self._run.metrics[f"{workload}_instructions"] = counted / int(times)

    async def _count_workload(self, number: int, workload: str, times: str) -> int:
        program = [sys.executable, "-m", "tunnel_pool.gumby_experiments.workloads", workload, times, "--counted"]
        return await self._count(number, ["--instr-atstart=no", *program, f"--burden={self._burden}"])

    @of_a_node
    async def count_engine(self, number: int, role: str, cells: str) -> None:
        """Set the metric engine_ROLE_instructions, for each cell; nothing is set where the engine can't be built."""
        if shutil.which("cargo") is None or not CRATE.exists():
            self._run.happened("the engine's cells are not counted: no cargo, or no source of the engine")
            return
        if not self._is_built:
            await self._build(number)
        counted = [
            "--toggle-collect=*measured*",
            str(TARGET / "release" / "examples" / "cells"),
            role,
            cells,
            self._burden,
        ]
        self._run.metrics[f"engine_{role}_instructions"] = await self._count(number, counted) / int(cells)

    async def _build(self, number: int) -> None:
        """Build what is counted from the source that is there. Raises RunError."""
        node = self._run.another(number)
        command = ["cargo", "build", "--quiet", "--release", "--locked", "--example=cells"]
        await node.start([*command, f"--manifest-path={CRATE}", f"--target-dir={TARGET}"], ends=True)
        await node.ended(BUILD_TIMEOUT_S)
        if node.returncode != 0:
            raise RunError(f"the engine's cells could not be built: {node.last_line}")
        self._is_built = True

    async def _count(self, number: int, command: list[str]) -> int:
        """Raises RunError."""
        if why := why_not():
            raise RunError(why)
        node = self._run.another(number)
        await node.start(["env", "-i", *self._environment, *CALLGRIND, *command], ends=True)
        await node.ended(COUNT_TIMEOUT_S)
        found = _COLLECTED.search(node.log.read_text(errors="replace"))
        if node.returncode != 0 or found is None or found[1] == "0":
            raise RunError(f"nothing was counted of {' '.join(command)}: {node.last_line}")
        return int(found[1])

    @of_a_node
    async def weigh_imports(self, number: int) -> None:
        """Measure what a child has imported when it begins: modules, and memory that is its own."""
        node = self._run.another(number)
        await node.start([sys.executable, "-c", _IMPORTED])
        self._run.metrics["child_modules"] = await node.heard("modules")
        self._run.metrics["child_import_uss_mb"] = round(node.said["uss"] / 1e6, 3)
        await node.ended()

    @of_a_node
    async def compare_cpu(self, number: int, role: str, seconds: str) -> None:
        """Compare our CPU for a cell with that of pyipv8's Python endpoint, in one run."""
        if not is_built():
            return
        node = self._run.another(number)
        contenders = "--contenders=native,pyipv8"
        await node.start(
            [*own_executable(), "bench", role, contenders, "--runs=1", f"--seconds={seconds}", "--json"],
            ends=True,
        )
        measured: dict[str, Any] = (await node.heard("scenarios"))[role]
        await node.ended()
        ours, theirs = (measured[name][0]["us_per_cell"] for name in ("native", "pyipv8"))
        self._run.metrics[f"{role}_cpu_of_pyipv8"] = round(ours / theirs, 4)
