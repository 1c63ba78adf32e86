"""Tests the plots of tables: each kind copes with unusual data, and labels its axes."""

import math

import pandas as pd
import pytest

from tunnel_pool.bench.harness.daemon import LoopDelays
from tunnel_pool.gumby_experiments.plan.config import Experiment, Figure, Metric
from tunnel_pool.gumby_experiments.results import figures
from tunnel_pool.gumby_experiments.results.results import Results
from tunnel_pool.gumby_experiments.verbs.daemon import by_bound

METRICS = {
    "download_mb_per_s": Metric(unit="MB/s"),
    "downloader_cpu_s_per_gb": Metric(unit="s/GB"),
    "circuits": Metric(unit=""),
    "seconds_s": Metric(unit="s"),
}


def results(folder, *drawn):
    experiment = Experiment(title="t", repeats="r", scenario="s", metrics=METRICS, figures=list(drawn))
    return Results(folder, experiment, {})


@pytest.mark.parametrize("kind", ["series", "box", "bars", "lines", "ecdf"])
@pytest.mark.parametrize("by", ["", "workers"])
def test_every_kind_draws_numbers_that_are_all_the_same(tmp_path, kind, by):
    """The mean of three times 0.1 lies above the largest of them, as floats are not exact."""
    made = results(tmp_path, Figure(name="same", kind=kind, title="t", x="workers", y="download_mb_per_s", by=by))
    made.add("runs", [{"run": 0, "workers": 1, "download_mb_per_s": 0.1}] * 3, {"error": None})
    assert figures.draw_all(made) == ["same"]
    assert (tmp_path / "figures" / "same.svg").exists()
    assert (tmp_path / "figures" / "same.png").exists()


def drawn_ecdf(rows, y):
    _, axes = figures.new_figure()
    figures._draw_ecdf(axes, pd.DataFrame(rows), Figure(name="n", kind="ecdf", title="t", x="delay_ms", y=y))
    (line,) = axes.lines
    return [tuple(map(float, point)) for point in zip(*line.get_data(orig=True), strict=True)]


def test_an_ecdf_counts_each_row_once():
    rows = [{"delay_ms": delay_ms} for delay_ms in (4, 1, 2, 2)]
    assert drawn_ecdf(rows, "") == [(1, 0.25), (2, 0.75), (4, 1)]


def test_an_ecdf_of_a_histogram_counts_what_is_beyond_its_last_bound():
    rows = [{"delay_ms": 1, "timers": 6}, {"delay_ms": 2, "timers": 3}, {"delay_ms": math.inf, "timers": 1}]
    assert drawn_ecdf(rows, "timers") == [(1, 0.6), (2, 0.9)]


def test_delays_between_two_looks_at_a_histogram_are_told_by_bound():
    before = LoopDelays(0.5, {0.1: 2, 0.2: 5, math.inf: 5})
    since = LoopDelays(1.5, {0.1: 3, 0.2: 9, math.inf: 10}).since(before)
    assert since.sum_s == 1.0
    assert list(by_bound(since.timers)) == [(0.1, 1), (0.2, 3), (math.inf, 1)]


def test_nothing_to_see_is_not_drawn(tmp_path):
    assert figures.draw_all(results(tmp_path, Figure(name="none", kind="bars", title="t", x="run", y="absent"))) == []


@pytest.mark.parametrize(
    ("column", "label"),
    [
        ("download_mb_per_s", "download, MB/s"),
        ("downloader_cpu_s_per_gb", "downloader CPU, s/GB"),
        ("circuits", "circuits"),
        ("seconds_s", "seconds, s"),
        ("elapsed_s", "elapsed, s"),
    ],
)
def test_an_axis_says_its_unit_once(tmp_path, column, label):
    assert figures._label(results(tmp_path), column) == label
