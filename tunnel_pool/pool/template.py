"""The main process' side of the template (child/template.py): started, asked for children, replaced when it ends."""

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence

import psutil

from tunnel_pool.pool.launching import Descriptors, Launcher, ProcessEvents, RunningProcess, describe_end
from tunnel_pool.pool.log import ChildLog
from tunnel_pool.pool.policy import MAX_START_FAILURES, START_TIMEOUT_S, restart_delay_s
from tunnel_pool.rpc.descriptors import REQUESTS, STDERR, STDIN, STDOUT
from tunnel_pool.rpc.forking import FORK, MAX_MESSAGE_BYTES, READY, decode_reply
from tunnel_pool.rpc.lifeline import adopt_orphans
from tunnel_pool.rpc.sockets import socket_pair
from tunnel_pool.system.priority import make_yield

FORK_TIMEOUT_S = 2.0
CLOCK_S = 1.0  # the kernel's account of a start may differ from ours by so much

logger = logging.getLogger(__name__)


def reap_strangers(launcher: Launcher, since_s: float) -> None:
    """Reap zombies that nobody waits for, such as the child of a template that was killed while it forked.

    Processes older than `since_s` (s since the epoch, the template's start) are spared, as a program that embeds
    the pool may have children of its own.
    """
    for child in psutil.Process().children():
        with contextlib.suppress(OSError, psutil.Error):
            is_strange = not launcher.waits_for(child.pid) and child.create_time() >= since_s - CLOCK_S
            if is_strange and child.status() == psutil.STATUS_ZOMBIE:
                os.waitpid(child.pid, os.WNOHANG)


class Template:
    """The process that children are forked of, while `is_ready`."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        launcher: Launcher,
        on_changed: Callable[[], object],
        nice: int = 0,
    ) -> None:
        """`on_changed` is called when it is ready, and when it is given up (`failure`). Raises OSError."""
        self._command = command
        self._environment = environment
        self._launcher = launcher
        self._loop = asyncio.get_running_loop()
        self._process: RunningProcess | None = None
        self._started_s = 0.0
        self._on_changed = on_changed
        self._nice = nice
        self._requests: socket.socket | None = None
        self._log = ChildLog("template")
        self._failures = 0
        self._proven = False  # whether a template was ever ready: then failed starts are retried without end
        self._stopping = False
        self._ended = asyncio.Event()
        self._next: asyncio.TimerHandle | None = None  # timer of the next start, or that kills one not ready in time
        self.is_ready = False
        self.failure: str | None = None
        adopt_orphans()
        self._start()

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    def fork(self, descriptors: Descriptors, events: ProcessEvents) -> RunningProcess:
        """Start a child, which becomes ours though the template forks it. Raises OSError."""
        return self._launcher.adopt(self._ask_for_child, descriptors, events)

    async def stop(self) -> None:
        """Kill the template, which has nothing to put in order, and wait for its end."""
        self._stopping = True
        if self._next is not None:
            self._next.cancel()
        self._close_requests()
        self._kill()
        await self._ended.wait()

    def _start(self) -> None:
        self._ended.clear()
        self._started_s = time.time()
        with contextlib.ExitStack() as its:
            try:
                self._requests, taking = socket_pair()
                its.callback(taking.close)
                null = os.open(os.devnull, os.O_RDONLY)
                its.callback(os.close, null)
                descriptors: Descriptors = {STDIN: null, STDOUT: "r", STDERR: "r", REQUESTS: taking.fileno()}
                self._process = self._launcher.launch(self._command, self._environment, descriptors, self)
            except OSError as error:
                self._ended_with(f"cannot start a process: {error.strerror or error}")
            else:
                make_yield(self._process.pid, self._nice)  # its forks have threads before we hear of them
                self._loop.add_reader(self._requests, self._told)
                self._next = self._loop.call_later(START_TIMEOUT_S, self._kill)

    def _told(self) -> None:
        """Note that the template said that it is ready, as it does before it is asked for anything."""
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
        """Return the child's pid. Waits for the answer, a few milliseconds. Raises OSError."""
        if self._requests is None or not self.is_ready:
            raise ChildProcessError("the template is not ready")
        self._requests.settimeout(FORK_TIMEOUT_S)
        try:
            socket.send_fds(self._requests, [FORK], descriptors)
            return decode_reply(self._requests.recv(MAX_MESSAGE_BYTES))
        except TimeoutError:
            self._failures -= 1  # this one did start: its end now is no failed start
            self._close_requests()  # nobody wants its late answer
            self._kill()
            raise

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    def _close_requests(self) -> None:
        """Close the stream of requests; the template ends when it sees this."""
        self.is_ready = False
        if self._requests is not None:
            self._loop.remove_reader(self._requests)
            self._requests.close()
            self._requests = None

    # What the process does (ProcessEvents)

    def received(self, descriptor: int, data: bytes) -> None:
        self._log.received(data)

    def closed(self, descriptor: int) -> None:
        """Do nothing: the end of the process follows."""

    def ended(self, code: int) -> None:
        self._log.ended()
        reap_strangers(self._launcher, self._started_s)
        self._ended_with(f"{describe_end(code)}: {self._log.last_line}")

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
