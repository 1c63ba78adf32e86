"""Measures how late the event loop is: the delay of a timer of 100 ms, as a histogram."""

import asyncio
from bisect import bisect_left

INTERVAL_S = 0.1
BOUNDS_S = (
    0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.5, 1.0
)  # fmt: skip


class LoopMeter:
    """Measures from its making how late the loop's timers are, until `stop`."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._counts = [0] * (len(BOUNDS_S) + 1)
        self.sum_s = 0.0
        self._due_s = self._loop.time() + INTERVAL_S
        self._timer = self._loop.call_at(self._due_s, self._tick)

    def _tick(self) -> None:
        now_s = self._loop.time()
        late_s = max(0.0, now_s - self._due_s)
        self._counts[bisect_left(BOUNDS_S, late_s)] += 1
        self.sum_s += late_s
        self._due_s = now_s + INTERVAL_S
        self._timer = self._loop.call_at(self._due_s, self._tick)

    def buckets(self) -> list[tuple[str, int]]:
        """Return cumulative counts by upper bound in seconds, as Prometheus wants them."""
        total, found = 0, []
        for bound, count in zip([*map(str, BOUNDS_S), "+Inf"], self._counts, strict=True):
            total += count
            found.append((bound, total))
        return found

    def stop(self) -> None:
        self._timer.cancel()
