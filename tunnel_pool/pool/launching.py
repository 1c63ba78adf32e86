"""The interface by which the pool starts processes with descriptors of its choice.

Twisted implements it in our own main process (twisted_launcher.py), asyncio in a program that embeds the pool
(asyncio_launcher.py).
"""

import signal
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

Descriptors = Mapping[int, int | str]
"""Maps each descriptor of the process to one of ours; "r" is a new pipe that we read, "w" one that we write."""

Fork = Callable[[Sequence[int]], int]
"""Forks a process that gets these descriptors of ours as its own, in order; returns its pid. Raises OSError."""


class ProcessEvents(Protocol):
    """Hears what a process does."""

    def received(self, descriptor: int, data: bytes) -> None:
        """Take bytes that came by a pipe that we read."""

    def closed(self, descriptor: int) -> None:
        """Hear that the pipe is at its end."""

    def ended(self, code: int) -> None:
        """Called once, after the end of all pipes that we read, with the exit code, or -N for signal N."""


class RunningProcess(Protocol):
    """A process that was started."""

    @property
    def pid(self) -> int: ...

    def write(self, descriptor: int, data: bytes) -> None:
        """Write to a pipe; what does not fit waits here. Nothing happens when the pipe is closed."""

    def kill(self) -> None:
        """Send SIGKILL, if the process is still there."""


class Launcher(Protocol):
    """Starts processes."""

    def launch(
        self, command: Sequence[str], environment: Mapping[str, str], descriptors: Descriptors, events: ProcessEvents
    ) -> RunningProcess:
        """Start a program, which gets these descriptors. Raises OSError."""

    def adopt(self, fork: Fork, descriptors: Descriptors, events: ProcessEvents) -> RunningProcess:
        """Adopt a process that another one forked, which becomes our child. Raises OSError."""

    def waits_for(self, pid: int) -> bool:
        """Return whether this launcher waits for the process, to report its end to a ProcessEvents."""


def describe_end(code: int) -> str:
    """Say how a process ended, by the code of ProcessEvents.ended."""
    if code >= 0:
        return f"exit code {code}"
    return f"killed by signal {-code} ({signal.Signals(-code).name})" if -code in set(signal.Signals) else f"{code}"
