"""A comparison as a page: a picture of all changes, one of all runs, and the table."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from tunnel_pool.gumby_experiments.results import figures
from tunnel_pool.gumby_experiments.results.compare import Comparison, Verdict, as_rows
from tunnel_pool.gumby_experiments.results.report import inline_svg, page_environment
from tunnel_pool.gumby_experiments.results.results import Results
from tunnel_pool.system.errors import UserError

PAGE = "compare.html"
COLOURS = {
    Verdict.REGRESSED: "#d62728",
    Verdict.IMPROVED: "#2ca02c",
    Verdict.CHANGED: "#f58518",
    Verdict.NO_EVIDENCE: "#888888",
}


def title_of(each: Comparison) -> str:
    combination = ", ".join(f"{name} {value}" for name, value in each.combination.items())
    return f"{each.metric} ({combination})" if combination else each.metric


def write_comparison(a: Results, b: Results, comparisons: Sequence[Comparison], folder: Path) -> Path:
    """Write compare.csv, figures and a page that needs nothing beside it. Raises UserError."""
    pictures = folder / "figures"
    try:
        pictures.mkdir(parents=True, exist_ok=True)
        pd.DataFrame(as_rows(comparisons)).to_csv(folder / "compare.csv", index=False)
        _draw_changes(comparisons, pictures)
        _draw_means(comparisons, pictures)
        page = page_environment().get_template("compare.html.j2").render(
            a=a.provenance, b=b.provenance, comparisons=comparisons, title_of=title_of,
            figures=[(name, inline_svg(pictures / f"{name}.svg", name)) for name in ("changes", "means")],
        )  # fmt: skip
        (folder / PAGE).write_text(page)
    except OSError as error:
        raise UserError(f"cannot write the comparison to {folder}: {error.strerror}") from None
    return folder / PAGE


def _tall(number: int) -> dict[str, Any]:
    return {"figsize": (8, 1.2 + 0.3 * number)}


def _draw_changes(comparisons: Sequence[Comparison], folder: Path) -> None:
    """Draw the relative change of each metric, with its interval."""
    picture, axes = figures.new_figure(**_tall(len(comparisons)))
    for row, each in enumerate(comparisons):
        colour = COLOURS[each.verdict]
        if not math.isfinite(each.change):
            axes.text(0, row, " from 0" if math.isinf(each.change) else " ?", color=colour, va="center", fontsize=8)
            continue
        if math.isfinite(each.low) and math.isfinite(each.high):
            axes.plot([100 * each.low, 100 * each.high], [row, row], color=colour, linewidth=2)
        axes.plot([100 * each.change], [row], "o", color=colour)
    axes.axvline(0, color="#333333", linewidth=0.8)
    axes.set_yticks(range(len(comparisons)), [title_of(each) for each in comparisons], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("change of B against A, %, with its 95 % interval")
    axes.grid(alpha=0.25)
    figures.save(picture, folder, "changes")


def _draw_means(comparisons: Sequence[Comparison], folder: Path) -> None:
    """Draw the mean, the least and the most of each metric on both sides, relative to the mean of A."""
    picture, axes = figures.new_figure(**_tall(len(comparisons)))
    for row, each in enumerate(comparisons):
        for shift, side, colour in ((-0.17, each.a, figures.COLOURS[0]), (0.17, each.b, figures.COLOURS[1])):
            scale = each.a.mean or 1.0
            axes.barh(row + shift, side.mean / scale, height=0.3, color=colour)
            axes.plot([side.least / scale, side.most / scale], [row + shift] * 2, color="#333333", linewidth=1)
    axes.barh(0, 0, color=figures.COLOURS[0], label="A")
    axes.barh(0, 0, color=figures.COLOURS[1], label="B")
    axes.set_yticks(range(len(comparisons)), [title_of(each) for each in comparisons], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("mean by the mean of A; line: least to most")
    axes.legend(fontsize=8)
    figures.save(picture, folder, "means")
