"""The control channel without its I/O: calls out, calls in, events. Pure.

`ControlChannel` is the same on both sides. Bytes from the stream go into
`receive`, which returns what happened; `call`, `reply`, `refuse` and `send_event`
return the bytes to write. The caller's `token` (a future, say) comes back with
the answer, exactly once: by a reply, an error, `expire` or `close`.
"""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError, Message

from tunnel_pool.rpc import control_pb2 as pb
from tunnel_pool.rpc.errors import (
    BrokenStreamError,
    CallError,
    CallTimeoutError,
    ConnectionLostError,
    RemoteError,
    TooManyCallsError,
)
from tunnel_pool.rpc.framing import Frame, FrameDecoder, Kind, encode

MAX_PENDING_CALLS = 1024
MAX_ERROR_TEXT_CHARS = 500

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Answered:
    """A call of ours ended well; `result` is the message inside Reply."""

    token: Any
    result: Message


@dataclass(frozen=True, slots=True)
class Failed:
    token: Any
    error: CallError


@dataclass(frozen=True, slots=True)
class Called:
    """The other side calls; answer it with `reply` or `refuse`."""

    request_id: int
    name: str
    message: Message


@dataclass(frozen=True, slots=True)
class Notified:
    """The other side sent an event."""

    name: str
    message: Message


Happening = Answered | Failed | Called | Notified


def settle(happening: Answered | Failed) -> None:
    """End the call whose token is a future, unless its caller has given it up."""
    if happening.token.done():
        return
    if isinstance(happening, Answered):
        happening.token.set_result(happening.result)
    else:
        happening.token.set_exception(happening.error)


def _envelope(kind: Callable[..., Message], name: str, message: Message) -> bytes:
    """Return the bytes of a Request, Reply or Event with one field set."""
    return kind(**{name: message}).SerializeToString()


class _Pending(NamedTuple):
    name: str
    token: Any
    deadline_s: float


class ControlChannel:
    """Keeps the request ids, time-outs and envelopes of one control stream."""

    def __init__(self, max_pending: int = MAX_PENDING_CALLS) -> None:
        self._decoder = FrameDecoder()
        self._pending: dict[int, _Pending] = {}
        self._max_pending = max_pending
        self._last_id = 0
        self._closed: str | None = None

    @property
    def pending(self) -> int:
        return len(self._pending)

    def call(self, name: str, message: Message, token: object, now_s: float, timeout_s: float) -> bytes:
        """Return the bytes of the call `name` (a field of Request).

        Raises ConnectionLostError after `close`, TooManyCallsError when
        MAX_PENDING_CALLS are unanswered; nothing is pending then.
        """
        if self._closed is not None:
            raise ConnectionLostError(self._closed)
        if len(self._pending) >= self._max_pending:
            raise TooManyCallsError(f"{len(self._pending)} calls are unanswered")
        self._last_id = self._last_id % 0xFFFFFFFF + 1
        while self._last_id in self._pending:
            self._last_id = self._last_id % 0xFFFFFFFF + 1
        frame = encode(Kind.REQUEST, self._last_id, _envelope(pb.Request, name, message))
        self._pending[self._last_id] = _Pending(name, token, now_s + timeout_s)
        return frame

    def reply(self, request_id: int, name: str, result: Message) -> bytes:
        return encode(Kind.REPLY, request_id, _envelope(pb.Reply, name, result))

    def refuse(self, request_id: int, code: int, text: str) -> bytes:
        """Return an error reply; `text` is for people and is cut to MAX_ERROR_TEXT_CHARS."""
        error = pb.Error(code=pb.ErrorCode.ValueType(code), text=text[:MAX_ERROR_TEXT_CHARS])
        return encode(Kind.ERROR, request_id, error.SerializeToString())

    async def answer(self, call: Called, work: Awaitable[Message]) -> bytes:
        """Return the bytes that answer a call, once its work is done: what that raises is a refusal.

        RemoteError says why; any other exception is logged here and told as ERROR_UNKNOWN.
        """
        try:
            result = await work
        except RemoteError as error:
            return self.refuse(call.request_id, error.code, error.args[0])
        except Exception:
            logger.exception("Call %s failed", call.name)
            return self.refuse(call.request_id, pb.ERROR_UNKNOWN, "see the log")
        return self.reply(call.request_id, call.name, result)

    def send_event(self, name: str, message: Message) -> bytes:
        return encode(Kind.EVENT, 0, _envelope(pb.Event, name, message))

    def receive(self, data: bytes) -> list[Happening]:
        """Return what these bytes completed. Raises BrokenStreamError; the stream is lost then.

        Answers to calls that timed out or were never made are passed over.
        """
        return [happening for frame in self._decoder.feed(data) for happening in self._happenings(frame)]

    def expire(self, now_s: float) -> list[Failed]:
        """Return the calls whose time is up, each failed with CallTimeoutError."""
        late = [request_id for request_id, call in self._pending.items() if call.deadline_s <= now_s]
        return [self._fail(request_id, CallTimeoutError(self._pending[request_id].name)) for request_id in late]

    def close(self, why: str) -> list[Failed]:
        """Fail every pending call, once, and refuse new ones: the other side is gone."""
        if self._closed is None:
            self._closed = why
        return [self._fail(request_id, ConnectionLostError(why)) for request_id in list(self._pending)]

    def _fail(self, request_id: int, error: CallError) -> Failed:
        return Failed(self._pending.pop(request_id).token, error)

    def _happenings(self, frame: Frame) -> list[Happening]:
        try:
            if frame.kind is Kind.REQUEST:
                return [self._on_request(frame)]
            if frame.kind is Kind.EVENT:
                return self._on_event(frame)
            if frame.kind is Kind.ERROR:
                return self._on_error(frame)
            return self._on_reply(frame)
        except DecodeError as error:
            raise BrokenStreamError(f"control frame is not protobuf: {error}") from None

    def _on_request(self, frame: Frame) -> Called:
        request = pb.Request.FromString(frame.body)
        name = request.WhichOneof("call")
        return Called(frame.request_id, name or "", getattr(request, name) if name else request)

    def _on_event(self, frame: Frame) -> list[Happening]:
        event = pb.Event.FromString(frame.body)
        name = event.WhichOneof("event")
        return [Notified(name, getattr(event, name))] if name else []

    def _on_error(self, frame: Frame) -> list[Happening]:
        error = pb.Error.FromString(frame.body)
        if frame.request_id not in self._pending:
            return []
        return [self._fail(frame.request_id, RemoteError(error.code, error.text))]

    def _on_reply(self, frame: Frame) -> list[Happening]:
        reply = pb.Reply.FromString(frame.body)
        call = self._pending.get(frame.request_id)
        if call is None:
            return []
        name = reply.WhichOneof("result")
        if name != call.name:
            return [self._fail(frame.request_id, CallError(f"{call.name} was answered with {name or 'nothing known'}"))]
        del self._pending[frame.request_id]
        return [Answered(call.token, getattr(reply, name))]
