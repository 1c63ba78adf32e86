"""Pictures of tables, as an experiment's configuration asks for them."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from tunnel_pool.gumby_experiments.nodes.progress import EVERY_S, PROGRESS
from tunnel_pool.gumby_experiments.nodes.sampler import INTERVAL_S
from tunnel_pool.gumby_experiments.plan.config import Figure
from tunnel_pool.gumby_experiments.results.results import RUN, Results
from tunnel_pool.system.errors import UserError

COLOURS = ("#4c78a8", "#f58518", "#54a24b", "#e45756", "#72b7b2", "#b279a2", "#9d755d", "#bab0ac")
SIZE = (8, 4)
PNG_DPI = 110
ACRONYMS = {"cpu", "rss"}
SHARE = "share that is no larger"
UNIT_WORDS = {"mb", "gb", "kb", "bytes", "bit", "s", "ms", "us", "percent", "per", "hour"}


def draw_all(results: Results, extra: Callable[[Results, Path], list[str]] | None = None) -> list[str]:
    """Draw every figure as SVG and PNG in `figures/`; return their names. Raises UserError."""
    folder = results.folder / "figures"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write figures to {folder}: {error.strerror}") from None
    drawn = [figure.name for figure in results.experiment.figures if _draw(results, figure, folder)]
    return drawn + (extra(results, folder) if extra is not None else [])


def new_figure(**more: Any) -> tuple[Any, Any]:
    """Return a figure and its axes, without a display."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "tunnel-pool"  # with it, the same data gives the same file
    from matplotlib import pyplot

    return pyplot.subplots(**{"figsize": SIZE, "layout": "constrained", **more})


def save(figure: Any, folder: Path, name: str) -> None:
    """Write the figure as SVG and as PNG. Raises UserError."""
    from matplotlib import pyplot

    try:
        figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
        figure.savefig(folder / f"{name}.png", dpi=PNG_DPI)
    except OSError as error:
        raise UserError(f"cannot write {folder / name}: {error.strerror}") from None
    finally:
        pyplot.close(figure)


def _draw(results: Results, figure: Figure, folder: Path) -> bool:
    """Draw a figure; return False when there is nothing to see."""
    table = _selected(results.table(figure.table), figure)
    if table.empty:
        return False
    picture, axes = new_figure()
    _KINDS[figure.kind](axes, table, figure)
    axes.set_title(figure.title, fontsize=10)
    axes.set_xlabel(figure.x_label or _label(results, figure.x))
    axes.set_ylabel(figure.y_label or (SHARE if figure.kind == "ecdf" else _label(results, figure.y)))
    if figure.log_x:
        axes.set_xscale("log")
    if figure.log_y:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    axes.grid(alpha=0.25)
    if figure.by:
        axes.legend(title=figure.by.replace("_", " "), fontsize=8, title_fontsize=8)
    save(picture, folder, figure.name)
    return True


def _label(results: Results, column: str) -> str:
    """Return a column's words for an axis, and its unit, which the last words need not name again."""
    unit, words = results.unit(column), column.split("_")
    while unit and words and words[-1] in UNIT_WORDS:
        words.pop()
    name = " ".join(word.upper() if word in ACRONYMS else word for word in words)
    return ", ".join(part for part in (name, unit) if part)


def _selected(table: pd.DataFrame, figure: Figure) -> pd.DataFrame:
    named = {figure.x, figure.y, figure.by, figure.order, *figure.only} - {""}
    if named - set(table.columns):
        return pd.DataFrame()
    for column, value in figure.only.items():
        table = table[table[column] == value]
    if figure.order:
        table = table.sort_values(figure.order, kind="stable")
    return table.dropna(subset=[column for column in (figure.x, figure.y) if column])


def _groups(table: pd.DataFrame, by: str) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """Yield the name, colour and rows of each."""
    if not by:
        yield "", COLOURS[0], table
        return
    for number, (name, rows) in enumerate(table.groupby(by, sort=True)):
        yield str(name), COLOURS[number % len(COLOURS)], rows


def _in_order(values: Iterable[Any]) -> list[Any]:
    """Return the values sorted: numbers by size, or all of them as text if they don't compare."""
    try:
        return sorted(values)
    except TypeError:
        return sorted(values, key=str)


def _draw_series(axes: Any, table: pd.DataFrame, figure: Figure) -> None:
    """Draw each run thinly, and the mean of all boldly."""
    grid_s = EVERY_S if figure.table == PROGRESS else INTERVAL_S  # bins that several runs are averaged over
    for name, colour, rows in _groups(table, figure.by):
        for _, run in rows.groupby(RUN):
            axes.plot(run[figure.x], run[figure.y], color=colour, alpha=0.25, linewidth=0.8)
        mean = rows.groupby((rows[figure.x] / grid_s).round() * grid_s)[figure.y].mean()
        axes.plot(mean.index, mean.values, color=colour, linewidth=2, label=name)


def _draw_box(axes: Any, table: pd.DataFrame, figure: Figure) -> None:
    """Draw a box for each x, side by side for each group; every run is a dot."""
    places = {value: number for number, value in enumerate(_in_order(table[figure.x].unique()))}
    groups = list(_groups(table, figure.by))
    width = 0.8 / len(groups)
    for number, (name, colour, rows) in enumerate(groups):
        shift = (number - (len(groups) - 1) / 2) * width
        for value, those in rows.groupby(figure.x):
            place = places[value] + shift
            box = axes.boxplot(those[figure.y], positions=[place], widths=width * 0.8, showfliers=False,
                               patch_artist=True, manage_ticks=False)  # fmt: skip
            box["boxes"][0].set(facecolor=colour, alpha=0.5)
            box["medians"][0].set(color="#222222")
            axes.plot([place] * len(those), those[figure.y], ".", color=colour, markersize=5)
        axes.plot([], [], color=colour, linewidth=6, alpha=0.5, label=name)
    axes.set_xticks(list(places.values()), [str(value) for value in places])


def _draw_bars(axes: Any, table: pd.DataFrame, figure: Figure) -> None:
    """Draw the mean for each x, with the least and the most that was seen."""
    places = {value: number for number, value in enumerate(table[figure.x].unique())}
    groups = list(_groups(table, figure.by))
    width = 0.8 / len(groups)
    for number, (name, colour, rows) in enumerate(groups):
        shift = (number - (len(groups) - 1) / 2) * width
        seen = rows.groupby(figure.x, sort=False)[figure.y].agg(["mean", "min", "max"])
        at = [places[value] + shift for value in seen.index]
        # A mean of the same numbers may be less than they are, in its last digit.
        errors = [(seen["mean"] - seen["min"]).clip(lower=0), (seen["max"] - seen["mean"]).clip(lower=0)]
        axes.bar(at, seen["mean"], width * 0.9, yerr=errors, color=colour, ecolor="#333333", capsize=2, label=name)
    labels = [str(value) for value in places]
    turned: dict[str, Any] = {}
    if sum(map(len, labels)) > 80:
        turned = {"rotation": 25, "ha": "right", "rotation_mode": "anchor"}
    axes.set_xticks(list(places.values()), labels, **turned)


def _draw_lines(axes: Any, table: pd.DataFrame, figure: Figure) -> None:
    """Draw the mean at each x, with the least and the most that was seen."""
    for name, colour, rows in _groups(table, figure.by):
        seen = rows.groupby(figure.x)[figure.y].agg(["mean", "min", "max"])
        axes.plot(seen.index, seen["mean"], "o-", color=colour, label=name, markersize=4)
        axes.fill_between(seen.index, seen["min"], seen["max"], color=colour, alpha=0.15, linewidth=0)


def _draw_ecdf(axes: Any, table: pd.DataFrame, figure: Figure) -> None:
    """Draw the share of what was seen, all runs together, that is no larger than each x.

    Infinite values count in the total, but are not drawn.
    """
    for name, colour, rows in _groups(table, figure.by):
        times = rows.groupby(figure.x)[figure.y].sum() if figure.y else rows.groupby(figure.x).size()
        share = times.cumsum() / times.sum()
        share = share[share.index < float("inf")]
        axes.step(share.index, share.values, where="post", color=colour, linewidth=1.5, label=name)


_KINDS: dict[str, Callable[[Any, pd.DataFrame, Figure], None]] = {
    "series": _draw_series,
    "box": _draw_box,
    "bars": _draw_bars,
    "lines": _draw_lines,
    "ecdf": _draw_ecdf,
}
