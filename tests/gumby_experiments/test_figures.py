"""Pictures of tables: each kind is drawn of what it may meet, and says what its axes are."""

import pytest

from tunnel_pool.gumby_experiments import figures
from tunnel_pool.gumby_experiments.config import Experiment, Figure, Metric
from tunnel_pool.gumby_experiments.results import Results

METRICS = {
    "download_mb_per_s": Metric(unit="MB/s"),
    "downloader_cpu_s_per_gb": Metric(unit="s/GB"),
    "circuits": Metric(unit=""),
    "seconds_s": Metric(unit="s"),
}


def results(folder, *drawn):
    experiment = Experiment(title="t", repeats="r", scenario="s", metrics=METRICS, figures=list(drawn))
    return Results(folder, experiment, {})


@pytest.mark.parametrize("kind", ["series", "box", "bars", "lines"])
@pytest.mark.parametrize("by", ["", "workers"])
def test_every_kind_draws_numbers_that_are_all_the_same(tmp_path, kind, by):
    """The mean of three times 0.1 is more than 0.1."""
    made = results(tmp_path, Figure(name="same", kind=kind, title="t", x="workers", y="download_mb_per_s", by=by))
    made.add("runs", [{"run": 0, "workers": 1, "download_mb_per_s": 0.1}] * 3, {"error": None})
    assert figures.draw_all(made) == ["same"]
    assert (tmp_path / "figures" / "same.svg").exists()
    assert (tmp_path / "figures" / "same.png").exists()


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
