"""Tests the verdicts of `experiment compare`: a slowdown is reported as a regression, noise is not."""

import json
import math
import random

import pandas as pd
import pytest

from tunnel_pool.gumby_experiments.plan.config import Experiment, Metric
from tunnel_pool.gumby_experiments.results.compare import (
    Verdict,
    as_rows,
    compare,
    compare_in_parts,
    differences,
    holm,
    lost,
    regressed,
    relative_change,
    verdict_of,
)
from tunnel_pool.gumby_experiments.results.results import Results
from tunnel_pool.gumby_experiments.results.statistics import power_of_t_test, summarize, welch
from tunnel_pool.system.errors import UserError

LOWER = {f"cost_{number}": Metric(unit="us", better="lower") for number in range(12)}


def results(rows, metrics=None, name="costs", vary=None):
    experiment = Experiment(title="t", repeats="r", scenario="s", metrics=metrics or LOWER, vary=vary or {})
    made = Results("folder", experiment, {"experiment": name})
    made.add("runs", rows, {"error": None})
    return made


def noisy(chance, runs, noise, factor=1.0, drift=0.0):
    """Return a row of noisy values per run, for all metrics; with `drift`, each run is slower than the one before."""
    rows = []
    for number in range(runs):
        of_round = 1 + drift * number
        rows.append(
            {"run": number, **{name: 100 * factor * of_round * math.exp(chance.gauss(0, noise)) for name in LOWER}}
        )
    return rows


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize(("noise", "paired"), [(0.2, True), (0.03, True), (0.2, False)])
def test_identical_sides_are_called_regressed_no_more_than_once_in_twenty(noise, paired):
    trials = 300
    chance = random.Random(f"{noise}{paired}")
    alarms = sum(
        regressed(compare(results(noisy(chance, 4, noise)), results(noisy(chance, 4, noise)), paired))
        for _ in range(trials)
    )
    assert alarms <= 0.05 * trials


def test_each_part_is_compared_by_its_own_rounds_alone():
    chance = random.Random(2)
    a = results(noisy(chance, 9, 0.003))
    same, slower = noisy(chance, 9, 0.003), noisy(chance, 9, 0.003, factor=1.1)
    b = results([slower[number] if number in (3, 4, 5) else same[number] for number in range(9)])
    parts = list(compare_in_parts(a, b, 3))
    assert [regressed(part) for part in parts] == [False, True, False]
    assert [each.a.number for part in parts for each in part] == [3] * 3 * len(LOWER)


def test_ten_percent_more_work_is_called_a_regression():
    chance = random.Random(1)
    found = [
        compare(results(noisy(chance, 5, 0.01)), results(noisy(chance, 5, 0.01, factor=1.1)), paired=True)
        for _ in range(20)
    ]
    assert all(map(regressed, found))
    assert all(each.verdict is Verdict.IMPROVED for each in compare(
        results(noisy(chance, 5, 0.001, factor=1.1)), results(noisy(chance, 5, 0.001)), paired=True))  # fmt: skip


def test_pairs_see_through_a_drifting_machine():
    chance = random.Random(2)
    a, b = (noisy(chance, 6, 0.005, factor, drift=0.1) for factor in (1.0, 1.1))
    assert regressed(compare(results(a), results(b), paired=True))
    assert not regressed(compare(results(a), results(b), paired=False))


def test_what_is_counted_and_does_not_vary_needs_no_spread():
    metrics = {"instructions": Metric(unit="", better="lower", tolerance=0.01)}
    for factor, verdict in ((1.0, Verdict.NO_EVIDENCE), (1.005, Verdict.NO_EVIDENCE), (1.1, Verdict.REGRESSED)):
        a = results([{"run": n, "instructions": 9000} for n in range(2)], metrics)
        b = results([{"run": n, "instructions": 9000 * factor} for n in range(2)], metrics)
        (found,) = compare(a, b)
        assert found.verdict is verdict
        assert found.low == found.high == pytest.approx(factor - 1)


def test_one_run_is_no_evidence_whatever_it_says():
    (found,) = compare(results([{"run": 0, "cost_0": 1.0}]), results([{"run": 0, "cost_0": 9.0}]))
    assert found.verdict is Verdict.NO_EVIDENCE
    assert math.isnan(found.low)
    assert found.change == pytest.approx(8.0)


@pytest.mark.parametrize(
    ("better", "change", "verdict"),
    [
        ("lower", 0.5, Verdict.REGRESSED), ("lower", -0.5, Verdict.IMPROVED), ("higher", 0.5, Verdict.IMPROVED),
        ("higher", -0.5, Verdict.REGRESSED), ("neither", 0.5, Verdict.CHANGED), ("lower", 0.009, Verdict.NO_EVIDENCE),
    ],
)  # fmt: skip
def test_which_way_is_worse(better, change, verdict):
    assert verdict_of(Metric(unit="", better=better), change, significant=True) is verdict
    assert verdict_of(Metric(unit="", better=better), change, significant=False) is Verdict.NO_EVIDENCE


def test_what_may_be_nothing_regresses_too():
    metrics = {"written": Metric(unit="MB/h", better="lower")}

    def side(values):
        return results([{"run": n, "written": value} for n, value in enumerate(values)], metrics)

    for a, b, change, verdict in [
        ([0.0, 0.0, 0.0], [0.0, 0.0, 0.0], 0.0, Verdict.NO_EVIDENCE),
        ([0.0, 0.0, 0.0], [5.0, 5.1, 4.9], math.inf, Verdict.REGRESSED),
        ([5.0, 5.1, 4.9], [0.0, 0.0, 0.0], -1.0, Verdict.IMPROVED),
        ([0.0, 2.0, 1.0], [1.0, 0.0, 2.0], 0.0, Verdict.NO_EVIDENCE),
        ([-1.0, -1.1, -0.9], [3.0, 3.1, 2.9], 4.0, Verdict.REGRESSED),
    ]:
        (found,) = compare(side(a), side(b))
        assert (found.change, found.verdict) == (pytest.approx(change), verdict)
    (row,) = as_rows(compare(side([0.0, 0.0]), side([5.0, 5.1])))
    assert row["change"] is None
    assert row["verdict"] == "regressed"


def test_holms_correction():
    assert holm([0.01, 0.04, 0.03, 0.005]) == [True, False, False, True]
    assert holm([0.04, 0.04]) == [False, False]
    assert holm([0.04]) == [True]
    assert holm([]) == []


def test_the_interval_has_the_true_change_in_it_nineteen_times_of_twenty():
    chance = random.Random(3)
    inside = 0
    for _ in range(1000):
        a = [math.exp(chance.gauss(0, 0.1)) for _ in range(6)]
        b = [1.2 * math.exp(chance.gauss(0, 0.1)) for _ in range(6)]
        found = relative_change(a, b, paired=False)
        inside += found.low <= 0.2 <= found.high
    assert 930 <= inside <= 970


def test_combinations_are_compared_with_their_like():
    rows = [
        {"run": n, "workers": workers, "cost_0": cost} for n in range(3) for workers, cost in ((1, 10.0), (2, 20.0))
    ]
    slower = [{**row, "cost_0": row["cost_0"] * (1.5 if row["workers"] == 2 else 1)} for row in rows]
    found = compare(results(rows, vary={"workers": [1, 2]}), results(slower, vary={"workers": [1, 2]}))
    assert [(each.combination, each.verdict) for each in found] == [
        ({"workers": 1}, Verdict.NO_EVIDENCE), ({"workers": 2}, Verdict.REGRESSED),
    ]  # fmt: skip


def test_runs_that_came_to_nothing_do_not_count():
    rows = [{"run": n, "cost_0": 10.0, "error": None} for n in range(3)]
    failed = [*rows, {"run": 3, "cost_0": 99.0, "error": "a node has ended"}]
    experiment = results(rows)
    other = Results("folder", experiment.experiment, {"experiment": "costs"})
    other.tables["runs"] = pd.DataFrame(failed)
    (found,) = compare(experiment, other)
    assert found.b.number == 3
    assert found.verdict is Verdict.NO_EVIDENCE


def test_results_that_have_nothing_in_common_are_refused():
    row = {"run": 0, "cost_0": 1.0}
    with pytest.raises(UserError, match="compare two of one experiment"):
        compare(results([row]), results([row], name="idle"))
    with pytest.raises(UserError, match="no metric in common"):
        compare(results([row]), results([{"run": 0, "other": 1.0}]))


def test_welch_and_its_power():
    """G*Power's figures for two groups of 26 and 5, d = 0.8; scipy's own for the test."""
    assert power_of_t_test(0.8, 26, 26) == pytest.approx(0.8075, abs=1e-3)
    assert power_of_t_test(0.8, 5, 5) == pytest.approx(0.2007, abs=1e-3)
    found = welch([1.0, 2.0, 3.0, 4.0], [3.0, 4.0, 5.0, 6.0])
    assert found.t == pytest.approx(2.19089)
    assert found.p == pytest.approx(0.07098, abs=1e-4)
    assert found.is_underpowered
    assert welch([1.0], [1.0, 2.0]) is None
    assert welch([1.0, 1.0], [1.0, 1.0]) is None


def test_a_summary_of_one_has_no_spread():
    seen = summarize([5.0])
    assert (seen.mean, seen.least, seen.most) == (5, 5, 5)
    assert math.isnan(seen.sd)
    seen = summarize([1.0, 2.0, 3.0])
    assert (seen.low, seen.high) == (pytest.approx(-0.4841, abs=1e-3), pytest.approx(4.4841, abs=1e-3))


def test_what_only_one_side_has_measured_is_told_and_tolerances_are_the_tighter():
    metrics = {"kept": Metric(unit="", better="lower", tolerance=0.01), "gone": Metric(unit="", better="lower")}
    looser = {"kept": Metric(unit="", better="lower", tolerance=0.5), "gone": Metric(unit="", better="lower")}
    a = results([{"run": n, "kept": 100.0, "gone": 1.0} for n in range(2)], metrics)
    b = results([{"run": n, "kept": 120.0} for n in range(2)], looser)
    assert lost(a, b) == ["gone"]
    assert lost(b, a) == []
    (found,) = compare(a, b)
    assert found.verdict is Verdict.REGRESSED


def test_sides_that_were_set_up_differently_are_told():
    a, b = results([{"run": 0, "cost_0": 1.0}]), results([{"run": 0, "cost_0": 1.0}])
    a.provenance["configuration"] = {"nodes": {"exit": 2}, "set": {"size_mb": 4}, "seed": 1}
    b.provenance["configuration"] = {"nodes": {"exit": 2}, "set": {"size_mb": 8}, "seed": 2}
    assert differences(a, b) == ["set.size_mb is 4 in A and 8 in B"]


def test_rows_for_json_have_no_nan():
    rows = as_rows(compare(results([{"run": 0, "cost_0": 1.0}]), results([{"run": 0, "cost_0": 2.0}])))
    assert rows[0]["low"] is None
    assert json.loads(json.dumps(rows, allow_nan=False))
