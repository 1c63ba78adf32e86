"""Stands in for the owner's program that a daemon posts to when a torrent is downloaded."""

import contextlib

from aiohttp import web

from tests.worlds.network import unused_host
from tunnel_pool.overlay.ground.config import HostPort
from tunnel_pool.system.http_server import serving_app


@contextlib.asynccontextmanager
async def owners_program(answer):
    """Run a program that answers with the status that `answer` says, and yield its URL and what it was told."""
    told = []

    async def done(request):
        told.append((request.path, await request.json()))
        status = answer(len(told))
        return web.Response(status=status, headers={"Location": "/elsewhere"} if status == 307 else {})

    app = web.Application()
    app.router.add_post("/{name}", done)
    async with serving_app(app, HostPort(unused_host(), 0), "cannot listen on") as address:
        yield f"http://{address}/done", told
