"""One asyncio loop for everything, with Twisted's reactor on top of it."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Coroutine
from typing import Any, NamedTuple

END_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
IMPATIENCE_S = 1.0

_loop: asyncio.AbstractEventLoop | None = None


def install() -> asyncio.AbstractEventLoop:
    """Return the loop with the reactor running on it, made once.

    Signals are asyncio's alone: Twisted would take the wake-up descriptor
    from it, so children are reaped from here.
    """
    global _loop  # noqa: PLW0603 - a process has one reactor
    if _loop is None:
        from twisted.internet import asyncioreactor
        from twisted.internet.process import reapAllProcesses

        _loop = asyncio.new_event_loop()
        asyncio.set_event_loop(_loop)
        asyncioreactor.install(_loop)
        from twisted.internet import reactor

        reactor.startRunning(installSignalHandlers=False)
        _loop.add_signal_handler(signal.SIGCHLD, reapAllProcesses)
    return _loop


class Ended(NamedTuple):
    """Holds what a program returned (None when it was cancelled), and the signal that asked it to end, if one did."""

    result: Any
    signal: signal.Signals | None

    @property
    def exit_code(self) -> int | None:
        """Return the exit code that a shell would see: 128 and the signal; None when no signal decides."""
        return 128 + self.signal if self.signal is not None else None


def run(main: Coroutine[Any, Any, Any], loop: asyncio.AbstractEventLoop | None = None) -> Ended:
    """Run to its end, on the reactor's loop unless another is given.

    SIGINT, SIGTERM and SIGHUP cancel it; it may clean up and return something all the same. A second signal after
    a second or more ends the process at once.
    """
    loop = loop or install()
    task = loop.create_task(main)
    received: list[tuple[signal.Signals, float]] = []

    def interrupt(number: signal.Signals) -> None:
        received.append((number, loop.time()))
        if len(received) == 1:
            task.cancel()
        elif loop.time() - received[0][1] > IMPATIENCE_S:
            os._exit(128 + number)

    # nohup leaves SIGHUP ignored, and a shell SIGINT for what it starts with &.
    numbers = [number for number in END_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    for number in numbers:
        loop.add_signal_handler(number, interrupt, number)
    try:
        result = loop.run_until_complete(task)
    except asyncio.CancelledError:
        result = None
    finally:
        _end_tasks(loop)
        for number in numbers:
            loop.remove_signal_handler(number)
    return Ended(result, received[0][0] if received else None)


def _end_tasks(loop: asyncio.AbstractEventLoop) -> None:
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
