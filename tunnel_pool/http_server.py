"""An aiohttp application at an address."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from overlay.config import HostPort
from tunnel_pool.errors import UserError

SHUTDOWN_S = 2.0  # for requests that are being answered


@asynccontextmanager
async def serving_app(app: web.Application, listen: HostPort, cannot: str, hint: str = "") -> AsyncIterator[HostPort]:
    """Where it listens. Raises UserError: `cannot`, why, and the hint."""
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_S)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, *listen).start()
        except OSError as error:
            raise UserError(f"{cannot} {listen}: {os.strerror(error.errno or 0)}{hint}") from None
        yield HostPort(*runner.addresses[0][:2])
    finally:
        await runner.cleanup()
