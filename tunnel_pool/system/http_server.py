"""An aiohttp application at an address, and bounds on who only holds its connections."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web
from aiohttp.typedefs import Handler

from tunnel_pool.overlay.config import HostPort
from tunnel_pool.system.errors import UserError

SHUTDOWN_S = 2.0  # how long requests that are being answered may take at the end
FIRST_REQUEST_S = 10.0  # within which a new connection has to send a whole request; aiohttp has no bound for the first
MAX_CONNECTIONS = 512
BACKLOG = 128


class _Connections:
    """Ends connections on which no request arrives, and the oldest of these when there are too many."""

    def __init__(self, server: web.Server) -> None:
        self._server = server
        self._silent: dict[asyncio.Protocol, None] = {}  # on which no request has arrived yet, the oldest first

    def opened(self) -> asyncio.Protocol:
        """Return the protocol for a new connection."""
        protocol = self._server()
        self._silent[protocol] = None
        loop = asyncio.get_running_loop()
        loop.call_soon(self._make_room)
        loop.call_later(FIRST_REQUEST_S, self._end_if_silent, protocol)
        return protocol

    def asked(self, protocol: asyncio.Protocol) -> None:
        self._silent.pop(protocol, None)

    def _make_room(self) -> None:
        connections = self._server.connections
        if len(connections) > MAX_CONNECTIONS:
            self._end(next(iter(self._silent), connections[-1]))

    def _end_if_silent(self, protocol: asyncio.Protocol) -> None:
        if protocol in self._silent:
            self._end(protocol)

    def _end(self, protocol: asyncio.Protocol) -> None:
        self._silent.pop(protocol, None)
        transport = getattr(protocol, "transport", None)
        if transport is not None:
            transport.abort()


@asynccontextmanager
async def serving_app(app: web.Application, listen: HostPort, cannot: str, hint: str = "") -> AsyncIterator[HostPort]:
    """Serve the application; yields where it listens. Raises UserError: `cannot`, why, and the hint."""
    bounded: list[_Connections] = []

    @web.middleware
    async def noted(request: web.Request, handler: Handler) -> web.StreamResponse:
        bounded[0].asked(request.protocol)
        return await handler(request)

    app.middlewares.insert(0, noted)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_S)
    await runner.setup()
    assert runner.server is not None
    bounded.append(_Connections(runner.server))
    try:
        try:
            family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
            sock = socket.create_server(listen, family=family, backlog=BACKLOG)
        except OSError as error:
            raise UserError(f"{cannot} {listen}: {os.strerror(error.errno or 0)}{hint}") from None
        server = await asyncio.get_running_loop().create_server(bounded[0].opened, sock=sock)
        try:
            yield HostPort(*sock.getsockname()[:2])
        finally:
            server.close()
    finally:
        await runner.cleanup()
