"""The main process' side of the template (child/template.py): started, asked for children, replaced when it ends."""

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import psutil
from twisted.internet.error import ProcessExitedAlready
from twisted.internet.process import Process, reapProcessHandlers
from twisted.internet.protocol import ProcessProtocol
from twisted.python.failure import Failure

from rpc.descriptors import REQUESTS, STDERR, STDIN, STDOUT
from rpc.forking import FORK, MAX_MESSAGE_BYTES, READY, decode_reply
from rpc.lifeline import adopt_orphans
from rpc.sockets import socket_pair
from tunnel_pool.pool.log import ChildLog
from tunnel_pool.pool.policy import MAX_START_FAILURES, START_TIMEOUT_S, restart_delay_s
from tunnel_pool.priority import make_yield

FORK_TIMEOUT_S = 2.0

logger = logging.getLogger(__name__)


class ForkedProcess(Process):
    """Twisted's process, forked of the template instead of us; it becomes our child all the same."""

    def __init__(self, reactor: Any, fork: Callable[[Sequence[int]], int], protocol: ProcessProtocol, **more: Any):
        self._fork_of_template = fork
        super().__init__(reactor, executable="", args=(), environment={}, path=None, proto=protocol, **more)

    def _fork(self, *arguments: object, fdmap: Mapping[int, int], **more: object) -> None:
        self.pid = self._fork_of_template([fdmap[number] for number in sorted(fdmap)])


def reap_strangers() -> None:
    """End the zombies that we have adopted and nobody waits for, as of a template that was killed while it forked."""
    for child in psutil.Process().children():
        with contextlib.suppress(OSError, psutil.Error):
            if child.pid not in reapProcessHandlers and child.status() == psutil.STATUS_ZOMBIE:
                os.waitpid(child.pid, os.WNOHANG)


class Template(ProcessProtocol):
    """In place of Twisted's reactor, as far as `ChildProcess.spawn` needs one, while `is_ready`."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        loop: asyncio.AbstractEventLoop,
        on_changed: Callable[[], object],
        nice: int = 0,
    ) -> None:
        """`on_changed` is called when it is ready, and when it is given up (`failure`). Raises OSError."""
        self._command = command
        self._environment = environment
        self._loop = loop
        self._on_changed = on_changed
        self._nice = nice
        self._requests: socket.socket | None = None
        self._log = ChildLog("template")
        self._failures = 0
        self._proven = False  # whether any ever was ready: then trouble is taken to pass
        self._stopping = False
        self._ended = asyncio.Event()
        self._next: asyncio.TimerHandle | None = None  # the next start, or the end of our patience with this one
        self.is_ready = False
        self.failure: str | None = None
        adopt_orphans()
        self._start()

    @property
    def pid(self) -> int | None:
        return self.transport.pid if self.transport is not None else None

    def spawnProcess(
        self,
        processProtocol: ProcessProtocol,
        executable: str,
        args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        *,
        childFDs: Mapping[int, int | str],
    ) -> ForkedProcess:
        """As IReactorProcess has it; program and environment are the template's. Raises OSError."""
        from twisted.internet import reactor

        return ForkedProcess(reactor, self._ask_for_child, processProtocol, childFDs=childFDs)

    async def stop(self) -> None:
        """It has nothing to put in order."""
        self._stopping = True
        if self._next is not None:
            self._next.cancel()
        self._close_requests()
        self._kill()
        await self._ended.wait()

    def _start(self) -> None:
        from twisted.internet import reactor

        self._ended.clear()
        with contextlib.ExitStack() as its:
            try:
                self._requests, taking = socket_pair()
                its.callback(taking.close)
                null = os.open(os.devnull, os.O_RDONLY)
                its.callback(os.close, null)
                reactor.spawnProcess(
                    self,
                    self._command[0],
                    args=list(self._command),
                    env=dict(self._environment),
                    childFDs={STDIN: null, STDOUT: "r", STDERR: "r", REQUESTS: taking.fileno()},
                )
            except OSError as error:
                self._ended_with(f"cannot start a process: {error.strerror or error}")
            else:
                self._loop.add_reader(self._requests, self._told)
                self._next = self._loop.call_later(START_TIMEOUT_S, self._kill)

    def _told(self) -> None:
        """Before it is asked for anything, it says that it is ready."""
        assert self._requests is not None
        with contextlib.suppress(OSError):
            self.is_ready = self._requests.recv(MAX_MESSAGE_BYTES) == READY
        self._loop.remove_reader(self._requests)
        if self.is_ready and self._next is not None:
            self._next.cancel()
            self._proven = True
            self._failures = 0
            self._on_changed()

    def _ask_for_child(self, descriptors: Sequence[int]) -> int:
        """The pid. Waits for the answer, a few milliseconds. Raises OSError."""
        if self._requests is None or not self.is_ready:
            raise ChildProcessError("the template is not ready")
        self._requests.settimeout(FORK_TIMEOUT_S)
        try:
            socket.send_fds(self._requests, [FORK], descriptors)
            return decode_reply(self._requests.recv(MAX_MESSAGE_BYTES))
        except TimeoutError:
            self._failures -= 1  # it did start: what ends now is no failed start
            self._close_requests()  # its late answer is for nobody
            self._kill()
            raise

    def _kill(self) -> None:
        if self.transport is not None:
            with contextlib.suppress(ProcessExitedAlready):
                self.transport.signalProcess("KILL")

    def _close_requests(self) -> None:
        """The template ends when it sees this."""
        self.is_ready = False
        if self._requests is not None:
            self._loop.remove_reader(self._requests)
            self._requests.close()
            self._requests = None

    # What Twisted tells

    def connectionMade(self) -> None:
        make_yield(self.transport.pid, self._nice)  # its forks have threads before we hear of them

    def childDataReceived(self, childFD: int, data: bytes) -> None:
        self._log.received(data)

    def processEnded(self, reason: Failure) -> None:
        self._log.ended()
        reap_strangers()
        self._ended_with(f"{reason.getErrorMessage()} {self._log.last_line}")

    def _ended_with(self, how: str) -> None:
        self._failures += not self.is_ready
        self._close_requests()
        self._ended.set()
        if self._next is not None:
            self._next.cancel()
        if self._stopping:
            return
        if self._failures >= MAX_START_FAILURES and not self._proven:
            self.failure = f"the template of the workers cannot start: {how}"
            self._on_changed()
        else:
            logger.warning("The template ended and is replaced; its children go on: %s", how)
            self._next = self._loop.call_later(restart_delay_s(self._failures), self._start)
