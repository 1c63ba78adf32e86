"""The guard on real counts: ten percent more work is seen, the same work is the same."""

import shutil
import subprocess

import pytest

from gumby_experiments.verbs.costs import why_not
from tests.commands import ROOT, command

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


async def test_a_revision_from_before_the_experiment_is_nothing_to_compare_with(tmp_path):
    first = git("rev-list", "--max-parents=0", "HEAD").split()[0]
    if git("ls-tree", first, "gumby_experiments/experiments/costs.toml"):
        pytest.skip("this clone has no history from before the experiment")
    worktrees = git("worktree", "list")
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
    assert git("worktree", "list") == worktrees
