"""Tests `tunnel-pool experiment` from outside: short runs, stopped runs, nodes that die, wrong arguments."""

import asyncio
import json
import os
import signal
import tempfile
from pathlib import Path

import pandas as pd
import psutil
import pytest

from tests.worlds.commands import command
from tunnel_pool.gumby_experiments.nodes.links import why_not as no_links
from tunnel_pool.gumby_experiments.plan import config
from tunnel_pool.gumby_experiments.verbs.bulk import why_not as no_tor
from tunnel_pool.gumby_experiments.verbs.costs import why_not as no_counting

# By experiment, a function that says why its short form cannot run on this machine.
NEEDS = {
    "beside_tor": lambda: no_links() or no_tor(),
    "costs": no_counting,
    "fairness": no_links,
    "flood": no_links,
    "fragments": no_links,
    "in_the_wild": no_links,
    "latency": no_links,
}
TINY = ["--short", "--set=size_mb=4", "--set=workers=1", "--set=exit=1", "--set=seeder=1"]
# A download that would take a minute.
SLOW = ["--set=size_mb=60", "--set=seeder_speed_mb=1", "--set=workers=1", "--set=exit=1", "--set=seeder=1", "--runs=1"]


def left_over(pid):
    """Return the temporary folders that the experiments and guards of this process have left."""
    folder = Path(tempfile.gettempdir())
    return [path for kind in ("experiment", "guard") for path in folder.glob(f"tunnel-pool-{kind}-{pid}-*")]


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", config.names())
async def test_each_experiment_runs_in_its_short_form(tmp_path, name):
    if why := NEEDS.get(name, lambda: None)():
        pytest.skip(why)
    folder = tmp_path / "results"
    async with command("experiment", "run", name, "--short", f"--output={folder}", "--json") as running:
        code, report, lines = await running.ended(350)
    assert code == 0, (report, lines[-5:])
    experiment = config.shortened(config.load(name))
    assert {row["metric"] for row in report["metrics"]} <= set(experiment.metrics)
    assert report["metrics"]
    assert all(row["mean"] == row["mean"] for row in report["metrics"])
    assert bool(report["words"]) == bool(experiment.findings)
    page = (folder / "report.html").read_text()
    for word in ("<script src", "<link", "<img"):
        assert word not in page
    assert page.count("<svg") >= 1
    assert {path.stem for path in (folder / "figures").glob("*.svg")} == {
        p.stem for p in (folder / "figures").glob("*.png")
    }
    if name in ("local_download", "download"):
        assert (folder / "figures" / "speed_over_time.svg").exists()
    meanings = pd.read_csv(folder / "columns.csv", keep_default_na=False).set_index(["table", "column"])
    assert meanings.loc[("runs", "seconds"), "unit"] == "s"
    if name != "anonymity":  # which is over before its process can be sampled
        samples = pd.read_csv(folder / "samples.csv")
        assert (samples["rss_bytes"] > 0).all()
        assert meanings.loc[("samples", "cpu_user_s"), "unit"] == "s"
    assert not left_over(running.pid)


async def test_a_run_and_the_report_made_of_it_anew(tmp_path):
    folder = tmp_path / "results"
    async with command(
        "experiment", "run", "local_download", *TINY, "--seed=5", f"--output={folder}", "--json"
    ) as running:
        code, report, lines = await running.ended()
    assert code == 0, (report, lines)
    provenance = json.loads((folder / "provenance.json").read_text())
    assert provenance["seed"] == 5
    assert provenance["state"] == "finished"
    assert provenance["configuration"]["set"]["size_mb"] == 4
    assert provenance["versions"]["pyipv8"]
    assert "download {$downloader}" in provenance["scenario"]
    runs = pd.read_csv(folder / "runs.csv")
    assert runs["mean_mb_per_s"].iloc[0] == pytest.approx(4 / runs["download_s"].iloc[0], rel=0.01)
    events = pd.read_csv(folder / "events.csv")
    assert {"first circuit", "download begins", "download complete"} <= set(events["event"])
    (folder / "report.html").unlink()
    async with command("experiment", "report", folder, "--json") as running:
        code, again, _ = await running.ended()
    assert code == 0
    assert again["metrics"] == report["metrics"]
    assert (folder / "report.html").exists()
    assert not left_over(running.pid)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_stopped_run_leaves_nothing(tmp_path, number):
    folder = tmp_path / "results"
    arguments = [*SLOW, f"--output={folder}"]
    async with command("experiment", "run", "local_download", *arguments) as running:
        await running.until_line(lambda line: "download begins" in line)
        family = running.family()
        os.kill(running.pid, number)
        code, _, lines = await running.ended()
    assert code == 128 + number
    assert lines[-1] == "tunnel-pool experiment: interrupted"
    assert not folder.exists()  # nothing was measured
    assert not left_over(running.pid)
    assert not any(process.is_running() for process in family)


@pytest.mark.slow
async def test_a_node_that_dies_is_named_and_the_other_runs_go_on(tmp_path):
    folder = tmp_path / "results"
    async with command("experiment", "run", "local_download", *SLOW, f"--output={folder}", "--json") as running:
        await running.until_line(lambda line: "download begins" in line)
        (seeder,) = [p for p in psutil.Process(running.pid).children() if "seeder" in p.cmdline()]
        seeder.kill()
        code, report, _ = await running.ended()
    assert code == 1
    assert report["failed_runs"] == 1
    assert report["why"] == "node 1 (seeder) has ended: exit code -9"
    assert pd.read_csv(folder / "runs.csv")["error"].tolist() == ["node 1 (seeder) has ended: exit code -9"]
    assert "node 1 (seeder) has ended" in (folder / "report.html").read_text()
    assert not left_over(running.pid)


WRONG = [
    (["run", "ghost"], 2, "'ghost' is no experiment; there are anonymity"),
    (["run", "idle", "--set=ghost=1"], 2, "--set ghost: this experiment has"),
    (["run", "idle", "--set=workers"], 2, "'workers' is not NAME=VALUE[,VALUE...]"),
    (["run", "idle", "--runs=0"], 2, "not a number from 1"),
    (["report", "/absent"], 1, "/absent has no results"),
    (["compare", "/", "/", "--times=2"], 2, "--times is of revisions"),
    (["compare", "/absent", "HEAD"], 1, "'/absent' is neither a directory of results nor a revision"),
    (["fly"], 2, "invalid choice: 'fly'"),
]


async def test_wrong_words_are_answered_in_one_line():
    """The commands run side by side, as each takes a process to start."""

    async def ended(arguments):
        async with command("experiment", *arguments) as running:
            return await running.ended()

    answers = await asyncio.gather(*(ended(arguments) for arguments, _, _ in WRONG))
    for (arguments, code, why), (got, _, lines) in zip(WRONG, answers, strict=True):
        assert (got, len(lines)) == (code, 1), arguments
        assert why in lines[-1]


async def test_results_are_not_written_over(tmp_path):
    (tmp_path / "kept").write_text("mine")
    async with command("experiment", "run", "local_download", *TINY, f"--output={tmp_path}") as running:
        code, _, lines = await running.ended()
    assert code == 1
    assert "has something in it already" in lines[-1]
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


async def test_the_list_names_all():
    async with command("experiment", "list", "--json") as running:
        code, report, _ = await running.ended()
    assert code == 0
    assert [row["name"] for row in report["experiments"]] == config.names()
