"""One asyncio loop for everything, with Twisted's reactor on top of it."""

import asyncio
import contextlib
import signal
import sys
from collections.abc import Coroutine
from typing import Any, TypeVar

from twisted.internet import asyncioreactor
from twisted.internet.process import reapAllProcesses

T = TypeVar("T")

_loop: asyncio.AbstractEventLoop | None = None


def install() -> asyncio.AbstractEventLoop:
    """The loop with the reactor running on it, made once.

    Signals are asyncio's alone: Twisted would take the wake-up descriptor
    from it, so children are reaped from here.
    """
    global _loop  # noqa: PLW0603 - a process has one reactor
    if _loop is None:
        _loop = asyncio.new_event_loop()
        asyncio.set_event_loop(_loop)
        asyncioreactor.install(_loop)
        from twisted.internet import reactor

        reactor.startRunning(installSignalHandlers=False)
        _loop.add_signal_handler(signal.SIGCHLD, reapAllProcesses)
    return _loop


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run to its end. SIGINT and SIGTERM cancel it once; it may clean up, then KeyboardInterrupt is raised."""
    loop = install()
    task = loop.create_task(main)
    interrupted = False

    def interrupt() -> None:
        nonlocal interrupted
        if not interrupted:
            interrupted = True
            task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, interrupt)
    try:
        return loop.run_until_complete(task)
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    finally:
        _end_tasks(loop)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.remove_signal_handler(number)
        sys.stderr.flush()


def _end_tasks(loop: asyncio.AbstractEventLoop) -> None:
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
