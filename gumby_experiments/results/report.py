"""One HTML page that needs nothing beside it: figures, tables, words, and where it all comes from."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from jinja2 import Environment, PackageLoader

from tunnel_pool.gumby_experiments.plan.config import Metric, Published
from tunnel_pool.gumby_experiments.results.figures import draw_all
from tunnel_pool.gumby_experiments.results.results import ERROR, RUNS, Results
from tunnel_pool.gumby_experiments.results.statistics import Summary, summarize
from tunnel_pool.system.errors import UserError

REPORT = "report.html"
FEW = 4  # significant digits


class MetricTable(NamedTuple):
    """Holds one metric's table: a row for each combination of what was varied."""

    name: str
    metric: Metric
    rows: list[tuple[list[Any], Summary]]


def number(value: float | None) -> str:
    """Format a number for people."""
    if value is None or value != value:  # noqa: PLR0124 - NaN
        return "-"
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        return f"{value:,.{FEW}g}" if abs(value) < 10 ** (FEW - 1) else f"{value:,.0f}"
    return f"{value:.{FEW}g}"


def percent(share: float | None) -> str:
    """Return a relative change, for people."""
    return "-" if share is None or share != share else f"{share:+.2%}"  # noqa: PLR0124 - NaN


def page_environment() -> Environment:
    """Return the templates of this package, and what they write numbers with."""
    environment = Environment(
        loader=PackageLoader("tunnel_pool.gumby_experiments.results", "."), autoescape=True, trim_blocks=True
    )
    environment.filters |= {"number": number, "percent": percent}
    return environment


def metric_tables(results: Results) -> list[MetricTable]:
    """Return a table for each of the experiment's metrics that was measured."""
    runs = results.runs
    found = []
    for name, metric in results.experiment.metrics.items():
        if name in runs and pd.api.types.is_numeric_dtype(runs[name]) and runs[name].notna().any():
            found.append(MetricTable(name, metric, list(_by_combination(runs, results.factors, name))))
    return found


def _by_combination(runs: pd.DataFrame, factors: list[str], name: str) -> Iterator[tuple[list[Any], Summary]]:
    if not factors:
        yield [], summarize(runs[name].dropna().tolist())
        return
    for values, rows in runs.groupby(factors, sort=True):
        seen = rows[name].dropna().tolist()
        if seen:
            yield list(values), summarize(seen)


def ours(results: Results, published: Published) -> str:
    """Return what we measured beside a published figure."""
    runs = results.runs
    for column, value in published.when.items():
        if column not in runs:
            return "-"
        runs = runs[runs[column] == value]
    if published.ours not in runs or runs[published.ours].dropna().empty:
        return "-"
    seen = summarize(runs[published.ours].dropna().tolist())
    spread = f" ({number(seen.least)} to {number(seen.most)}, {seen.number} runs)" if seen.number > 1 else ""
    return f"{number(seen.mean)} {results.unit(published.ours)}{spread}"


def sentences(results: Results, findings: Any) -> list[str]:
    """Return what the findings' module says of the tables."""
    return list(findings.findings(results)) if hasattr(findings, "findings") else []


def write_report(results: Results, findings: Any = None) -> Path:
    """Draw the figures and write the page. Raises UserError."""
    drawn = draw_all(results, getattr(findings, "draw", None))
    failed = results.tables.get(RUNS, pd.DataFrame())
    failed = failed[failed[ERROR].notna()] if ERROR in failed else failed.iloc[0:0]
    page = (
        page_environment()
        .get_template("report.html.j2")
        .render(
            experiment=results.experiment,
            provenance=results.provenance,
            factors=results.factors,
            tables=metric_tables(results),
            figures=[(name, inline_svg(results.folder / "figures" / f"{name}.svg", name)) for name in drawn],
            words=sentences(results, findings),
            published=[(figure, ours(results, figure)) for figure in results.experiment.published],
            failed=failed.to_dict("records"),
            whole_provenance=json.dumps(results.provenance, indent=2),
        )
    )
    path = results.folder / REPORT
    try:
        path.write_text(page)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from None
    return path


def inline_svg(path: Path, name: str) -> str:
    """Return an SVG as a part of a page; its ids are made its own, for a page has several."""
    svg = path.read_text()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', svg)
    return re.sub(r'(xlink:href="#|url\(#)([^")]+)', rf"\1{name}-\2", svg)
