"""The control stream's side of the child: calls in and out, events out, on the asyncio loop."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from typing import Any

from google.protobuf.message import Message

from tunnel_pool.rpc import control_pb2 as pb
from tunnel_pool.rpc.calls import Answered, Called, ControlChannel, Failed, settle
from tunnel_pool.rpc.descriptors import CONTROL_IN, CONTROL_OUT
from tunnel_pool.rpc.errors import BrokenStreamError

MAX_UNSENT_BYTES = 4 << 20
CALL_TIMEOUT_S = 15.0

Handler = Callable[[Any], Awaitable[Message]]


class ControlStream(asyncio.Protocol):
    """Answers each call with what its handler returns.

    A handler refuses by raising RemoteError; any other exception is logged
    here and answered as ERROR_UNKNOWN.
    """

    def __init__(self, handlers: dict[str, Handler], on_lost: Callable[[str], object]) -> None:
        self._handlers = handlers
        self._on_lost = on_lost
        self._channel = ControlChannel()
        self._writer: asyncio.WriteTransport | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        self._writer, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, os.fdopen(CONTROL_OUT, "wb", 0))
        await loop.connect_read_pipe(lambda: self, os.fdopen(CONTROL_IN, "rb", 0))

    @property
    def unsent_bytes(self) -> int:
        return self._writer.get_write_buffer_size() if self._writer is not None else 0

    def send_event(self, name: str, message: Message) -> None:
        """Send an event. Without room the stream is given up: the main process does not read."""
        self._write(self._channel.send_event(name, message))

    async def call(self, name: str, message: Message) -> Any:
        """Call the main process. Raises CallError."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        self._write(self._channel.call(name, message, answer, time.monotonic(), CALL_TIMEOUT_S))
        expiry = loop.call_later(CALL_TIMEOUT_S, self._expire)
        try:
            return await answer
        finally:
            expiry.cancel()

    def _expire(self) -> None:
        for failed in self._channel.expire(time.monotonic()):
            settle(failed)

    def data_received(self, data: bytes) -> None:
        try:
            happenings = self._channel.receive(data)
        except BrokenStreamError as error:
            self._on_lost(str(error))
            return
        for happening in happenings:
            if isinstance(happening, Called):
                task = asyncio.get_running_loop().create_task(self._answer(happening))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            elif isinstance(happening, Answered | Failed):
                settle(happening)

    def eof_received(self) -> None:
        self._on_lost("end of file")

    async def _answer(self, call: Called) -> None:
        handler = self._handlers.get(call.name)
        if handler is None:
            text = f"call {call.name or 'without a name'} is not known here"
            self._write(self._channel.refuse(call.request_id, pb.ERROR_UNIMPLEMENTED, text))
        else:
            self._write(await self._channel.answer(call, handler(call.message)))

    def _write(self, frame: bytes) -> None:
        if self._writer is None or self._writer.is_closing():
            return
        if self.unsent_bytes > MAX_UNSENT_BYTES:
            self._on_lost(f"{self.unsent_bytes} bytes of control messages were not read")
            return
        self._writer.write(frame)
