"""Follows a download's progress and speed over time, by what the one who downloads saw, by its own clock. Pure."""

from collections.abc import Iterable
from typing import Any

import numpy as np

PROGRESS = "progress"  # table
EVERY_S = 0.5
COLUMNS = {
    "elapsed_s": ("s", "since the download began"),
    "done_bytes": ("bytes", "of the download, up to then"),
    "download_mb_per_s": ("MB/s", f"over the {EVERY_S} s before"),
}


class Progress:
    """Keeps the times at which more was there than before, and both ends of each stall."""

    def __init__(self, points: Iterable[tuple[float, int]] = ()) -> None:
        """`points`: seconds since the download began, and the bytes that were there."""
        self.points: list[tuple[float, int]] = [(0.0, 0)]
        self._still_s = 0.0  # the last time at which no more was there than at the last point
        for point in points:
            self.add(*point)

    def add(self, elapsed_s: float, done_bytes: int) -> None:
        """Add a point; a count that comes again is a stall only when that lasts, as nodes count less often."""
        at_s = round(elapsed_s, 4)
        last_s, last_bytes = self.points[-1]
        if at_s <= last_s or done_bytes < last_bytes:
            return
        if done_bytes == last_bytes:
            self._still_s = at_s
            return
        if self._still_s - last_s >= EVERY_S:
            self.points.append((self._still_s, last_bytes))
        self.points.append((at_s, done_bytes))

    def rows(self, every_s: float = EVERY_S) -> list[dict[str, Any]]:
        """Return a row with COLUMNS for each whole interval; bytes count as coming evenly between two points."""
        times, done = zip(*self.points, strict=True)
        grid = np.arange(int(times[-1] / every_s + 1e-9) + 1) * every_s
        at = np.interp(grid, times, done)
        speeds = np.diff(at) / every_s / 1e6
        return [
            {"elapsed_s": float(when), "done_bytes": int(there), "download_mb_per_s": round(float(speed), 3)}
            for when, there, speed in zip(grid[1:], at[1:], speeds, strict=True)
        ]
