"""Tests the demo as its users run it: its report, and the failures that it survives."""

import asyncio
import os
import signal
import sysconfig
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest

from tests.worlds.commands import GONE_WITHIN_S, MODULE, command
from tests.worlds.network import until

SCRIPT = [str(Path(sysconfig.get_path("scripts")) / "tunnel-pool")]


def left_of(processes):
    return psutil.wait_procs(processes, timeout=GONE_WITHIN_S)[1]


@pytest.mark.parametrize(
    ("program", "workers", "hops"),
    [
        (MODULE, 0, 1),
        pytest.param(SCRIPT, 2, 1, marks=pytest.mark.slow),
        pytest.param(MODULE, 2, 2, marks=pytest.mark.slow),
        pytest.param(SCRIPT, 1, 3, marks=pytest.mark.slow),
    ],
)
async def test_a_file_comes_in_through_circuits(program, workers, hops):
    arguments = [f"--workers={workers}", f"--hops={hops}", "--size=20", "--json"]
    async with command("demo", *arguments, program=program) as demo:
        code, report, lines = await demo.ended()
    assert code == 0, lines
    assert report["ok"]
    assert report["verified"]
    assert report["seeders_saw_only_exits"]
    assert (report["bytes"], report["hops"], report["workers"]) == (20 << 20, hops, workers)
    assert report["worker_restarts"] == 0
    assert len(report["worker_rss_mb"]) == workers
    assert set(report["cpu_seconds"]) == {"main", "workers", "exits", "relays", "seeders"}
    assert 0 < report["seconds_to_first_circuit"] < 30
    ready = [circuit for circuit in report["circuits"] if circuit["hops"] == hops]
    assert {circuit["child"] for circuit in ready} == (set(range(workers)) or {None})
    assert sum(circuit["bytes"] for circuit in ready) > 20 << 20


# Half a minute on any machine but the slowest: a stopped child is noticed after some seconds.
AT_WALKING_SPEED = ("--size=100", "--seeder-speed=2")


@pytest.mark.slow
@pytest.mark.parametrize(("how", "engine"), [(signal.SIGKILL, "auto"), (signal.SIGSTOP, "python")])
async def test_a_child_hit_during_the_download_is_replaced_and_the_download_goes_on(how, engine):
    async with command("demo", "--workers=3", *AT_WALKING_SPEED, "--json", f"--engine={engine}") as demo:
        await demo.until_downloaded(10)
        children = demo.pool_children()
        assert len(children) == 3
        os.kill(children[0].pid, how)
        old = {child.pid for child in children}
        await until(lambda: {child.pid for child in demo.pool_children()} - old, 25, "a new child")
        code, report, lines = await demo.ended()
    assert code == 0, lines
    assert report["verified"]
    assert report["seeders_saw_only_exits"]
    assert report["worker_restarts"] == 1
    # Eight circuits are wanted: the dead child's were built again.
    assert len(report["circuits"]) > 8
    assert not psutil.pid_exists(children[0].pid)


@pytest.mark.slow
@pytest.mark.parametrize("stopped", [False, True])
async def test_nothing_survives_a_killed_main_process(stopped):
    async with command("demo", "--workers=2", *AT_WALKING_SPEED, "--hops=2") as demo:
        await demo.until_downloaded(5)
        family = demo.family()
        assert len(family) == 1 + 2 + 2 + 2 + 2
        if stopped:
            os.kill(demo.pool_children()[0].pid, signal.SIGSTOP)
        os.kill(demo.pid, signal.SIGKILL)
        assert not await asyncio.to_thread(left_of, family)


@pytest.mark.parametrize("when", ["building", pytest.param("downloading", marks=pytest.mark.slow)])
async def test_ctrl_c_ends_everything(when):
    async with command("demo", "--workers=2", *AT_WALKING_SPEED, "--json", start_new_session=True) as demo:
        if when == "downloading":
            await demo.until_downloaded(5)
        else:
            await until(lambda: len(demo.family()) > 3)
        family = demo.family()
        pressed_s = time.monotonic()
        os.killpg(demo.pid, signal.SIGINT)
        code, report, lines = await demo.ended(30)
        assert code == 130
        assert report == {"ok": False, "error": "interrupted"}
        assert lines[-1] == "tunnel-pool demo: interrupted"
        assert "Traceback" not in "\n".join(lines)
        assert not await asyncio.to_thread(left_of, family)
        assert time.monotonic() - pressed_s < 25


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "hops"), [(0, 1), (2, 1), (2, 2), (2, 3)])
async def test_a_hundred_megabytes(workers, hops):
    async with command("demo", f"--workers={workers}", f"--hops={hops}", "--size=100", "--json") as demo:
        code, report, lines = await demo.ended()
    assert code == 0, lines
    assert report["verified"]
    assert report["seeders_saw_only_exits"]
    if workers:
        spread = Counter(circuit["child"] for circuit in report["circuits"])
        assert set(spread) == set(range(workers))
        # Of eight circuits each child has its share. Those that were lost and built anew are in the report, too.
        assert min(spread.values()) >= 8 // workers - 1


@pytest.mark.slow
async def test_a_child_killed_again_and_again():
    """The pool keeps replacing; the file still arrives whole."""
    async with command("demo", "--workers=2", *AT_WALKING_SPEED, "--json") as demo:
        await demo.until_downloaded(10)
        killed = set()
        while len(killed) < 4 and demo.process.returncode is None:
            fresh = await until(lambda: [c for c in demo.pool_children() if c.pid not in killed], 20)
            killed.add(fresh[0].pid)
            os.kill(fresh[0].pid, signal.SIGKILL)
            await asyncio.sleep(1)  # the next one falls into the rebuilding
        code, report, lines = await demo.ended()
    assert code == 0, lines
    assert report["verified"]
    assert report["worker_restarts"] >= 3
