"""Medians with their spread, as a table and as a picture."""

import os
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tunnel_pool.cli.demo import ROLES
from tunnel_pool.system.errors import UserError

DIRECT = "libtorrent direct"
TUNNEL_ROLES = ("main", "workers", "exits", "relays")
Rows = dict[str, list[dict[str, Any]]]


def spread(values: Sequence[float]) -> str:
    """Return the median and, of several values, the least and the greatest."""
    median = statistics.median(values)
    return f"{median:.1f}" if len(values) == 1 else f"{median:.1f} ({min(values):.1f}-{max(values):.1f})"


def tunnel_seconds(run: dict[str, Any], direct_main: float) -> float:
    """Return the CPU seconds per GB without libtorrent's, which are those of the main process in a direct download."""
    per_gb = {role: float(run["s_per_gb"][role]) for role in TUNNEL_ROLES}
    return max(0.0, per_gb["main"] - direct_main) + per_gb["workers"] + per_gb["exits"] + per_gb["relays"]


def download_table(title: str, rows: Rows) -> Table:
    table = Table(title=title)
    table.add_column("")
    for column in ("MB/s", "of direct", *(f"{role} s/GB" for role in ROLES), "tunnels s/GB"):
        table.add_column(column, justify="right")
    direct = statistics.median(run["mb_per_s"] for run in rows[DIRECT])
    direct_main = statistics.median(run["s_per_gb"]["main"] for run in rows[DIRECT])
    for name, runs in rows.items():
        speeds = [run["mb_per_s"] for run in runs]
        roles = [f"{statistics.median(run['s_per_gb'][role] for run in runs):.1f}" for role in ROLES]
        tunnels = "-" if name == DIRECT else spread([tunnel_seconds(run, direct_main) for run in runs])
        table.add_row(name, spread(speeds), f"{statistics.median(speeds) / direct:.2f}", *roles, tunnels)
    return table


def forwarding_table(title: str, rows: Rows) -> Table:
    table = Table(title=title)
    table.add_column("")
    for column in ("us CPU a cell", "cells/s", "busy", "lost"):
        table.add_column(column, justify="right")
    for name, runs in rows.items():
        cells = statistics.median(run["cells_per_s"] for run in runs)
        busy = statistics.median(run["busy_share"] for run in runs)
        lost = statistics.median(run["lost_share"] for run in runs)
        each = [f"{cells:.0f}", f"{busy:.0%}", f"{lost:.2%}"]
        table.add_row(name, spread([run["us_per_cell"] for run in runs]), *each)
    return table


def describe(report: dict[str, Any]) -> str:
    """Return every scenario's table."""
    console = Console(width=150)
    with console.capture() as capture:
        for scenario, rows in report["scenarios"].items():
            make = download_table if scenario.startswith("download") else forwarding_table
            console.print(make(f"{scenario}: medians of {report['runs']} runs", rows))
    return capture.get().rstrip()


def check_plot(path: Path) -> None:
    """Check that a picture can be drawn there. Raises UserError."""
    try:
        from matplotlib.backend_bases import FigureCanvasBase
    except ImportError:
        raise UserError("--plot needs matplotlib: pip install 'tunnel-pool[bench]'") from None
    kinds = FigureCanvasBase.get_supported_filetypes()
    if path.suffix[1:].lower() not in kinds:
        raise UserError(f"--plot {path}: name a file that ends in .png, .svg or .pdf")
    place = path if path.exists() else path.parent
    if path.is_dir() or not os.access(place, os.W_OK):
        raise UserError(f"--plot {path}: can't be written there; name a file in a folder that is yours")


def draw(report: dict[str, Any], path: Path) -> None:
    """Draw one picture of everything. Raises UserError when it can't be written."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    panels: list[tuple[str, str, Rows, Callable[[dict[str, Any]], float]]] = []
    for scenario, rows in report["scenarios"].items():
        if scenario.startswith("download"):
            direct_main = statistics.median(run["s_per_gb"]["main"] for run in rows[DIRECT])
            tunnelled = {name: runs for name, runs in rows.items() if name != DIRECT}
            panels.append((scenario, "MB/s", rows, lambda run: float(run["mb_per_s"])))
            cost = lambda run, share=direct_main: tunnel_seconds(run, share)  # noqa: E731
            panels.append((scenario, "tunnels' CPU s/GB", tunnelled, cost))
        else:
            panels.append((scenario, "us CPU a cell", rows, lambda run: float(run["us_per_cell"])))
    figure, axes = pyplot.subplots(len(panels), 1, figsize=(9, 2.6 * len(panels)), squeeze=False, layout="constrained")
    for axis, (scenario, unit, rows, value) in zip(axes[:, 0], panels, strict=True):
        values = [[value(run) for run in runs] for runs in rows.values()]
        medians = [statistics.median(each) for each in values]
        low = [median - min(each) for median, each in zip(medians, values, strict=True)]
        high = [max(each) - median for median, each in zip(medians, values, strict=True)]
        axis.barh(list(rows), medians, xerr=[low, high], color="#4c78a8", ecolor="#333333", capsize=2)
        axis.invert_yaxis()
        axis.set_title(f"{scenario}: {unit}, median of {report['runs']} runs and spread", fontsize=9)
        axis.tick_params(labelsize=8)
    save_plot(figure, path)


def save_plot(figure: Any, path: Path) -> None:
    """Raises UserError when it can't be written."""
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:
        raise UserError(f"cannot write the plot to {path}: {error}") from None
