"""An experiment is a TOML file beside its scenario."""

import itertools
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

import msgspec

from tunnel_pool.gumby_experiments.plan.scenario import Scenario, read_scenario, variables_of_roles
from tunnel_pool.system.errors import UsageError, UserError
from tunnel_pool.system.toml_file import Section, read_toml

FOLDER = Path(__file__).parent.parent / "experiments"
Value = bool | int | float | str
# In `vary`, by what this machine has: 1, 2, 4 ... up to its cores; and the same with 0 for no worker.
CORES_OF_MACHINE, WORKERS_OF_MACHINE = "cores", "workers"
MAX_RUNS = 1000


class Metric(Section, frozen=True):
    """A column of runs.csv. `tolerance`: a relative change that is no harm, however certain."""

    unit: str
    tolerance: float = 0.01
    better: Literal["higher", "lower", "neither"] = "neither"
    what: str = ""


class Figure(Section, frozen=True):
    """A picture of a table; see gumby_experiments/results/figures.py for the kinds.

    An `ecdf` shows the distribution of `x`; its `y` says how often each `x` was seen, which is once where it is empty.
    """

    name: str
    kind: Literal["series", "box", "bars", "lines", "ecdf"]
    title: str
    x: str
    y: str = ""
    table: str = "runs"
    by: str = ""
    order: str = ""  # bars stand in the order of this column, else as they come
    only: dict[str, Value] = msgspec.field(default_factory=dict)
    x_label: str = ""
    y_label: str = ""
    log_x: bool = False
    log_y: bool = False


class Published(Section, frozen=True):
    """A figure that somebody else published."""

    what: str
    value: str
    source: str
    ours: str = ""  # metric
    when: dict[str, Value] = msgspec.field(default_factory=dict)  # the runs of ours that it stands beside


class Overrides(Section, frozen=True):
    """Holds what `--short` changes of an experiment."""

    runs: int | None = None
    nodes: dict[str, int] = msgspec.field(default_factory=dict)
    vary: dict[str, list[Value] | str] = msgspec.field(default_factory=dict)
    set: dict[str, Value] = msgspec.field(default_factory=dict)


class Experiment(Section, frozen=True):
    """Describes an experiment. Every combination of `vary` is run; `set` holds what else the scenario calls $NAME."""

    title: str
    repeats: str
    scenario: str
    metrics: dict[str, Metric]
    what: str = ""
    seed: int = 1
    runs: int = 3
    timeout_s: int = 600
    nodes: dict[str, int] = msgspec.field(default_factory=dict)
    as_many_as_workers: list[str] = msgspec.field(default_factory=list)  # roles with at least so many nodes
    vary: dict[str, list[Value] | str] = msgspec.field(default_factory=dict)
    set: dict[str, Value] = msgspec.field(default_factory=dict)
    units: dict[str, str] = msgspec.field(default_factory=dict)  # of what is varied, and of its own tables' columns
    short: Overrides = Overrides()
    figures: list[Figure] = msgspec.field(default_factory=list)
    published: list[Published] = msgspec.field(default_factory=list)
    links: bool = False  # each node in a network namespace of its own, behind a link
    findings: str = ""  # a module with `findings(results)`: what the tables say, in words


def names() -> list[str]:
    """Return the names of all experiments, in the order of their files."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def load(name: str) -> Experiment:
    """Raises UserError."""
    if name not in names():
        raise UsageError(f"{name!r} is no experiment; there are {', '.join(names())}")
    return read_toml(FOLDER / f"{name}.toml", Experiment, _check)


def _check(experiment: Experiment) -> None:
    """Raises ValueError for what no type says."""
    if both := set(experiment.vary) & set(experiment.set):
        raise ValueError(f"`vary` and `set` both have {', '.join(sorted(both))}")
    if without := [figure.name for figure in experiment.figures if not figure.y and figure.kind != "ecdf"]:
        raise ValueError(f"`figures` need a `y`, but for an ecdf: {', '.join(without)}")
    if unknown := set(experiment.as_many_as_workers) - set(experiment.nodes):
        raise ValueError(f"`as_many_as_workers` names no role of `nodes`: {', '.join(sorted(unknown))}")
    for name, values in experiment.vary.items():
        if isinstance(values, str) and values not in (CORES_OF_MACHINE, WORKERS_OF_MACHINE):
            raise ValueError(f"`vary.{name}` is a list, or {CORES_OF_MACHINE!r}, or {WORKERS_OF_MACHINE!r}")


def shortened(experiment: Experiment) -> Experiment:
    """Return the experiment as `--short` has it."""
    short = experiment.short
    return msgspec.structs.replace(
        experiment,
        runs=short.runs or experiment.runs,
        nodes={**experiment.nodes, **short.nodes},
        vary={**experiment.vary, **short.vary},
        set={**experiment.set, **short.set},
    )


def changed(experiment: Experiment, changes: Mapping[str, list[Value]]) -> Experiment:
    """Return it with `--set NAME=VALUE[,VALUE...]`: nodes, what is varied, what is set. Raises UsageError."""
    nodes, vary, fixed = dict(experiment.nodes), dict(experiment.vary), dict(experiment.set)
    as_many = [role for role in experiment.as_many_as_workers if role not in changes]
    for name, values in changes.items():
        if name in vary:
            vary[name] = values
        elif len(values) != 1 and name in fixed:
            del fixed[name]
            vary[name] = values
        elif name in fixed:
            fixed[name] = values[0]
        elif name in nodes and len(values) == 1 and isinstance(values[0], int) and values[0] >= 0:
            nodes[name] = values[0]
        else:
            known = ", ".join(sorted({*nodes, *vary, *fixed}))
            raise UsageError(f"--set {name}: this experiment has {known or 'nothing to set'}")
    return msgspec.structs.replace(experiment, nodes=nodes, vary=vary, set=fixed, as_many_as_workers=as_many)


def with_options(experiment: Experiment, runs: int | None, seed: int | None, cores: int) -> Experiment:
    """Return the experiment as the command line has it, on a machine of so many cores."""
    counts: list[Value] = [*(1 << power for power in range(cores.bit_length()) if 1 << power < cores), cores]
    lists = {CORES_OF_MACHINE: counts, WORKERS_OF_MACHINE: [0, *counts]}
    vary = {name: lists[values] if isinstance(values, str) else values for name, values in experiment.vary.items()}
    seed = experiment.seed if seed is None else seed
    numbers = [number for number in vary.get("workers", ()) if isinstance(number, int)]
    more = {role: max([experiment.nodes[role], *numbers]) for role in experiment.as_many_as_workers}
    nodes = {**experiment.nodes, **more}
    return msgspec.structs.replace(experiment, nodes=nodes, vary=vary, runs=runs or experiment.runs, seed=seed)


class Run(msgspec.Struct, frozen=True):
    """One of an experiment's runs: the `number`th of this combination."""

    number: int
    factors: dict[str, Value]


def plan(experiment: Experiment) -> list[Run]:
    """Return all runs: round by round, each round every combination, in an order that the seed shuffles.

    So a machine that drifts hits them all. Raises UsageError.
    """
    combinations = list(_combinations(experiment.vary))
    if experiment.runs * len(combinations) > MAX_RUNS:
        raise UsageError(f"that would be {experiment.runs * len(combinations)} runs; there can be {MAX_RUNS}")
    shuffle = random.Random(experiment.seed).shuffle
    runs = []
    for number in range(experiment.runs):
        shuffle(combinations)
        runs += [Run(number, factors) for factors in combinations]
    return runs


def _combinations(vary: Mapping[str, list[Value] | str]) -> Iterator[dict[str, Value]]:
    for values in itertools.product(*vary.values()):
        yield dict(zip(vary, values, strict=True))


def scenario_of(experiment: Experiment, factors: Mapping[str, Value]) -> Scenario:
    """Return the scenario of a run. Raises UserError."""

    def load_text(name: str) -> str:
        return (FOLDER / name).read_text()

    own = {name: str(value) for name, value in {**experiment.set, **factors}.items()}
    roles = variables_of_roles(experiment.nodes)
    if taken := set(own) & set(roles):
        raise UserError(f"{experiment.scenario}: {', '.join(sorted(taken))} are roles; set something else")
    return read_scenario(experiment.scenario, load_text, {**roles, "seed": str(experiment.seed), **own})
