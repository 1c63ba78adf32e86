"""Nice values (nice(7)): threads and processes that move data yield the cores to those that answer requests.

On Linux each thread has a nice value, and gives it to those that it starts.
Elsewhere a process has one, and nothing here changes it.
"""

import contextlib
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

MAX_NICE = 19

T = TypeVar("T")


def make_yield(pid: int, nice: int) -> None:
    """Make a process that has just begun, and the threads that it will start, nicer than us by so much."""
    if sys.platform == "linux" and nice:
        with contextlib.suppress(OSError):  # it has ended, or is nicer already, or we may not: it works without
            os.setpriority(os.PRIO_PROCESS, pid, min(os.getpriority(os.PRIO_PROCESS, 0) + nice, MAX_NICE))


def with_yielding_threads(nice: int, make: Callable[[], T]) -> T:
    """Return what `make` returns; the threads that it starts are nicer than ours by so much."""
    if not nice:
        return make()
    with ThreadPoolExecutor(1, initializer=lambda: make_yield(threading.get_native_id(), nice)) as executor:
        return executor.submit(make).result()
