"""Two revisions of this program on one machine: each in a worktree and environment of its own, their runs in turn."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from tunnel_pool.gumby_experiments.results.provenance import SOURCE
from tunnel_pool.gumby_experiments.results.results import RUN, Results, read_results
from tunnel_pool.gumby_experiments.verbs.costs import why_not
from tunnel_pool.private_swarm.swarm import make_folder, remove_stale_folders
from tunnel_pool.system.errors import UserError

FOLDER_PREFIX = "tunnel-pool-guard-"
EXPERIMENT = "costs"
END_TIMEOUT_S = 30.0
Say = Callable[[str], None]


class NothingToCompareError(UserError):
    """Says that the revision is from before the experiment, or that this machine can't count."""


class _Side(NamedTuple):
    name: str
    revision: str
    tree: Path


async def is_revision(text: str) -> bool:
    code, _ = await _run("git", "-C", str(SOURCE), "rev-parse", "--verify", "--quiet", f"{text}^{{commit}}")
    return code == 0


async def run_revisions(
    revisions: tuple[str, str], name: str, options: Sequence[str], rounds: int, say: Say, *, folders: tuple[Path, Path]
) -> tuple[Results, Results]:
    """Run each revision so many times, A B and B A in turn, with `experiment run`'s `options`. Raises UserError.

    `folders`: where the results of either side are written, after each round.
    """
    if name == EXPERIMENT and (why := why_not()):
        raise NothingToCompareError(why)
    remove_stale_folders(FOLDER_PREFIX)
    folder = make_folder(FOLDER_PREFIX)
    a, b = revisions
    found: dict[str, Results] = {}
    try:
        async with _side("A", a, folder, name, say) as first, _side("B", b, folder, name, say) as second:
            for number in range(rounds):
                for side in (first, second) if number % 2 == 0 else (second, first):
                    say(f"round {number + 1} of {rounds}: {side.name} ({side.revision})")
                    measured = await _measure(side, name, options, number)
                    found[side.name] = _joined(found[side.name], measured) if number else measured
                for side, kept in zip((first, second), folders, strict=True):
                    found[side.name].folder = kept
                    found[side.name].write()
            return found[first.name], found[second.name]
    finally:
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


@asynccontextmanager
async def _side(letter: str, revision: str, folder: Path, name: str, say: Say) -> AsyncIterator[_Side]:
    """Yield a worktree and an environment in it. Raises UserError."""
    tree = folder / letter
    await _must("git", "-C", str(SOURCE), "worktree", "prune")
    await _must("git", "-C", str(SOURCE), "worktree", "add", "--detach", str(tree), revision)
    try:
        if not (tree / "gumby_experiments" / "experiments" / f"{name}.toml").exists():
            raise NothingToCompareError(f"{revision} has no experiment {name}: there is nothing to compare with")
        say(f"setting up {letter} ({revision})")
        await _must("make", "-C", str(tree), ".venv/dev.stamp", "engine-there", scratch=folder)
        yield _Side(letter, revision, tree)
    finally:
        with contextlib.suppress(UserError):
            await asyncio.shield(_must("git", "-C", str(SOURCE), "worktree", "remove", "--force", str(tree)))


async def _measure(side: _Side, name: str, options: Sequence[str], number: int) -> Results:
    output = side.tree.parent / f"{side.name}-{number}"
    program = side.tree / ".venv" / "bin" / "tunnel-pool"
    arguments = [
        "experiment",
        "run",
        name,
        *options,
        "--runs=1",
        f"--seed={number + 1}",
        f"--output={output}",
        "--json",
    ]
    code, said = await _run(str(program), *arguments, cwd=side.tree)
    if code != 0:
        raise UserError(f"{side.revision}: experiment {name} failed: {_why(said)}")
    results = read_results(output)
    for table in results.tables.values():
        table[RUN] = number
    return results


def _why(said: str) -> str:
    """Return the last line, or the error that a report in JSON names."""
    line = (said.strip().splitlines() or ["it said nothing"])[-1]
    with contextlib.suppress(ValueError, AttributeError):
        said_so = json.loads(line)
        return str(said_so.get("error") or said_so.get("why") or line)
    return line


def _joined(all_before: Results, one: Results) -> Results:
    """Add the runs of another round, which have other numbers, to those before, and return all."""
    for name, table in one.tables.items():
        before = all_before.tables.get(name)
        all_before.tables[name] = table if before is None else pd.concat([before, table], ignore_index=True)
    return all_before


async def _must(*command: str, scratch: Path | None = None) -> None:
    """Raises UserError when it fails."""
    code, said = await _run(*command, scratch=scratch)
    if code != 0:
        raise UserError(f"{' '.join(command[:3])} failed: {_why(said)}")


async def _run(*command: str, cwd: Path | None = None, scratch: Path | None = None) -> tuple[int, str]:
    """Return the exit code and all output. Cancelled, it is ended with its children.

    `scratch` is for temporary files, and for what both sides' packet engines are built of, which is compiled once.
    """
    environment = {"TMPDIR": str(scratch), "CARGO_TARGET_DIR": str(scratch / "built")} if scratch else {}
    with tempfile.TemporaryFile() as said:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.DEVNULL, stdout=said, stderr=said, cwd=cwd, start_new_session=True,
            env=os.environ | environment,
        )  # fmt: skip
        try:
            code = await process.wait()
        except asyncio.CancelledError:
            process.terminate()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), END_TIMEOUT_S)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
        said.seek(0)
        return code, said.read().decode(errors="replace")
