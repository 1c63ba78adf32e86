"""Samples once a second what each process of a run uses."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import psutil

from tunnel_pool.gumby_experiments.nodes.nodes import Node
from tunnel_pool.gumby_experiments.nodes.samples import MAIN, WORKER
from tunnel_pool.system.measure import cpu_seconds as used_by

INTERVAL_S = 1.0


class Sampler:
    """Samples processes: `rows` has a dict for each process and second, with COLUMNS."""

    def __init__(self, nodes: Callable[[], Iterable[Node]]) -> None:
        self.rows: list[dict[str, Any]] = []
        self._nodes = nodes
        self._start_s = time.monotonic()
        self._cpu_s: dict[int, tuple[str, float]] = {}

    async def run(self) -> None:
        """Sample all processes every INTERVAL_S, until it is cancelled."""
        next_s = time.monotonic()
        while True:
            self.sample()
            next_s = max(next_s + INTERVAL_S, time.monotonic())
            await asyncio.sleep(next_s - time.monotonic())

    def sample(self) -> None:
        now_s = time.monotonic() - self._start_s
        below = _children()
        for node in self._nodes():
            if node.pid is not None:
                for pid in [node.pid, *_descendants(node.pid, below)]:
                    self._add(node, pid, now_s)

    def workers(self) -> list[tuple[int, int]]:
        """Return node and process of every worker that runs now."""
        below = _children()
        roots = [(node.number, node.pid) for node in self._nodes() if node.pid is not None]
        return [(number, pid) for number, root in roots for pid in _descendants(root, below)]

    def cpu_seconds(self) -> dict[str, float]:
        """Return the CPU seconds of all processes of each role, up to their last sample."""
        total: dict[str, float] = defaultdict(float)
        for role, seconds in self._cpu_s.values():
            total[role] += seconds
        return dict(total)

    def _add(self, node: Node, pid: int, now_s: float) -> None:
        try:
            self._cpu_s[pid] = node.role, used_by(pid)  # finer than what is in /proc
            process = psutil.Process(pid)
            with process.oneshot():
                if process.status() == psutil.STATUS_ZOMBIE:
                    return
                cpu = process.cpu_times()
                row = {
                    "time_s": round(now_s, 2),
                    "node": node.number,
                    "role": node.role,
                    "process": MAIN if pid == node.pid else WORKER,
                    "pid": pid,
                    "cpu_user_s": cpu.user,
                    "cpu_system_s": cpu.system,
                    "rss_bytes": process.memory_info().rss,
                    **_disk(process),
                }
        except psutil.Error:  # it has just ended
            return
        if row["rss_bytes"]:  # a process that ends meanwhile has given its memory back
            self.rows.append(row)


def _children() -> dict[int, list[int]]:
    below: dict[int, list[int]] = defaultdict(list)
    for process in psutil.process_iter(["ppid"]):
        below[process.info["ppid"]].append(process.pid)
    return below


def _descendants(pid: int, below: dict[int, list[int]]) -> list[int]:
    found = []
    for child in below.get(pid, ()):
        found += [child, *_descendants(child, below)]
    return found


def _disk(process: psutil.Process) -> dict[str, int]:
    """Return what the process read and wrote; nothing where the system does not tell, or not this user."""
    try:
        counters = process.io_counters()
    except (psutil.Error, AttributeError, NotImplementedError):
        return {}
    return {"read_bytes": counters.read_bytes, "written_bytes": counters.write_bytes}
