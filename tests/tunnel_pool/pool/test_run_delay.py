"""Tests which processes wait for a core, by real ones that do."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tunnel_pool.pool.run_delay import RunDelay

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the kernel says it on Linux alone")

SPINS = "while True: pass"


@contextlib.contextmanager
def running(code, core=None, policy=0):
    """Run a Python program, on one core if given, by this policy (0: as others), and return its id."""

    def settle():
        if core is not None:
            os.sched_setaffinity(0, {core})
        os.sched_setscheduler(0, policy, os.sched_param(0))

    with subprocess.Popen([sys.executable, "-c", code], preexec_fn=settle) as process:  # noqa: PLW1509 - no threads here
        try:
            yield process.pid
        finally:
            process.kill()


def has_run_s(pid):
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def until_it_has_run(pid, seconds):
    deadline_s = time.monotonic() + 30
    while has_run_s(pid) < seconds:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_a_process_that_another_keeps_from_its_core_waits():
    core = min(os.sched_getaffinity(0))
    with running(SPINS, core, os.SCHED_IDLE) as starved, running(SPINS, core) as busy:
        until_it_has_run(busy, 0.1)
        of_starved, before_s = RunDelay(starved), has_run_s(busy)
        until_it_has_run(busy, before_s + 0.5)
        assert of_starved.waited_s() > 0.4  # whatever the busy one ran, the other one could not


@pytest.mark.parametrize("code", ["import time; time.sleep(60)", SPINS])
def test_a_process_that_is_stopped_waits_for_nothing(code):
    with running(code) as pid:
        os.kill(pid, signal.SIGSTOP)
        os.waitpid(pid, os.WUNTRACED)
        delay = RunDelay(pid)
        time.sleep(0.2)  # nothing can happen to it that could be waited for
        assert delay.waited_s() < 0.1


def test_of_a_process_that_is_gone_nothing_is_known():
    with running(SPINS) as pid:
        pass
    assert RunDelay(pid).waited_s() == 0
