"""Tests the comparison of two revisions on real counts: ten percent more work is a regression, equal work is not."""

import asyncio
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import psutil
import pytest

from tests.worlds.commands import GONE_WITHIN_S, ROOT, command
from tunnel_pool.gumby_experiments.results.results import RUN, RUNS, read_results
from tunnel_pool.gumby_experiments.verbs.costs import why_not

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(bool(why_not()), reason=str(why_not())),
]
COUNTED = ("python_relay_instructions", "python_originate_instructions", "data_stream_instructions")
if shutil.which("cargo"):
    COUNTED += ("engine_originate_instructions", "engine_relay_instructions", "engine_exit_instructions")


async def measure(folder, burden, seed):
    arguments = ["--short", "--runs=3", f"--seed={seed}", f"--set=burden={burden}", f"--output={folder}", "--json"]
    async with command("experiment", "run", "costs", *arguments) as running:
        code, _, lines = await running.ended(800)
    assert code == 0, lines
    return folder


async def verdicts(a, b, output):
    async with command("experiment", "compare", a, b, f"--output={output}", "--json") as running:
        code, report, lines = await running.ended()
    assert report, lines
    return code, {row["metric"]: row["verdict"] for row in report["comparisons"]}


async def test_ten_percent_more_work_is_a_regression_and_the_same_work_is_none(tmp_path):
    before = await measure(tmp_path / "before", 0, seed=1)
    same = await measure(tmp_path / "same", 0, seed=2)
    slower = await measure(tmp_path / "slower", 10, seed=3)
    code, found = await verdicts(before, same, tmp_path / "of-same")
    assert code == 0, found
    assert {found[metric] for metric in COUNTED} == {"no evidence"}
    code, found = await verdicts(before, slower, tmp_path / "of-slower")
    assert code == 1
    assert {found[metric] for metric in COUNTED} == {"regressed"}
    code, found = await verdicts(slower, before, tmp_path / "of-faster")
    assert code == 0
    assert {found[metric] for metric in COUNTED} == {"improved"}


def git(*arguments):
    return subprocess.run(["git", "-C", ROOT, *arguments], capture_output=True, text=True, check=True).stdout


def worktrees():
    """Return git's worktrees without those whose folders are gone."""
    git("worktree", "prune")
    return git("worktree", "list")


async def test_a_revision_from_before_the_experiment_is_nothing_to_compare_with(tmp_path):
    first = git("rev-list", "--max-parents=0", "HEAD").split()[0]
    if git("ls-tree", first, "gumby_experiments/experiments/costs.toml"):
        pytest.skip("this clone has no history from before the experiment")
    before = worktrees()
    async with command("experiment", "compare", first, "HEAD", f"--output={tmp_path / 'out'}") as running:
        code, _, lines = await running.ended()
    assert code == 1
    assert lines[-1].endswith("has no experiment costs: there is nothing to compare with")
    assert not (tmp_path / "out").exists()
    arguments = [f"--output={tmp_path / 'out'}", "--if-comparable", "--json"]
    async with command("experiment", "compare", first, "HEAD", *arguments) as running:
        code, report, _ = await running.ended()
    assert code == 0
    assert "nothing to compare with" in report["nothing"]
    assert worktrees() == before


@pytest.fixture
def elsewhere():
    """Yield a folder for temporary files, with a path that is short enough for Unix sockets."""
    with tempfile.TemporaryDirectory(prefix="t-") as folder:
        yield Path(folder)


@pytest.mark.parametrize("line", ["setting up A", "round 2 of 5: A"])
async def test_a_stopped_comparison_keeps_whole_rounds_and_leaves_nothing_else(tmp_path, elsewhere, line):
    folder = tmp_path / "out"
    before = worktrees()
    arguments = ["--experiment=serialization", "--short", f"--output={folder}"]
    async with command(
        "experiment", "compare", "HEAD", "HEAD", *arguments, environment={"TMPDIR": str(elsewhere)}
    ) as running:
        await running.until_line(lambda said: said.startswith(line), 900)  # two environments, and two rounds
        while "setting up" in line and not list(elsewhere.glob("*/pip-*")):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        family = running.family()
        running.process.send_signal(signal.SIGINT)
        code, _, lines = await running.ended()
    assert code == 130
    assert lines[-1] == "tunnel-pool experiment: interrupted"
    rounds = [set(read_results(folder / side).table(RUNS)[RUN]) for side in "AB"] if folder.exists() else []
    assert rounds == ([{0}, {0}] if "round" in line else [])
    assert worktrees() == before
    assert not list(elsewhere.iterdir())
    assert not psutil.wait_procs(family, GONE_WITHIN_S)[1]
