"""CPU and memory of the processes of a run, by role."""

import sys
import time
from collections import defaultdict
from dataclasses import dataclass
from typing import NamedTuple

import psutil


@dataclass(slots=True)
class _Sample:
    role: str
    first_s: float
    last_s: float
    peak_rss_bytes: int


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds that a process has used. Raises psutil.NoSuchProcess."""
    if not sys.platform.startswith("linux"):
        times = psutil.Process(pid).cpu_times()
        return times.user + times.system
    try:
        # The clock of clock_getcpuclockid(3), in nanoseconds: what is in /proc is rounded down to hundredths
        # of a second, and twice, which is more than an idle process uses in a second.
        return time.clock_gettime((~pid << 3) | _CPUCLOCK_SCHED)
    except OSError:
        raise psutil.NoSuchProcess(pid) from None


_CPUCLOCK_SCHED = 2  # include/linux/posix-timers_types.h


class Meter:
    """Sums CPU seconds since a process was first seen; a dead process counts up to its last sample."""

    def __init__(self) -> None:
        self._processes: dict[int, psutil.Process] = {}
        self._samples: dict[int, _Sample] = {}
        self._from_zero = False

    def sample(self, pids_by_role: dict[str, list[int]]) -> None:
        """Read every process; those that appear after the first call count from their start."""
        for role, pids in pids_by_role.items():
            for pid in pids:
                self._sample(role, pid)
        self._from_zero = True

    def _sample(self, role: str, pid: int) -> None:
        try:
            process = self._processes.setdefault(pid, psutil.Process(pid))
            cpu_s = cpu_seconds(pid)
            rss_bytes = process.memory_info().rss
        except psutil.Error:
            return
        sample = self._samples.get(pid)
        if sample is None:
            sample = self._samples[pid] = _Sample(role, 0.0 if self._from_zero else cpu_s, cpu_s, rss_bytes)
        sample.last_s = cpu_s
        sample.peak_rss_bytes = max(sample.peak_rss_bytes, rss_bytes)

    def cpu_seconds(self) -> dict[str, float]:
        """Return CPU seconds by role, over all of its processes."""
        total: dict[str, float] = defaultdict(float)
        for sample in self._samples.values():
            total[sample.role] += sample.last_s - sample.first_s
        return {role: round(seconds, 2) for role, seconds in total.items()}

    def peak_rss_mb(self, role: str) -> list[float]:
        """Return the peak memory of each process of the role that was seen, in MB."""
        return [round(s.peak_rss_bytes / 1e6, 1) for s in self._samples.values() if s.role == role]


class _Reading(NamedTuple):
    time_s: float
    cpu_s: float


class CpuMeter:
    """Tells the cores that each process used since it was asked for last."""

    def __init__(self) -> None:
        self._readings: dict[int, _Reading] = {}

    def cores(self, pid: int | None, now_s: float) -> float:
        """Return the cores used since the last call; 0.0 the first time, and for a process that is gone."""
        if pid is None:
            return 0.0
        try:
            now = _Reading(now_s, cpu_seconds(pid))
        except psutil.Error:
            self._readings.pop(pid, None)
            return 0.0
        before, self._readings[pid] = self._readings.get(pid, now), now
        seconds = now.time_s - before.time_s
        return (now.cpu_s - before.cpu_s) / seconds if seconds > 0 else 0.0

    def forget_all_but(self, pids: set[int | None]) -> None:
        self._readings = {pid: reading for pid, reading in self._readings.items() if pid in pids}
