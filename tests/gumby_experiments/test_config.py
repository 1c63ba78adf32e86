"""Tests that each experiment loads with its scenario, and that each verb exists and accepts its arguments."""

import importlib

import pytest

from tunnel_pool.gumby_experiments.plan import config, verb_lookup
from tunnel_pool.gumby_experiments.plan.errors import ScenarioError
from tunnel_pool.gumby_experiments.plan.scenario import read_scenario
from tunnel_pool.system.errors import UsageError, UserError

NAMES = config.names()
ALL = {
    "anonymity", "api", "beside_tor", "download", "fairness", "flood", "fragments", "idle", "in_the_wild", "latency",
    "local_download", "pool_sizing", "scale", "serialization", "start_method",
}  # fmt: skip


def forms(name):
    experiment = config.load(name)
    for form in (experiment, config.shortened(experiment)):
        yield config.with_options(form, None, None, 2)


def test_all_are_there():
    assert set(NAMES) == ALL | {"costs"}


@pytest.mark.parametrize("name", NAMES)
def test_every_scenario_loads_and_every_verb_resolves(name):
    for form in forms(name):
        for planned in config.plan(form):
            scenario = config.scenario_of(form, planned.factors)
            assert scenario.lines
            verb_lookup.check(scenario)


@pytest.mark.parametrize("name", NAMES)
def test_every_form_says_what_it_shows(name):
    for form in forms(name):
        assert form.title
        assert form.repeats
        assert form.metrics
        known = set(form.metrics)
        assert {figure.y for figure in form.figures if figure.table == "runs"} <= known
        assert {published.ours for published in form.published if published.ours} <= known
        assert all(published.source for published in form.published)
        assert set(form.short.set) <= set(form.set)
        assert set(form.short.vary) <= set(form.vary)
        if form.findings:
            assert callable(importlib.import_module(form.findings).findings)


def test_no_scenario_file_is_left_over():
    used = {config.load(name).scenario for name in NAMES}
    assert used == {path.name for path in config.FOLDER.glob("*.scenario")}


def test_the_plan_is_the_seeds_and_every_round_has_every_combination():
    experiment = config.with_options(config.load("latency"), 3, 7, 2)
    runs = config.plan(experiment)
    assert runs == config.plan(experiment)
    assert runs != config.plan(config.with_options(experiment, 3, 8, 2))
    rounds = [{tuple(run.factors.items()) for run in runs if run.number == number} for number in range(3)]
    assert rounds[0] == rounds[1] == rounds[2]
    assert len(rounds[0]) == 32


def test_workers_go_with_the_machine():
    experiment = config.load("local_download")
    assert [config.with_options(experiment, None, None, cores).vary["workers"] for cores in (1, 2, 4, 6, 48)] == [
        [0, 1], [0, 1, 2], [0, 1, 2, 4], [0, 1, 2, 4, 6], [0, 1, 2, 4, 8, 16, 32, 48],
    ]  # fmt: skip


def test_there_are_as_many_seeders_as_workers_unless_their_number_is_set():
    """A destination keeps its circuit, so that a seeder occupies one child."""
    experiment = config.load("local_download")
    assert config.with_options(experiment, None, None, 2).nodes["seeder"] == 4
    assert config.with_options(experiment, None, None, 48).nodes["seeder"] == 48
    changed = config.changed(experiment, {"seeder": [4]})
    assert config.with_options(changed, None, None, 48).nodes["seeder"] == 4


def test_what_is_set_changes_nodes_what_is_varied_and_what_is_fixed():
    changed = config.changed(
        config.load("local_download"), {"workers": [16, 32], "exit": [3], "hops": [1, 2], "size_mb": [5]}
    )
    assert changed.vary == {"workers": [16, 32], "hops": [1, 2]}
    assert changed.nodes == {"seeder": 4, "exit": 3, "downloader": 1}
    assert changed.set["size_mb"] == 5
    assert "hops" not in changed.set


@pytest.mark.parametrize("changes", [{"ghost": [1]}, {"exit": [1, 2]}, {"exit": [-1]}, {"exit": ["x"]}])
def test_what_can_not_be_set_is_refused(changes):
    with pytest.raises(UsageError, match="this experiment has"):
        config.changed(config.load("local_download"), changes)


def test_too_many_runs_are_refused_before_the_first():
    with pytest.raises(UsageError, match="there can be 1000"):
        config.plan(config.with_options(config.load("latency"), 900, None, 2))


def test_an_experiment_that_is_none_is_named():
    with pytest.raises(UsageError, match="'ghost' is no experiment; there are anonymity, "):
        config.load("ghost")


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("@0:0 fly {1}", "no &module has the verb fly"),
        ("@0:0 start_exit colour=red {1}", "unexpected keyword argument 'colour'"),
        ("@0:0 make_file", "missing a required argument"),
        ("@0:0 addresses", "no &module has the verb addresses"),  # a method, but no verb
    ],
)
def test_a_line_that_nobody_can_do_is_refused_before_anything_runs(line, why):
    text = f"&module tunnel_pool.gumby_experiments.verbs.swarm.SwarmModule\n{line}\n"
    with pytest.raises(ScenarioError, match="main:2") as raised:
        verb_lookup.check(read_scenario("main", lambda name: text, {}))
    assert why in str(raised.value)


@pytest.mark.parametrize("module", ["tunnel_pool.gumby_experiments.verbs.swarm.Ghost", "ghost.Module", "Module"])
def test_a_module_that_is_not_there_is_named(module):
    with pytest.raises(ScenarioError, match=f"&module {module}"):
        verb_lookup.check(read_scenario("main", lambda name: f"&module {module}\n", {}))


def test_a_configuration_that_makes_no_sense_is_refused_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(config, "FOLDER", tmp_path)
    rest = 'title = "t"\nrepeats = "r"\nscenario = "s"\n[metrics]\n'
    for text, why in (
        ("colour = 1\n" + rest, "unknown field `colour`"),
        (rest + "[vary]\na = [1]\n[set]\na = 1\n", "both have a"),
        (rest + '[vary]\na = "many"\n', "is a list, or 'cores', or 'workers'"),
    ):
        (tmp_path / "wrong.toml").write_text(text)
        with pytest.raises(UserError) as raised:
            config.load("wrong")
        assert why in str(raised.value)
        assert "\n" not in str(raised.value)
