"""CPU and memory of the processes of a run, by role."""

from collections import defaultdict
from dataclasses import dataclass

import psutil


@dataclass(slots=True)
class _Sample:
    role: str
    first_s: float
    last_s: float
    peak_rss_bytes: int


class Meter:
    """Sampled CPU seconds since a process was first seen; a dead process counts up to its last sample."""

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
            times = process.cpu_times()
            rss_bytes = process.memory_info().rss
        except psutil.Error:
            return
        cpu_s = times.user + times.system
        sample = self._samples.get(pid)
        if sample is None:
            sample = self._samples[pid] = _Sample(role, 0.0 if self._from_zero else cpu_s, cpu_s, rss_bytes)
        sample.last_s = cpu_s
        sample.peak_rss_bytes = max(sample.peak_rss_bytes, rss_bytes)

    def cpu_seconds(self) -> dict[str, float]:
        """By role, over all its processes."""
        total: dict[str, float] = defaultdict(float)
        for sample in self._samples.values():
            total[sample.role] += sample.last_s - sample.first_s
        return {role: round(seconds, 2) for role, seconds in total.items()}

    def peak_rss_mb(self, role: str) -> list[float]:
        """Of each process of the role that was seen, in MB."""
        return [round(s.peak_rss_bytes / 1e6, 1) for s in self._samples.values() if s.role == role]
