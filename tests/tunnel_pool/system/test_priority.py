"""Threads that move data run at a lower priority than those that answer requests."""

import contextlib
import os
import sys
import threading
from pathlib import Path

import aiohttp
import pytest

from tests.tunnel_pool.daemon.running import daemon
from tunnel_pool.system.priority import MAX_NICE, with_yielding_threads

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="threads have nice values of their own on Linux alone")


def nice_of_threads(pid):
    threads = [int(task.name) for task in Path(f"/proc/{pid}/task").iterdir()]
    found = {}
    for thread in threads:
        with contextlib.suppress(ProcessLookupError):  # it has ended
            found[thread] = os.getpriority(os.PRIO_PROCESS, thread)
    return found


@pytest.mark.parametrize(("nice", "expected"), [(0, 0), (7, 7), (100, MAX_NICE)])
def test_threads_are_nicer_than_who_asked_for_them(nice, expected):
    ended = threading.Event()
    ours = os.getpriority(os.PRIO_PROCESS, 0)

    def make():
        thread = threading.Thread(target=ended.wait)
        thread.start()
        return thread

    thread = with_yielding_threads(nice, make)
    assert os.getpriority(os.PRIO_PROCESS, thread.native_id) == min(ours + expected, MAX_NICE)
    assert os.getpriority(os.PRIO_PROCESS, 0) == ours
    ended.set()
    thread.join()


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
async def test_the_daemons_loop_goes_before_workers_and_libtorrent(method, tmp_path):
    ours = os.getpriority(os.PRIO_PROCESS, 0)
    arguments = ["--workers=1", "--hops=0", "--nice=4", f"--start-method={method}"]
    async with daemon(tmp_path, *arguments) as (running, address), aiohttp.ClientSession() as http:
        magnet = "magnet:?xt=urn:btih:" + "ab" * 20  # opens libtorrent's session
        async with http.post(f"http://{address}/api/torrents", json={"source": magnet}) as response:
            assert response.status == 201
        async with http.get(f"http://{address}/api/pool") as response:
            (child,) = [child for child in (await response.json())["children"] if child["state"] == "running"]
        assert set(nice_of_threads(child["pid"]).values()) == {ours + 4}
        threads = nice_of_threads(running.pid)
        assert threads.pop(running.pid) == ours
        assert ours + 4 in threads.values()
