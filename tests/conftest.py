"""Coroutine tests run on the one loop that Twisted's reactor sits on; no test may leave a process."""

import asyncio
import inspect
import os
import random
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import settings

from tests.worlds import network
from tests.worlds.commands import GONE_WITHIN_S
from tunnel_pool.packet_engine import EngineChoice, is_built
from tunnel_pool.system import runner

ASYNC_TEST_TIMEOUT_S = 100
CHAOS_SEED = "TUNNEL_POOL_CHAOS_SEED"
ENDS_BEFORE_S = 20  # a timeout of a test's own: what it opened is closed in order

settings.register_profile("fast", max_examples=100, deadline=None)
settings.register_profile("deep", max_examples=5000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fast"))


def pytest_configure(config: pytest.Config) -> None:
    """Choose the seed of the chaos tests before pytest-xdist starts its workers, which then share it."""
    os.environ.setdefault(CHAOS_SEED, str(random.randrange(1 << 32)))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the seed that repeats the same faults, if chaos tests ran."""
    reports = [report for kind in ("passed", "failed") for report in terminalreporter.stats.get(kind, ())]
    if any("tests/chaos/" in report.nodeid for report in reports):
        terminalreporter.write_line(f"chaos: {CHAOS_SEED}={os.environ[CHAOS_SEED]}")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        asyncio.set_event_loop(runner.install())  # py-ipv8's objects make futures, and another test may have taken it
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    loop = runner.install()
    own = pyfuncitem.get_closest_marker("timeout")
    timeout_s = own.args[0] - ENDS_BEFORE_S if own is not None else ASYNC_TEST_TIMEOUT_S
    loop.run_until_complete(asyncio.wait_for(pyfuncitem.obj(**arguments), timeout_s))
    return True


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """Check that no child process and no folder of a demo outlives a test."""
    yield
    children = psutil.Process().children(recursive=True)
    _, alive = psutil.wait_procs(children, timeout=GONE_WITHIN_S)
    for process in alive:
        process.kill()
    assert not alive, f"left running: {alive}"
    assert not list(Path(tempfile.gettempdir()).glob(f"tunnel-pool-demo-{os.getpid()}-*"))


@pytest.fixture(params=["native", "python"])
def engine(request: pytest.FixtureRequest) -> Iterator[EngineChoice]:
    """Run the test with nodes on each engine; skip the native one where it is not built."""
    choice = EngineChoice(request.param)
    if choice is EngineChoice.NATIVE and not is_built():
        pytest.skip("the native engine is not built")
    network.engine = choice
    yield choice
    network.engine = EngineChoice.AUTO


@pytest.fixture
def loop() -> asyncio.AbstractEventLoop:
    return runner.install()


@pytest.fixture
def small_disk(tmp_path):
    """Yield a folder on a disk of 8 MB; skip the test unless we are root."""
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", tmp_path]).returncode:
        pytest.skip("only root may mount a small disk")
    yield tmp_path
    subprocess.run(["umount", tmp_path], check=True)
