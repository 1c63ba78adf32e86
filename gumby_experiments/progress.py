"""How far a download is over time, and how fast: from what the one who downloads saw, by its own clock."""

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
    """Points in time at which more was there than before."""

    def __init__(self, points: Iterable[tuple[float, int]] = ()) -> None:
        """`points`: seconds since the download began, and the bytes that were there."""
        self.points: list[tuple[float, int]] = [(0.0, 0)]
        for point in points:
            self.add(*point)

    def add(self, elapsed_s: float, done_bytes: int) -> None:
        """What was told before already says nothing new of when it came."""
        point = (round(elapsed_s, 4), done_bytes)
        if all(now > last for now, last in zip(point, self.points[-1], strict=True)):
            self.points.append(point)

    def rows(self, every_s: float = EVERY_S) -> list[dict[str, Any]]:
        """With COLUMNS, one for each whole interval; between two points bytes came evenly."""
        times, done = zip(*self.points, strict=True)
        grid = np.arange(int(times[-1] / every_s + 1e-9) + 1) * every_s
        at = np.interp(grid, times, done)
        speeds = np.diff(at) / every_s / 1e6
        return [
            {"elapsed_s": float(when), "done_bytes": int(there), "download_mb_per_s": round(float(speed), 3)}
            for when, there, speed in zip(grid[1:], at[1:], speeds, strict=True)
        ]
