"""Two results of one experiment side by side: what is different, and whether that is more than noise. Pure.

Where both sides ran in turn, their runs are pairs, and what counts is the ratio within each; else the
two samples are compared as they are. A verdict needs all of three: that the confidence interval of the
relative change leaves out zero, after Holm's correction for the number of metrics (the interval
that is shown is of the metric alone); that the change is
greater than the metric's tolerance; and that the metric has a better direction. Of numbers that do not
vary at all, the change itself is the interval.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from functools import partial
from typing import Any, NamedTuple

import msgspec
import numpy as np
from scipy import stats
from statsmodels.stats.multitest import multipletests

from tunnel_pool.gumby_experiments.plan.config import Metric, Value
from tunnel_pool.gumby_experiments.results.results import RUN, Results
from tunnel_pool.gumby_experiments.results.statistics import CONFIDENCE, Summary, summarize
from tunnel_pool.system.errors import UserError

ALPHA = 1 - CONFIDENCE
FEWEST = 2  # runs of either side without which nothing can be said of what varies


class Verdict(Enum):
    REGRESSED = "regressed"
    IMPROVED = "improved"
    CHANGED = "changed"  # the verdict on a metric that is better neither higher nor lower
    NO_EVIDENCE = "no evidence"


class Comparison(NamedTuple):
    """Compares a metric of b with a's. `change` is relative; `low` and `high` bound it, NaN for too few runs."""

    metric: str
    unit: str
    combination: dict[str, Value]
    a: Summary
    b: Summary
    change: float
    low: float
    high: float
    p: float
    verdict: Verdict


class _Change(NamedTuple):
    change: float
    low: float
    high: float
    p: float


def relative_change(a: Sequence[float], b: Sequence[float], paired: bool) -> _Change:
    """Return the relative change from a to b by logarithms, by which doubling and halving are equally large changes.

    If a value is zero or less, use differences instead, as shares of a's mean.
    """
    unknown = _Change(math.nan, math.nan, math.nan, 1.0)
    if not a or not b:
        return unknown
    first, second = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    share = math.expm1
    if min(*a, *b) > 0:
        first, second = np.log(first), np.log(second)
    else:
        share = partial(_share, abs(float(first.mean())))
    middle = float(second.mean() - first.mean())
    change = share(middle)
    if min(len(a), len(b)) < FEWEST:
        return unknown._replace(change=change)
    spread = (second - first).std() if paired else first.std() + second.std()
    if spread < 1e-12:  # all runs gave the same: the metric was counted, not measured
        return _Change(change, change, change, 0.0 if abs(middle) > 1e-12 else 1.0)
    test = stats.ttest_rel(second, first) if paired else stats.ttest_ind(second, first, equal_var=False)
    interval = test.confidence_interval(CONFIDENCE)
    return _Change(change, share(float(interval.low)), share(float(interval.high)), float(test.pvalue))


def _share(whole: float, part: float) -> float:
    return part / whole if whole else math.copysign(math.inf, part) if part else 0.0


def holm(values: Sequence[float]) -> list[bool]:
    """Return which p values are significant when all of them are looked at (S. Holm, 1979)."""
    return [bool(found) for found in multipletests(values, ALPHA, "holm")[0]] if values else []


def verdict_of(metric: Metric, change: float, significant: bool) -> Verdict:
    if not significant or math.isnan(change) or abs(change) <= metric.tolerance:
        return Verdict.NO_EVIDENCE
    if metric.better == "neither":
        return Verdict.CHANGED
    return Verdict.REGRESSED if (change > 0) == (metric.better == "lower") else Verdict.IMPROVED


def compare(a: Results, b: Results, paired: bool = False) -> list[Comparison]:
    """Compare each metric in each combination that both sides have; `paired` runs took turns. Raises UserError."""
    ours, theirs = a.provenance["experiment"], b.provenance["experiment"]
    if ours != theirs:
        raise UserError(f"{a.folder} is of {ours}, {b.folder} of {theirs}: compare two of one experiment")
    found = list(_pairs(a, b, paired))
    if not found:
        raise UserError("the two results have no metric in common")
    changes = [relative_change(first, second, together) for *_, first, second, together in found]
    significant = holm([change.p for change in changes])
    return [
        Comparison(
            name, metric.unit, combination, summarize(first), summarize(second), *change,
            verdict_of(metric, change.change, real),
        )
        for (name, metric, combination, first, second, _), change, real in zip(found, changes, significant, strict=True)
    ]  # fmt: skip


def compare_in_parts(a: Results, b: Results, rounds: int) -> Iterator[list[Comparison]]:
    """Yield the comparisons of each part of so many rounds; the runs took turns. Raises UserError."""
    for first in range(0, int(a.runs[RUN].max()) + 1, rounds):
        part = range(first, first + rounds)
        yield compare(_of_rounds(a, part), _of_rounds(b, part), paired=True)


def _of_rounds(results: Results, rounds: range) -> Results:
    part = Results(results.folder, results.experiment, results.provenance)
    part.tables = {name: table[table[RUN].isin(rounds)] for name, table in results.tables.items()}
    return part


_Found = tuple[str, Metric, dict[str, Value], list[float], list[float], bool]


def _pairs(a: Results, b: Results, paired: bool) -> Iterator[_Found]:
    """Yield metric, combination, both sides' values, and whether these are pairs."""
    factors = [factor for factor in a.factors if factor in b.runs]
    for combination, first, second in _combinations(a.runs, b.runs, factors):
        for name, metric in b.experiment.metrics.items():
            if name not in first or name not in second:
                continue
            if name in a.experiment.metrics:  # a change does not loosen what it is judged by
                least = min(metric.tolerance, a.experiment.metrics[name].tolerance)
                metric = msgspec.structs.replace(metric, tolerance=least)  # noqa: PLW2901
            ours, theirs = first.set_index(RUN)[name].dropna(), second.set_index(RUN)[name].dropna()
            together = sorted(set(ours.index) & set(theirs.index))
            if paired and len(together) >= FEWEST and ours.index.is_unique and theirs.index.is_unique:
                yield name, metric, combination, ours[together].tolist(), theirs[together].tolist(), True
            elif len(ours) and len(theirs):
                yield name, metric, combination, ours.tolist(), theirs.tolist(), False


def _combinations(a: Any, b: Any, factors: list[str]) -> Iterator[tuple[dict[str, Value], Any, Any]]:
    if a.empty or b.empty:
        return
    if not factors:
        yield {}, a, b
        return
    of_b = dict(iter(b.groupby(factors)))
    for values, rows in a.groupby(factors):
        if values in of_b:
            yield dict(zip(factors, values, strict=True)), rows, of_b[values]


def lost(a: Results, b: Results) -> list[str]:
    """Return the metrics that both experiments declare, but that only `a` has measured."""
    both = [name for name in b.experiment.metrics if name in a.experiment.metrics]
    return [name for name in both if _was_measured(a, name) and not _was_measured(b, name)]


def _was_measured(results: Results, name: str) -> bool:
    return name in results.runs and bool(results.runs[name].notna().any())


def differences(a: Results, b: Results) -> list[str]:
    """Return how the two sides were set up differently, a line for each: different things compare badly."""
    found = []
    for part in ("nodes", "vary", "set"):
        ours, theirs = a.provenance["configuration"].get(part, {}), b.provenance["configuration"].get(part, {})
        for name in sorted({*ours, *theirs}):
            if ours.get(name) != theirs.get(name):
                found.append(f"{part}.{name} is {ours.get(name)} in A and {theirs.get(name)} in B")
    return found


def regressed(comparisons: Sequence[Comparison]) -> bool:
    return any(each.verdict is Verdict.REGRESSED for each in comparisons)


def known(value: Any) -> Any:
    """Return None in place of NaN and infinity, which JSON does not have."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def as_rows(comparisons: Sequence[Comparison]) -> list[Mapping[str, Any]]:
    """Return the comparisons as rows of a table, or for JSON."""
    rows = [
        {
            "metric": each.metric, "unit": each.unit, **each.combination,
            **{f"a_{name}": value for name, value in each.a._asdict().items()},
            **{f"b_{name}": value for name, value in each.b._asdict().items()},
            "change": each.change, "low": each.low, "high": each.high, "p": each.p, "verdict": each.verdict.value,
        }
        for each in comparisons
    ]  # fmt: skip
    return [{name: known(value) for name, value in row.items()} for row in rows]
