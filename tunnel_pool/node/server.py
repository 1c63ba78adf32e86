"""Answers questions to a running node: at a Unix socket in its state, and at a port for Prometheus."""

import contextlib
import json
import os
import socket
import stat
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from tunnel_pool.node.metrics import CONTENT_TYPE, NodeCollector, exposition
from tunnel_pool.overlay.ground.config import HostPort
from tunnel_pool.system.errors import UserError
from tunnel_pool.system.http_server import serving_app
from tunnel_pool.system.web_guard import keep_browser_rules

SOCKET_FILE = "node.sock"
ASK_TIMEOUT_S = 10.0
MAX_SOCKET_PATH_BYTES = 107  # sockaddr_un

Status = Callable[[], dict[str, Any]]


@asynccontextmanager
async def serving(
    status: Status, state_dir: Path, metrics: HostPort | None, host_names: Collection[str] = ()
) -> AsyncIterator[None]:
    """Serve the status and, at `metrics`, metrics; `host_names` name that address, beside localhost and addresses.

    Raises UserError when the metrics' port can't be had.
    """
    async with AsyncExitStack() as stack:
        runner = await _listen_in_state(status, state_dir)
        if runner is not None:
            stack.callback((state_dir / SOCKET_FILE).unlink, missing_ok=True)
            stack.push_async_callback(runner.cleanup)
        if metrics is not None:
            app = _metrics_app(status, host_names)
            await stack.enter_async_context(serving_app(app, metrics, "cannot serve metrics on"))
        yield


async def _listen_in_state(status: Status, state_dir: Path) -> web.AppRunner | None:
    path = state_dir / SOCKET_FILE
    if len(os.fsencode(path)) > MAX_SOCKET_PATH_BYTES:
        return None  # `node status` says so

    async def answer(request: web.Request) -> web.Response:
        return web.json_response(status())

    app = web.Application()
    app.router.add_get("/status", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISSOCK(path.stat().st_mode):
            path.unlink()  # a node that was killed left it behind
    old = os.umask(0o077)
    try:
        await web.UnixSite(runner, path).start()
    except OSError as error:
        await runner.cleanup()
        raise UserError(f"cannot listen on {path}: {error.strerror}; choose another --state") from None
    finally:
        os.umask(old)
    return runner


def _metrics_app(status: Status, host_names: Collection[str]) -> web.Application:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(body=exposition(NodeCollector(status)), headers={"Content-Type": CONTENT_TYPE})

    names = {socket.gethostname(), *host_names}
    app = web.Application()
    keep_browser_rules(app, lambda: names)
    app.router.add_get("/metrics", answer)
    return app


async def ask_status(state_dir: Path) -> dict[str, Any]:
    """Return the status of the node that runs with this state. Raises UserError."""
    path = state_dir / SOCKET_FILE
    connector = aiohttp.UnixConnector(str(path))
    timeout = aiohttp.ClientTimeout(total=ASK_TIMEOUT_S)
    try:
        async with (
            aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
            session.get("http://node/status") as response,
        ):
            answer: dict[str, Any] = await response.json()
            return answer
    except (TimeoutError, aiohttp.ClientError, OSError, json.JSONDecodeError):
        raise UserError(f"no node runs with the state in {state_dir}; name its --state") from None
