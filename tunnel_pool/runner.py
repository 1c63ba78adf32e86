"""One asyncio loop for everything, with Twisted's reactor on top of it."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Coroutine
from typing import Any, TypeVar

from twisted.internet import asyncioreactor
from twisted.internet.process import reapAllProcesses

T = TypeVar("T")

EXIT_INTERRUPTED = 130
END_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
IMPATIENCE_S = 1.0

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
    """Run to its end. SIGINT, SIGTERM and SIGHUP cancel it; it cleans up, then KeyboardInterrupt is raised.

    Who asks again a second later does not want to wait for the cleaning up.
    """
    loop = install()
    task = loop.create_task(main)
    interrupted_s: float | None = None

    def interrupt() -> None:
        nonlocal interrupted_s
        if interrupted_s is None:
            interrupted_s = loop.time()
            task.cancel()
        elif loop.time() - interrupted_s > IMPATIENCE_S:
            os._exit(EXIT_INTERRUPTED)

    # nohup leaves SIGHUP ignored, and a shell SIGINT for what it starts with &.
    numbers = [number for number in END_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    for number in numbers:
        loop.add_signal_handler(number, interrupt)
    try:
        return loop.run_until_complete(task)
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    finally:
        _end_tasks(loop)
        for number in numbers:
            loop.remove_signal_handler(number)
        sys.stderr.flush()


def _end_tasks(loop: asyncio.AbstractEventLoop) -> None:
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
