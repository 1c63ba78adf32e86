"""Verbs that count what does not depend on how busy a machine is: instructions, bytes, modules, ratios."""

import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

from gumby_experiments.errors import RunError
from gumby_experiments.run import Run
from gumby_experiments.verbs import of_a_node
from packet_engine import is_built
from tunnel_pool.pool.program import own_executable

CALLGRIND = ("valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null")
EXAMPLE = Path(__file__).parents[2] / "packet_engine" / "target" / "release" / "examples" / "cells"
COUNT_TIMEOUT_S = 300.0
_COLLECTED = re.compile(r"Collected : (\d+)")
_IMPORTED = """
import json, sys, child.__main__, child.data_path, child.host
modules = len(sys.modules)
import psutil
print(json.dumps({"modules": modules, "uss": psutil.Process().memory_full_info().uss}), flush=True)
sys.stdin.read()
"""


def why_not() -> str | None:
    """Why no instructions can be counted here, None when they can."""
    return None if shutil.which("valgrind") else "counting instructions needs valgrind: apt-get install valgrind"


class CostsModule:
    """Each verb runs a program of its own as a node, and adds to the metrics."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._burden = str(run.setting("burden"))
        # Where things lie in memory depends on how long the environment is, and on the hash of texts; the
        # number of instructions does so by up to a percent. So it is left to chance, the same for the same seed.
        padding = "x" * run.random.randrange(256)
        seed = run.random.randrange(1 << 32)
        self._environment = [f"PATH={os.environ.get('PATH', '')}", f"PADDING={padding}", f"PYTHONHASHSEED={seed}"]

    @of_a_node
    async def count_python(self, number: int, workload: str, times: str) -> None:
        """The metric WORKLOAD_instructions of gumby_experiments.workloads, for each time."""
        program = [sys.executable, "-m", "gumby_experiments.workloads", workload, times, "--counted"]
        counted = ["--instr-atstart=no", *program, f"--burden={self._burden}"]
        self._run.metrics[f"{workload}_instructions"] = await self._count(number, counted) / int(times)

    @of_a_node
    async def count_engine(self, number: int, role: str, cells: str) -> None:
        """The metric engine_ROLE_instructions, for each cell; nothing where the engine can't be built."""
        if not EXAMPLE.exists():
            self._run.happened("no packet_engine/target/release/examples/cells: cargo build --release --example cells")
            return
        counted = ["--toggle-collect=*measured*", str(EXAMPLE), role, cells, self._burden]
        self._run.metrics[f"engine_{role}_instructions"] = await self._count(number, counted) / int(cells)

    async def _count(self, number: int, command: list[str]) -> int:
        """Raises RunError."""
        if why := why_not():
            raise RunError(why)
        node = self._run.another(number)
        await node.start(["env", "-i", *self._environment, *CALLGRIND, *command])
        await node.ended(COUNT_TIMEOUT_S)
        found = _COLLECTED.search(node.log.read_text(errors="replace"))
        if node.returncode != 0 or found is None or found[1] == "0":
            raise RunError(f"nothing was counted of {' '.join(command)}: {node.last_line}")
        return int(found[1])

    @of_a_node
    async def weigh_imports(self, number: int) -> None:
        """What a child has imported when it begins: modules, and memory that is its own."""
        node = self._run.another(number)
        await node.start([sys.executable, "-c", _IMPORTED])
        self._run.metrics["child_modules"] = await node.heard("modules")
        self._run.metrics["child_import_uss_mb"] = round(node.said["uss"] / 1e6, 3)
        await node.ended()

    @of_a_node
    async def compare_cpu(self, number: int, role: str, seconds: str) -> None:
        """CPU a cell of ours, by that of pyipv8's Python endpoint, in one run."""
        if not is_built():
            return
        node = self._run.another(number)
        contenders = "--contenders=native,pyipv8"
        await node.start([*own_executable(), "bench", role, contenders, "--runs=1", f"--seconds={seconds}", "--json"])
        measured: dict[str, Any] = (await node.heard("scenarios"))[role]
        await node.ended()
        ours, theirs = (measured[name][0]["us_per_cell"] for name in ("native", "pyipv8"))
        self._run.metrics[f"{role}_cpu_of_pyipv8"] = round(ours / theirs, 4)
