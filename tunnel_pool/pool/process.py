"""One spawned child: Twisted's process, its three streams, its log."""

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from google.protobuf.message import Message
from twisted.internet.error import ProcessExitedAlready
from twisted.internet.interfaces import IReactorProcess
from twisted.internet.protocol import ProcessProtocol
from twisted.python.failure import Failure

from rpc.calls import Answered, Called, ControlChannel, Failed, Notified, settle
from rpc.descriptors import CONTROL_IN, CONTROL_OUT, EXIT_IN, EXIT_OUT, STDERR, STDOUT
from rpc.errors import BrokenStreamError, CallError
from rpc.exit import ExitDecoder, ExitFrame, ExitKind, encode
from rpc.sockets import socket_pair
from rpc.streams import DatagramReader, DatagramWriter, enlarge_pipe
from tunnel_pool.pool.command import descriptor_map
from tunnel_pool.pool.log import ChildLog
from tunnel_pool.priority import make_yield

CALL_TIMEOUT_S = 15.0
END_OF_FILE_GRACE_S = 0.5


class ChildListener(Protocol):
    """Who owns the children hears this of each."""

    def child_notified(self, child: "ChildProcess", name: str, message: Any) -> None: ...

    async def child_called(self, child: "ChildProcess", name: str, message: Any) -> Message:
        """The answer to a call of the child's. Raises RemoteError."""

    def child_sent_datagram(self, child: "ChildProcess", circuit_id: int, address: bytes, payload: bytes) -> None: ...

    def child_lost(self, child: "ChildProcess", why: str) -> None:
        """A stream broke; the process may still be there."""

    def child_ended(self, child: "ChildProcess", how: str) -> None:
        """The process is gone, and every pending call has failed. Once."""


class ChildProcess(ProcessProtocol):
    """A child from its spawn to its end."""

    def __init__(self, slot: int, listener: ChildListener, loop: asyncio.AbstractEventLoop, nice: int = 0) -> None:
        self.slot = slot
        self._nice = nice
        self.pid = 0
        self._listener = listener
        self._loop = loop
        self._channel = ControlChannel()
        self._exit_decoder = ExitDecoder()
        self._report: ExitFrame | None = None
        self._log = ChildLog(f"child {slot}")
        self.datagrams: DatagramWriter
        self.sockets: socket.socket
        self._reader: DatagramReader | None = None
        self._losing: asyncio.TimerHandle | None = None
        self._answering: set[asyncio.Task[None]] = set()

    def spawn(self, reactor: IReactorProcess, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start the process. Raises OSError when there are no descriptors or processes left."""
        with contextlib.ExitStack() as ours, contextlib.ExitStack() as the_childs:
            null = os.open(os.devnull, os.O_RDONLY)
            the_childs.callback(os.close, null)
            child_in, data_out = os.pipe()
            the_childs.callback(os.close, child_in)
            ours.callback(os.close, data_out)
            data_in, child_out = os.pipe()
            the_childs.callback(os.close, child_out)
            ours.callback(os.close, data_in)
            self.sockets, taking = socket_pair()
            the_childs.callback(taking.close)
            ours.callback(self.sockets.close)
            reactor.spawnProcess(
                self,
                command[0],
                args=list(command),
                env=dict(environment),
                childFDs=descriptor_map(null, child_in, child_out, taking.fileno()),
            )
            ours.pop_all()
        enlarge_pipe(data_out)
        self.datagrams = DatagramWriter(data_out, self._loop)
        self._reader = DatagramReader(data_in, self._loop, self._datagram_received, self._data_lost)

    # Calls and requests

    def call(self, name: str, message: Message, timeout_s: float = CALL_TIMEOUT_S) -> "asyncio.Future[Any]":
        """Call the child; the future ends with its result or a CallError."""
        future: asyncio.Future[Any] = self._loop.create_future()
        try:
            frame = self._channel.call(name, message, future, time.monotonic(), timeout_s)
        except CallError as error:
            future.set_exception(error)
        else:
            self._write(CONTROL_IN, frame)
        return future

    def request_exit(self, reason: str) -> None:
        """Ask on the exit stream, which works whatever the other two do."""
        self._write(EXIT_IN, encode(ExitKind.REQUEST, reason))

    def kill(self) -> None:
        with contextlib.suppress(ProcessExitedAlready):
            self.transport.signalProcess("KILL")

    def expire_calls(self, now_s: float) -> None:
        for failed in self._channel.expire(now_s):
            settle(failed)

    def _write(self, fd: int, data: bytes) -> None:
        if self.transport is not None and fd in self.transport.pipes:
            self.transport.writeToChild(fd, data)

    # What Twisted tells

    def connectionMade(self) -> None:
        self.pid = self.transport.pid
        make_yield(self.pid, self._nice)

    def childDataReceived(self, childFD: int, data: bytes) -> None:
        try:
            if childFD == CONTROL_OUT:
                self._control_received(data)
            elif childFD == EXIT_OUT:
                for frame in self._exit_decoder.feed(data):
                    self._report = frame
            elif childFD in (STDOUT, STDERR):
                self._log.received(data)
        except BrokenStreamError as error:
            self._listener.child_lost(self, str(error))

    def childConnectionLost(self, childFD: int) -> None:
        if childFD == EXIT_OUT and self._report is None:
            self._lose_soon("end of file on its exit stream")

    def processEnded(self, reason: Failure) -> None:
        if self._losing is not None:
            self._losing.cancel()
        self._log.ended()
        for answering in self._answering:
            answering.cancel()
        how = self._how_it_ended(reason)
        for failed in self._channel.close(f"child {self.slot} ended: {how}"):
            settle(failed)
        self.datagrams.close()
        self.sockets.close()
        if self._reader is not None:
            self._reader.close()
        self._listener.child_ended(self, how)

    def _how_it_ended(self, reason: Failure) -> str:
        if self._report is not None:
            return f"{self._report.kind.name.lower()} {self._report.text}".strip()
        signal_number = getattr(reason.value, "signal", None)
        if signal_number is not None:
            return f"killed by signal {signal_number}"
        code = getattr(reason.value, "exitCode", None)
        return f"exit code {code}: {self._log.last_line}"

    # The streams

    def _control_received(self, data: bytes) -> None:
        for happening in self._channel.receive(data):
            match happening:
                case Answered() | Failed():
                    settle(happening)
                case Notified(name, message):
                    self._listener.child_notified(self, name, message)
                case Called():
                    answering = self._loop.create_task(self._answer(happening))
                    self._answering.add(answering)
                    answering.add_done_callback(self._answering.discard)

    async def _answer(self, call: Called) -> None:
        work = self._listener.child_called(self, call.name, call.message)
        self._write(CONTROL_IN, await self._channel.answer(call, work))

    def _datagram_received(self, circuit_id: int, address: bytes, payload: bytes) -> None:
        self._listener.child_sent_datagram(self, circuit_id, address, payload)

    def _data_lost(self, why: str) -> None:
        self._lose_soon(f"data stream: {why}")

    def _lose_soon(self, why: str) -> None:
        """Most often the process is dead and its end, with the reason, is about to be told."""
        if self._losing is None:
            self._losing = self._loop.call_later(END_OF_FILE_GRACE_S, self._listener.child_lost, self, why)
