"""asyncio starts processes, in a program that embeds the pool and runs no Twisted. Linux only: pidfd_open(2)."""

import asyncio
import contextlib
import fcntl
import os
import signal
from collections.abc import Mapping, Sequence

from tunnel_pool.pool.launching import Descriptors, Fork, ProcessEvents

READ_BYTES = 1 << 16
UNKNOWN_CODE = 255  # the code that asyncio gives, too
ABOVE_ALL = 64  # descriptors of ours wait above those that a process gets, so that none is overwritten


class AsyncioLauncher:
    """A Launcher over posix_spawn(3).

    What libraries in C opened without close-on-exec reaches the process as well; a child of the pool closes that before
    it does anything else (tunnel_pool/__main__.py).
    """

    def __init__(self) -> None:
        self._waiting: set[int] = set()

    def launch(
        self, command: Sequence[str], environment: Mapping[str, str], descriptors: Descriptors, events: ProcessEvents
    ) -> "AsyncioProcess":
        def spawn(fds: Sequence[int]) -> int:
            moves = zip(fds, sorted(descriptors), strict=True)
            actions = [(os.POSIX_SPAWN_DUP2, ours, theirs) for ours, theirs in moves]
            return os.posix_spawn(command[0], list(command), environment, file_actions=actions)

        return self.adopt(spawn, descriptors, events)

    def adopt(self, fork: Fork, descriptors: Descriptors, events: ProcessEvents) -> "AsyncioProcess":
        readers: dict[int, int] = {}
        writers: dict[int, int] = {}
        with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
            given = []
            for descriptor, what in sorted(descriptors.items()):
                if isinstance(what, int):
                    fd = what
                else:
                    read, write = os.pipe()
                    kept, fd, ends = (read, write, readers) if what == "r" else (write, read, writers)
                    ends[descriptor] = kept
                    ours.callback(os.close, kept)
                    theirs.callback(os.close, fd)
                given.append(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, ABOVE_ALL))
                theirs.callback(os.close, given[-1])
            pid = fork(given)
            try:
                pidfd = os.pidfd_open(pid)
            except OSError:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                raise
            ours.pop_all()
        self._waiting.add(pid)
        return AsyncioProcess((pid, pidfd), readers, writers, events, self._waiting)

    def waits_for(self, pid: int) -> bool:
        return pid in self._waiting


class AsyncioProcess:
    """A RunningProcess; the pipes are served by the running loop."""

    def __init__(
        self,
        process: tuple[int, int],
        readers: dict[int, int],
        writers: dict[int, int],
        events: ProcessEvents,
        waiting: set[int],
    ) -> None:
        """`process` is its pid and a pidfd; `readers` and `writers` are our ends of the pipes, by its descriptor."""
        self._pid, self._pidfd = process
        self._events = events
        self._waiting = waiting
        self._loop = asyncio.get_running_loop()
        self._readers = readers
        self._writers = {descriptor: _Writer(fd, self._loop) for descriptor, fd in writers.items()}
        self._code: int | None = None
        for descriptor, fd in readers.items():
            os.set_blocking(fd, False)
            self._loop.add_reader(fd, self._readable, descriptor, fd)
        self._loop.add_reader(self._pidfd, self._exited)

    @property
    def pid(self) -> int:
        return self._pid

    def write(self, descriptor: int, data: bytes) -> None:
        self._writers[descriptor].write(data)

    def kill(self) -> None:
        if self._code is None:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def _readable(self, descriptor: int, fd: int) -> None:
        try:
            data = os.read(fd, READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._events.received(descriptor, data)
            return
        self._loop.remove_reader(fd)
        os.close(fd)
        del self._readers[descriptor]
        self._events.closed(descriptor)
        self._end()

    def _exited(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._waiting.discard(self._pid)
        try:
            _, status = os.waitpid(self._pid, 0)
            self._code = os.waitstatus_to_exitcode(status)
        except ChildProcessError:  # the program that embeds the pool ignores SIGCHLD, or waits for everybody's children
            self._code = UNKNOWN_CODE
        for writer in self._writers.values():
            writer.close()
        self._end()

    def _end(self) -> None:
        if self._code is not None and not self._readers:
            self._events.ended(self._code)


class _Writer:
    """Our end of a pipe that we write; what the pipe does not take waits in order."""

    def __init__(self, fd: int, loop: asyncio.AbstractEventLoop) -> None:
        os.set_blocking(fd, False)
        self._fd = fd
        self._loop = loop
        self._waiting = bytearray()
        self._closed = False

    def write(self, data: bytes) -> None:
        if self._closed:
            return
        self._waiting += data
        if len(self._waiting) == len(data):
            self._flush()

    def _flush(self) -> None:
        try:
            del self._waiting[: os.write(self._fd, self._waiting)]
        except BlockingIOError:
            pass
        except OSError:  # nobody reads any more; the end of the process tells why
            self.close()
            return
        if self._waiting:
            self._loop.add_writer(self._fd, self._flush)
        else:
            self._loop.remove_writer(self._fd)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._loop.remove_writer(self._fd)
            os.close(self._fd)
