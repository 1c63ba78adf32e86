"""An aiohttp application at an address, and bounds on who only holds its connections."""

import asyncio
import contextlib
import logging
import os
import socket
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler

from tunnel_pool.overlay.ground.config import HostPort
from tunnel_pool.system.errors import UserError
from tunnel_pool.system.shares import ROOM, Shares, Visitor

SHUTDOWN_S = 2.0  # how long requests that are being answered may take at the end
FIRST_REQUEST_S = 10.0  # within which a new connection has to send a whole request; aiohttp has no bound for the first
KEPT_S = 75.0  # how long a connection stays open after an answer (aiohttp: an hour)
BACKLOG = 4096  # a full queue has the kernel drop connections, which are tried again after a second
ACCEPTED_AT_ONCE = 32  # connections, then the loop's other work has its turn
NO_DESCRIPTORS_S = 1.0  # how long nothing is accepted when there are no descriptors left
MAX_REFUSED = 64  # connections that are left open until the answer, why they are refused, has been read
REFUSAL_S = 2.0  # how long that may take
REFUSED = (401, 403, 408, 421, 429)  # statuses after which a connection is closed
FEW = 32  # connections that are closed and not forgotten yet
# The key of a request's visitor; aiohttp before 3.14 takes strings alone.
VISITOR: Any = web.RequestKey("visitor", Visitor) if hasattr(web, "RequestKey") else "visitor"

logger = logging.getLogger(__name__)


class RefusedError(Exception):
    """Says that a connection is not served; `answer` is the HTTP response that it gets, whatever it asks."""

    def __init__(self, answer: bytes) -> None:
        super().__init__()
        self.answer = answer


VisitorOf = Callable[[socket.socket], Visitor]
"""Tells who has opened a connection that was just accepted. Raises RefusedError."""


def by_address(sock: socket.socket) -> Visitor:
    """Return the address at the other end. Raises OSError when the connection is gone."""
    return Visitor(str(sock.getpeername()[0]))


@dataclass(slots=True)
class _Held:
    """Holds what is known of an open connection."""

    visitor: Visitor
    is_made: bool = False  # its protocol has a transport, or had one
    has_asked: bool = False  # a request has come


class _Door:
    """Accepts connections: finds out whose they are, keeps to everybody's share, and ends the silent ones."""

    def __init__(self, listening: socket.socket, server: web.Server, visitor_of: VisitorOf) -> None:
        self._listening, self._server, self._visitor_of = listening, server, visitor_of
        self._shares = Shares()
        self._held: dict[asyncio.Protocol, _Held] = {}
        self._refused: deque[tuple[float, socket.socket]] = deque()  # since when, the oldest first
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        listening.setblocking(False)
        self._loop.add_reader(listening.fileno(), self._accept)

    def close(self) -> None:
        self._loop.remove_reader(self._listening.fileno())
        self._listening.close()
        for task in self._tasks:
            task.cancel()
        while self._refused:
            self._refused.popleft()[1].close()

    async def answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Have a request answered; the connection is busy meanwhile. Who was refused has to connect again."""
        protocol = request.protocol
        if (held := self._held.get(protocol)) is not None:
            held.has_asked = True
            request[VISITOR] = held.visitor
        self._shares.begins(protocol)
        try:
            response = await handler(request)
        except web.HTTPException as error:
            if error.status in REFUSED:
                error.force_close()
            raise
        finally:
            self._shares.ends(protocol)
        if response.status in REFUSED and not response.prepared:
            response.force_close()
        return response

    def _accept(self) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                sock, _ = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                logger.error("No connection can be accepted for a moment: %s", error.strerror)
                self._loop.remove_reader(self._listening.fileno())
                self._loop.call_later(NO_DESCRIPTORS_S, self._accept_again)
                return
            sock.setblocking(False)
            self._take(sock)

    def _accept_again(self) -> None:
        if self._listening.fileno() >= 0:
            self._loop.add_reader(self._listening.fileno(), self._accept)

    def _take(self, sock: socket.socket) -> None:
        try:
            visitor = self._visitor_of(sock)
        except RefusedError as refused:
            self._refuse(sock, refused.answer)
            return
        except OSError:  # it is gone
            sock.close()
            return
        decision = self._shares.decide(visitor)
        if decision != ROOM or len(self._held) > 2 * len(self._server.connections) + FEW:
            self._forget_closed()
            decision = self._shares.decide(visitor)
        if not decision.is_taken:
            sock.close()
            return
        if isinstance(decision.ends, asyncio.Protocol):
            self._end(decision.ends)
        protocol = self._server()
        self._shares.opened(protocol, visitor)
        self._held[protocol] = _Held(visitor)
        self._spawn(sock, protocol)
        self._loop.call_later(FIRST_REQUEST_S, self._end_if_silent, protocol)

    def _refuse(self, sock: socket.socket, answer: bytes) -> None:
        """Answer at once, whatever is asked; nothing of it is read.

        A socket with unread bytes that is closed has its other end forget what it has not read either.
        """
        with contextlib.suppress(OSError):
            sock.send(answer)
            sock.shutdown(socket.SHUT_WR)
        if not self._refused:
            self._loop.call_later(REFUSAL_S, self._close_refused)
        self._refused.append((self._loop.time(), sock))
        if len(self._refused) > MAX_REFUSED:
            self._refused.popleft()[1].close()

    def _close_refused(self) -> None:
        """Close those that had the time to read the answer."""
        while self._refused and self._loop.time() - self._refused[0][0] >= REFUSAL_S:
            self._refused.popleft()[1].close()
        if self._refused:
            self._loop.call_later(REFUSAL_S, self._close_refused)

    def _spawn(self, sock: socket.socket, protocol: asyncio.Protocol) -> None:
        task = self._loop.create_task(self._connect(sock, protocol))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, sock: socket.socket, protocol: asyncio.Protocol) -> None:
        try:
            await self._loop.connect_accepted_socket(lambda: protocol, sock)
        except OSError:
            sock.close()
        if (held := self._held.get(protocol)) is not None:
            held.is_made = True

    def _forget_closed(self) -> None:
        for protocol in [key for key, held in self._held.items() if held.is_made and _transport_of(key) is None]:
            self._forget(protocol)

    def _forget(self, protocol: asyncio.Protocol) -> None:
        self._shares.closed(protocol)
        self._held.pop(protocol, None)

    def _end_if_silent(self, protocol: asyncio.Protocol) -> None:
        if protocol in self._held and not self._held[protocol].has_asked:
            self._end(protocol)

    def _end(self, protocol: asyncio.Protocol) -> None:
        self._forget(protocol)
        if (transport := _transport_of(protocol)) is not None:
            transport.abort()


def _transport_of(protocol: asyncio.Protocol) -> asyncio.Transport | None:
    """Return the transport of one of aiohttp's protocols, None once its connection is lost."""
    transport: asyncio.Transport | None = getattr(protocol, "transport", None)
    return transport


@asynccontextmanager
async def serving_app(
    app: web.Application, listen: HostPort, cannot: str, hint: str = "", visitor_of: VisitorOf = by_address
) -> AsyncIterator[HostPort]:
    """Serve the application; yields where it listens. Raises UserError: `cannot`, why, and the hint."""
    doors: list[_Door] = []

    @web.middleware
    async def noted(request: web.Request, handler: Handler) -> web.StreamResponse:
        return await doors[0].answer(request, handler)

    app.middlewares.insert(0, noted)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_S, keepalive_timeout=KEPT_S)
    await runner.setup()
    assert runner.server is not None
    try:
        try:
            family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
            sock = socket.create_server(listen, family=family, backlog=BACKLOG)
        except OSError as error:
            raise UserError(f"{cannot} {listen}: {os.strerror(error.errno or 0)}{hint}") from None
        doors.append(_Door(sock, runner.server, visitor_of))
        try:
            yield HostPort(*sock.getsockname()[:2])
        finally:
            doors[0].close()
    finally:
        await runner.cleanup()
