"""Twisted starts processes, in a process that runs its reactor."""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from twisted.internet.error import ProcessExitedAlready
from twisted.internet.process import Process, reapProcessHandlers
from twisted.internet.protocol import ProcessProtocol
from twisted.python.failure import Failure

from tunnel_pool.pool.launching import Descriptors, Fork, ProcessEvents


class TwistedLauncher:
    """A Launcher over Twisted's IReactorProcess."""

    def launch(
        self, command: Sequence[str], environment: Mapping[str, str], descriptors: Descriptors, events: ProcessEvents
    ) -> "TwistedProcess":
        from twisted.internet import reactor

        transport = reactor.spawnProcess(
            _Protocol(events), command[0], args=list(command), env=dict(environment), childFDs=dict(descriptors)
        )
        return TwistedProcess(transport)

    def adopt(self, fork: Fork, descriptors: Descriptors, events: ProcessEvents) -> "TwistedProcess":
        from twisted.internet import reactor

        return TwistedProcess(_ForkedProcess(reactor, fork, _Protocol(events), childFDs=dict(descriptors)))

    def waits_for(self, pid: int) -> bool:
        return pid in reapProcessHandlers


class TwistedProcess:
    """A RunningProcess."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self._pid = int(transport.pid)

    @property
    def pid(self) -> int:
        return self._pid

    def write(self, descriptor: int, data: bytes) -> None:
        if descriptor in self._transport.pipes:
            self._transport.writeToChild(descriptor, data)

    def kill(self) -> None:
        with contextlib.suppress(ProcessExitedAlready):
            self._transport.signalProcess("KILL")


class _Protocol(ProcessProtocol):
    """Tells `events` what Twisted tells."""

    def __init__(self, events: ProcessEvents) -> None:
        self._events = events

    def childDataReceived(self, childFD: int, data: bytes) -> None:
        self._events.received(childFD, data)

    def childConnectionLost(self, childFD: int) -> None:
        self._events.closed(childFD)

    def processEnded(self, reason: Failure) -> None:
        number = getattr(reason.value, "signal", None)
        self._events.ended(-number if number is not None else int(getattr(reason.value, "exitCode", None) or 0))


class _ForkedProcess(Process):
    """Twisted's process, forked of another process instead of us."""

    def __init__(self, reactor: Any, fork: Fork, protocol: ProcessProtocol, **more: Any) -> None:
        self._fork_of_another = fork
        super().__init__(reactor, executable="", args=(), environment={}, path=None, proto=protocol, **more)

    def _fork(self, *arguments: object, fdmap: Mapping[int, int], **more: object) -> None:
        self.pid = self._fork_of_another([fdmap[number] for number in sorted(fdmap)])
