"""tunnel-pool experiment: repeat the experiments that this program comes from, and compare their results."""

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tunnel_pool.cli.arguments import options, values
from tunnel_pool.system.errors import UsageError, UserError

DESCRIPTION = """Repeat the experiments that this program comes from, on this machine alone.

list                what there is, and what each repeats
run NAME            measure: tables, figures and a page in a directory
report DIR          make figures and page of a directory anew
compare A B         two directories of one experiment, or two git revisions of
                    this program: what regressed, what improved; exit code 1 if
                    anything regressed"""
RESULTS = Path("results")


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    list_parser = actions.add_parser("list", help="list the experiments", description="List the experiments.")
    run_parser = actions.add_parser(
        "run", help="run an experiment", description="Run an experiment and write its report."
    )
    report_parser = actions.add_parser(
        "report", help="draw results anew", description="Make the figures and the report of results anew."
    )
    compare_parser = actions.add_parser(
        "compare", help="compare two results", description="Compare two results, or two revisions of this program."
    )
    _add_run_options(run_parser)
    _add_compare_options(compare_parser)
    report_parser.add_argument("folder", type=values.folder, metavar="DIR")
    parsers = {
        list_parser: show_list, run_parser: run_one, report_parser: make_report, compare_parser: compare_two,
    }  # fmt: skip
    for each, run in parsers.items():
        options.add_output_options(each, log_level="error")
        each.set_defaults(run=run)


def _add_run_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="Name of an experiment; see tunnel-pool experiment list.")
    parser.add_argument("--short", action="store_true", help="Run a form that takes a minute or two.")
    parser.add_argument(
        "--set", type=_assignment, action="append", default=[], metavar="NAME=VALUE[,VALUE...]", dest="changes",
        help="Set the number of nodes of a role, or what is varied or set: --set workers=16,32,48. May be repeated.",
    )  # fmt: skip
    number = values.whole_number
    parser.add_argument("--runs", type=number(1, 1000), metavar="R", help="Number of runs of each combination.")
    parser.add_argument("--seed", type=number(0, 1 << 62), metavar="S", help="Seed of all that is left to chance.")
    parser.add_argument(
        "--output",
        type=values.folder,
        metavar="DIR",
        help="Folder for the results, new or empty (default: results/NAME-TIME).",
    )


def _add_compare_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("a", metavar="A", help="Folder of results, or a git revision of this program.")
    parser.add_argument("b", metavar="B", help="Another one, of the same experiment.")
    parser.add_argument(
        "--experiment",
        default="costs",
        metavar="NAME",
        help="Experiment that revisions are compared by (default: %(default)s).",
    )
    parser.add_argument("--rounds", type=values.whole_number(1, 1000), default=5, metavar="R",
                        help="Number of runs of each revision, in turn (default: %(default)s).")  # fmt: skip
    parser.add_argument(
        "--times", type=values.whole_number(1, 1000), default=1, metavar="T",
        help="Compare revisions so often, each time by --rounds other runs, and give each time's verdicts: "
        "with A the same as B, this tells how often the guard is wrong.",
    )  # fmt: skip
    parser.add_argument("--short", action="store_true", help="Compare revisions by the experiment's short form.")
    parser.add_argument(
        "--if-comparable", action="store_true", help="End well when a revision is from before the experiment."
    )
    parser.add_argument(
        "--output",
        type=values.folder,
        metavar="DIR",
        help="Folder for the results, new or empty (default: results/compare-TIME).",
    )


def _assignment(text: str) -> tuple[str, list[Any]]:
    name, equals, values = text.partition("=")
    if not name or not equals or not values:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE[,VALUE...]")
    return name, [_value(each) for each in values.split(",")]


def _value(text: str) -> bool | int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(text, text)


def _needs_libraries(import_it: Callable[[], Any]) -> Any:
    """Raises UserError where what draws and counts is not installed."""
    try:
        return import_it()
    except ImportError as error:
        if error.name and error.name.partition(".")[0] == "tunnel_pool":
            raise
        raise UserError(f"experiments need {error.name}: pip install 'tunnel-pool[experiments]'") from None


async def show_list(arguments: argparse.Namespace) -> dict[str, Any]:
    from tunnel_pool.gumby_experiments.plan import config

    found = {name: config.load(name) for name in config.names()}
    return {
        "ok": True,
        "experiments": [
            {"name": name, "title": experiment.title, "repeats": experiment.repeats}
            for name, experiment in found.items()
        ],
    }


async def run_one(arguments: argparse.Namespace) -> dict[str, Any]:
    """Raises UserError."""
    from tunnel_pool.gumby_experiments.plan import config

    runner = _needs_libraries(_import_runner)
    experiment = config.load(arguments.name)
    if arguments.short:
        experiment = config.shortened(experiment)
    experiment = config.changed(experiment, dict(arguments.changes))
    experiment = config.with_options(experiment, arguments.runs, arguments.seed, len(os.sched_getaffinity(0)))
    folder = arguments.output or RESULTS / f"{arguments.name}-{time.strftime('%Y%m%d-%H%M%S')}"
    command = ["tunnel-pool", *sys.argv[1:]]
    with _Display(arguments.name) as display:
        results = await runner.run_experiment(arguments.name, experiment, folder.absolute(), command, display)
    return _summary(results)


def _import_runner() -> Any:
    """Import the runner, and now also what is needed only at the end."""
    import matplotlib  # noqa: F401
    import scipy  # noqa: F401
    import simpy  # noqa: F401
    import statsmodels.stats.power  # noqa: F401

    from tunnel_pool.gumby_experiments import runner

    return runner


def _summary(results: Any) -> dict[str, Any]:
    from tunnel_pool.gumby_experiments.results.compare import known
    from tunnel_pool.gumby_experiments.results.report import REPORT, metric_tables, sentences
    from tunnel_pool.gumby_experiments.runner import findings_of

    runs = results.tables["runs"]
    failed = runs[runs["error"].notna()]
    metrics = [
        {"metric": table.name, "unit": table.metric.unit, **dict(zip(results.factors, values, strict=True)),
         **{field: known(getattr(seen, field)) for field in ("number", "mean", "sd", "least", "most")}}
        for table in metric_tables(results) for values, seen in table.rows
    ]  # fmt: skip
    return {
        "ok": failed.empty,
        "failed_runs": len(failed),
        **({} if failed.empty else {"why": failed["error"].iloc[0]}),
        "report": str(results.folder / REPORT),
        "metrics": metrics,
        "words": sentences(results, findings_of(results.experiment)),
    }


async def make_report(arguments: argparse.Namespace) -> dict[str, Any]:
    """Raises UserError."""
    runner = _needs_libraries(_import_runner)
    from tunnel_pool.gumby_experiments.results.results import read_results

    results = read_results(arguments.folder.absolute())
    runner.make_report(results)
    return _summary(results)


async def compare_two(arguments: argparse.Namespace) -> dict[str, Any]:
    """Raises UserError."""
    _needs_libraries(_import_runner)
    from tunnel_pool.gumby_experiments.guard import NothingToCompareError
    from tunnel_pool.gumby_experiments.results.compare import (
        as_rows,
        compare,
        compare_in_parts,
        differences,
        lost,
        regressed,
    )
    from tunnel_pool.gumby_experiments.results.compare_report import write_comparison
    from tunnel_pool.gumby_experiments.runner import output_folder

    folder = (arguments.output or RESULTS / f"compare-{time.strftime('%Y%m%d-%H%M%S')}").absolute()
    output_folder(folder)
    try:
        a, b, paired = await _both(arguments, folder)
        comparisons = compare(a, b, paired)
        parts = list(compare_in_parts(a, b, arguments.rounds)) if arguments.times > 1 else []
        page = write_comparison(a, b, comparisons, folder)
    except NothingToCompareError as error:
        if arguments.if_comparable:
            return {"ok": True, "nothing": str(error)}
        raise
    finally:
        with contextlib.suppress(OSError):  # rounds that are over are kept
            folder.rmdir()
    missing = lost(a, b)
    return {
        "ok": not regressed(comparisons) and not missing,
        "comparisons": as_rows(comparisons),
        "missing_in_b": missing,
        "differences": differences(a, b),
        **({"times": [_verdicts(part) for part in parts]} if parts else {}),
        "report": str(page),
    }


def _verdicts(comparisons: Any) -> dict[str, str]:
    """Return the verdict on each metric that has one, by its title."""
    from tunnel_pool.gumby_experiments.results.compare import Verdict
    from tunnel_pool.gumby_experiments.results.compare_report import title_of

    return {title_of(each): each.verdict.value for each in comparisons if each.verdict is not Verdict.NO_EVIDENCE}


async def _both(arguments: argparse.Namespace, folder: Path) -> tuple[Any, Any, bool]:
    """Return the two results, and whether their runs were in turn. Raises UserError."""
    from tunnel_pool.gumby_experiments import guard
    from tunnel_pool.gumby_experiments.results.results import read_results

    folders = [Path(text) for text in (arguments.a, arguments.b)]
    if all(each.is_dir() for each in folders):
        if arguments.times > 1:
            raise UsageError("--times is of revisions: two directories are compared once")
        a, b = (read_results(each.absolute()) for each in folders)
        return a, b, False
    for text in (arguments.a, arguments.b):
        if not await guard.is_revision(text):
            raise UserError(f"{text!r} is neither a directory of results nor a revision of this program")
    short = ["--short"] if arguments.short else []
    revisions = arguments.a, arguments.b
    rounds = arguments.rounds * arguments.times
    kept = folder / "A", folder / "B"
    a, b = await guard.run_revisions(revisions, arguments.experiment, short, rounds, _say, folders=kept)
    return a, b, True


def _say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


class _Display:
    """Shows the progress on stderr: a bar for people, lines for files."""

    def __init__(self, name: str) -> None:
        self._name = name
        console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
            TextColumn("{task.fields[now]}"), console=console,
        ) if console.is_terminal else None  # fmt: skip
        self._task: Any = None

    def __enter__(self) -> "_Display":
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def __call__(self, done: int, total: int, which: str, what: str) -> None:
        if self._progress is None:
            print(f"{self._name}: run {done + 1} of {total} ({which}): {what}", file=sys.stderr, flush=True)
            return
        if self._task is None:
            self._task = self._progress.add_task(self._name, total=total, now="")
        self._progress.update(self._task, completed=done, now=f"{which}: {what}")


def describe(report: dict[str, Any]) -> str:
    from rich.table import Table

    console = Console(width=160)
    with console.capture() as captured:
        if "experiments" in report:
            table = Table("experiment", "what", "repeats")
            for row in report["experiments"]:
                table.add_row(row["name"], row["title"], row["repeats"])
            console.print(table)
        elif "nothing" in report:
            console.print(report["nothing"], markup=False, highlight=False, soft_wrap=True)
        elif "comparisons" in report:
            _describe_comparison(report, console)
        else:
            _describe_run(report, console)
    return captured.get().rstrip()


def _describe_run(report: dict[str, Any], console: Console) -> None:
    from rich.table import Table

    fixed = {"metric", "unit", "number", "mean", "sd", "least", "most"}
    factors = [key for row in report["metrics"][:1] for key in row if key not in fixed]
    table = Table("metric", "unit", *factors, "runs", "mean", "sd", "min", "max")
    from tunnel_pool.gumby_experiments.results.report import number

    for row in report["metrics"]:
        seen = [number(row[key]) for key in ("mean", "sd", "least", "most")]
        table.add_row(row["metric"], row["unit"], *(str(row[key]) for key in factors), str(row["number"]), *seen)
    console.print(table)
    for sentence in report["words"]:
        console.print(f"- {sentence}", markup=False, highlight=False)
    if report["failed_runs"]:
        console.print(f"{report['failed_runs']} run(s) came to nothing: {report['why']}", markup=False, highlight=False)
    console.print(f"report: {report['report']}", markup=False, highlight=False, soft_wrap=True)


def _change(row: dict[str, Any]) -> str:
    from tunnel_pool.gumby_experiments.results.report import percent

    return "from 0" if row["a_mean"] == 0 and row["b_mean"] else percent(row["change"])


def _describe_comparison(report: dict[str, Any], console: Console) -> None:
    from rich.table import Table

    from tunnel_pool.gumby_experiments.results.report import number, percent

    known = {f"{side}_{name}" for side in "ab" for name in ("number", "mean", "sd", "least", "most", "low", "high")}
    known |= {"metric", "unit", "change", "low", "high", "p", "verdict"}
    factors = [key for row in report["comparisons"][:1] for key in row if key not in known]
    table = Table(
        "metric", *factors, "A mean", "sd", "min-max", "B mean", "sd", "min-max", "change", "95 % interval", "verdict"
    )
    for row in report["comparisons"]:
        sides = []
        for side in "ab":
            mean, sd, least, most = (number(row[f"{side}_{name}"]) for name in ("mean", "sd", "least", "most"))
            sides += [mean, sd, f"{least}-{most}"]
        interval = f"{percent(row['low'])} {percent(row['high'])}"
        table.add_row(
            row["metric"], *(str(row[key]) for key in factors), *sides, _change(row), interval, row["verdict"]
        )
    console.print(table)
    for name in report["missing_in_b"]:
        console.print(f"{name} was measured in A, and not in B", markup=False, highlight=False)
    for time_of, verdicts in enumerate(report.get("times", []), 1):
        which = ", ".join(f"{metric} {verdict}" for metric, verdict in verdicts.items())
        console.print(f"comparison {time_of}: {which or 'no evidence of any change'}", markup=False, highlight=False)
    for line in report["differences"]:
        console.print(f"set up differently: {line}", markup=False, highlight=False)
    console.print(f"report: {report['report']}", markup=False, highlight=False, soft_wrap=True)
