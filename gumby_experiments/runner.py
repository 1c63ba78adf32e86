"""All runs of an experiment, one after the other, and what is made of them."""

import contextlib
import importlib
import shutil
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tunnel_pool.gumby_experiments.nodes.links import LOOPBACK, Links, Loopback, open_links, why_not
from tunnel_pool.gumby_experiments.nodes.run import FOLDER_PREFIX, Run
from tunnel_pool.gumby_experiments.plan import verb_lookup
from tunnel_pool.gumby_experiments.plan.config import Experiment, plan, scenario_of
from tunnel_pool.gumby_experiments.plan.config import Run as Planned
from tunnel_pool.gumby_experiments.results.provenance import now, provenance
from tunnel_pool.gumby_experiments.results.report import write_report
from tunnel_pool.gumby_experiments.results.results import CPU_PREFIX, ERROR, EVENTS, RUN, RUNS, SAMPLES, Results
from tunnel_pool.private_swarm.swarm import remove_stale_folders
from tunnel_pool.system.errors import UserError

OnStep = Callable[[int, int, str, str], None]  # runs done, runs in all, which run, what happens


def output_folder(folder: Path) -> Path:
    """Return the folder for results, made, or empty as it is. Raises UserError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise UserError(f"{folder} has something in it already; name another --output")
    except OSError as error:
        raise UserError(f"cannot write results to {folder}: {error.strerror}") from None
    return folder


async def run_experiment(
    name: str, experiment: Experiment, folder: Path, command: Sequence[str], on_step: OnStep
) -> Results:
    """Carry out every run of the plan; stopped early, keep what was measured, if anything was. Raises UserError."""
    runs = plan(experiment)
    for planned in runs:
        verb_lookup.check(scenario_of(experiment, planned.factors))
    findings_of(experiment)
    if experiment.links and (why := why_not()):
        raise UserError(f"{name}: {why}")
    remove_stale_folders(FOLDER_PREFIX)
    origin = {**provenance(experiment, name, command, LOOPBACK), "state": "not finished"}
    results = Results(output_folder(folder), experiment, origin)
    try:
        for number, planned in enumerate(runs):
            await _carry_out(experiment, planned, results, lambda what, at=number, run=planned: on_step(  # type: ignore[misc]
                at, len(runs), _title(run), what))  # fmt: skip
            results.write()
    except BaseException:
        # At once: the tables of what was measured are there, `experiment report` makes the rest of them.
        if not results.tables:
            with contextlib.suppress(OSError):
                shutil.rmtree(results.folder)
        raise
    results.provenance |= {"state": "finished", "ended": now()}
    make_report(results)
    return results


def make_report(results: Results) -> None:
    """Make the tables that are made of others, figures and the page. Raises UserError."""
    findings = findings_of(results.experiment)
    if hasattr(findings, "derive"):
        findings.derive(results)
    results.write()
    write_report(results, findings)


def findings_of(experiment: Experiment) -> Any:
    """Return the module that says in words, and pictures of its own, what the tables say; None when there is none."""
    return importlib.import_module(experiment.findings) if experiment.findings else None


def _title(planned: Planned) -> str:
    return ", ".join([f"{name} {value}" for name, value in planned.factors.items()] + [f"run {planned.number + 1}"])


@asynccontextmanager
async def _links(experiment: Experiment, number: int) -> AsyncIterator[Any]:
    if not experiment.links:
        yield Loopback()
        return
    async with open_links(sum(experiment.nodes.values()), experiment.seed + number) as links:
        yield links


async def _carry_out(
    experiment: Experiment, planned: Planned, results: Results, on_event: Callable[[str], None]
) -> None:
    """Carry out one run; when it comes to nothing, its row says why."""
    of_run = {RUN: planned.number, **planned.factors}
    begun_s = time.monotonic()
    on_event("starting")
    links: Links
    async with _links(experiment, planned.number) as links:
        results.provenance["links"] = links.kind
        run = Run(experiment, dict(planned.factors), planned.number, links)
        run.on_event = on_event
        row: dict[str, Any] = {ERROR: None}
        try:
            await run.carry_out()
        except UserError as error:
            row[ERROR] = str(error)
            on_event(f"failed: {error}")
    cpu = {f"{CPU_PREFIX}{role}_s": round(seconds, 2) for role, seconds in run.sampler.cpu_seconds().items()}
    took_s = round(time.monotonic() - begun_s, 1)
    results.add(RUNS, [{**run.metrics, **cpu, "seconds": took_s, **row}], of_run)
    results.add(SAMPLES, run.sampler.rows, of_run)
    results.add(EVENTS, run.events, of_run)
    for name, rows in run.tables.items():
        results.add(name, rows, of_run)
