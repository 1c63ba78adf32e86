"""One child: its process, its three streams, its log."""

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Callable
from typing import Any, Protocol

from google.protobuf.message import Message

from tunnel_pool.pool.command import descriptor_map
from tunnel_pool.pool.launching import Descriptors, ProcessEvents, RunningProcess, describe_end
from tunnel_pool.pool.log import ChildLog
from tunnel_pool.rpc.calls import Answered, Called, ControlChannel, Failed, Notified, settle
from tunnel_pool.rpc.descriptors import CONTROL_IN, CONTROL_OUT, EXIT_IN, EXIT_OUT, STDERR, STDOUT
from tunnel_pool.rpc.errors import BrokenStreamError, CallError
from tunnel_pool.rpc.exit import ExitDecoder, ExitFrame, ExitKind, encode
from tunnel_pool.rpc.sockets import socket_pair
from tunnel_pool.rpc.streams import DatagramReader, DatagramWriter, enlarge_pipe
from tunnel_pool.system.priority import make_yield

CALL_TIMEOUT_S = 15.0
END_OF_FILE_GRACE_S = 0.5


class ChildListener(Protocol):
    """Hears from a child process what happens to it."""

    def child_notified(self, child: "ChildProcess", name: str, message: Any) -> None: ...

    async def child_called(self, child: "ChildProcess", name: str, message: Any) -> Message:
        """Return the answer to a call of the child's. Raises RemoteError."""

    def child_sent_datagram(self, child: "ChildProcess", circuit_id: int, address: bytes, payload: bytes) -> None: ...

    def child_lost(self, child: "ChildProcess", why: str) -> None:
        """Hear that a stream broke; the process may still be there."""

    def child_ended(self, child: "ChildProcess", how: str) -> None:
        """Hear, once, that the process is gone and every pending call has failed."""


Start = Callable[[Descriptors, ProcessEvents], RunningProcess]
"""Starts a process of the pool's, with these descriptors. Raises OSError."""


class ChildProcess:
    """A child from its start to its end."""

    def __init__(self, slot: int, listener: ChildListener, loop: asyncio.AbstractEventLoop, nice: int = 0) -> None:
        self.slot = slot
        self._nice = nice
        self.exit_code: int | None = None  # once it has ended; -N for signal N
        self._process: RunningProcess | None = None
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

    def start(self, start: Start) -> None:
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
            self._process = start(descriptor_map(null, child_in, child_out, taking.fileno()), self)
            ours.pop_all()
        make_yield(self.pid, self._nice)
        enlarge_pipe(data_out)
        self.datagrams = DatagramWriter(data_out, self._loop)
        self._reader = DatagramReader(data_in, self._loop, self._datagram_received, self._data_lost)

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

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
        if self._process is not None:
            self._process.kill()

    def expire_calls(self, now_s: float) -> None:
        for failed in self._channel.expire(now_s):
            settle(failed)

    def _write(self, descriptor: int, data: bytes) -> None:
        if self._process is not None:
            self._process.write(descriptor, data)

    # What the process does (ProcessEvents)

    def received(self, descriptor: int, data: bytes) -> None:
        try:
            if descriptor == CONTROL_OUT:
                self._control_received(data)
            elif descriptor == EXIT_OUT:
                for frame in self._exit_decoder.feed(data):
                    self._report = frame
            elif descriptor in (STDOUT, STDERR):
                self._log.received(data)
        except BrokenStreamError as error:
            self._listener.child_lost(self, str(error))

    def closed(self, descriptor: int) -> None:
        if descriptor == EXIT_OUT and self._report is None:
            self._lose_soon("end of file on its exit stream")

    def ended(self, code: int) -> None:
        self.exit_code = code
        if self._losing is not None:
            self._losing.cancel()
        self._log.ended()
        for answering in self._answering:
            answering.cancel()
        how = self._how_it_ended(code)
        for failed in self._channel.close(f"child {self.slot} ended: {how}"):
            settle(failed)
        self.datagrams.close()
        self.sockets.close()
        if self._reader is not None:
            self._reader.close()
        self._listener.child_ended(self, how)

    def _how_it_ended(self, code: int) -> str:
        if self._report is not None:
            return f"{self._report.kind.name.lower()} {self._report.text}".strip()
        return describe_end(code) if code < 0 else f"{describe_end(code)}: {self._log.last_line}"

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
        """Report the child as lost in a moment, as most often its end, with the reason, is about to be told."""
        if self._losing is None:
            self._losing = self._loop.call_later(END_OF_FILE_GRACE_S, self._listener.child_lost, self, why)
