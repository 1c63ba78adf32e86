"""The API over HTTP."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from tunnel_pool.daemon.errors import Kind, RequestError
from tunnel_pool.daemon.server.api import model, openapi
from tunnel_pool.daemon.server.api.events import Events
from tunnel_pool.daemon.server.api.feeds import FeedsApi
from tunnel_pool.daemon.server.api.openapi import JSON
from tunnel_pool.daemon.server.api.operations import Api, Call, Operation
from tunnel_pool.daemon.storage.store import StoreError

CODES = {Kind.WRONG: 400, Kind.CONFLICT: 409, Kind.NOT_FOUND: 404, Kind.NO_TORRENT: 415}


def add_api(app: web.Application, api: Api, feeds: FeedsApi, events: Events) -> None:
    operations = api.operations() + feeds.operations()
    whole = msgspec.json.encode(openapi.document(operations))

    async def document(request: web.Request) -> web.Response:
        return json_response(200, whole)

    for operation in operations:
        app.router.add_route(operation.method, operation.path, _handler(operation))
    app.router.add_get(openapi.DOCUMENT_PATH, document)
    app.router.add_get(openapi.EVENTS_PATH, _events_handler(events))


def json_response(status: int, body: bytes) -> web.Response:
    return web.Response(status=status, body=body, content_type=JSON, headers={"Cache-Control": "no-store"})


def problem(status: int, why: str) -> web.Response:
    return json_response(status, msgspec.json.encode(model.Problem(error=why)))


def _handler(operation: Operation) -> Handler:
    async def answer(request: web.Request) -> web.Response:
        words = {**request.query, **request.match_info}
        if unknown := request.query.keys() - (operation.query or {}).keys():
            return problem(400, f"unknown word in the query: {min(unknown)[:50]}")
        body = None
        if operation.takes is not None:
            if request.content_type != JSON:
                return problem(415, f"a body is {JSON}")
            try:
                body = msgspec.json.decode(await request.read(), type=operation.takes)
            except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
                return problem(400, f"the body is not what this operation takes: {error}")
        return await answered(lambda: operation.answer(Call(words, body)), operation.status)

    return answer


async def answered(
    work: Callable[[], Awaitable[object]], status: int = 200, problem: Callable[[int, str], web.Response] = problem
) -> web.Response:
    """Answer with what the work returns, as JSON, or with why it failed; a change that has begun is finished."""
    try:
        given = await asyncio.shield(asyncio.ensure_future(work()))
    except RequestError as error:
        return problem(CODES[error.kind], str(error))
    except StoreError as error:
        return problem(500, f"the change could not be saved: {error}")
    return web.Response(status=204) if given is None else json_response(status, msgspec.json.encode(given))


def _events_handler(events: Events) -> Handler:
    async def stream(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
        await response.prepare(request)

        def cut_off() -> None:
            if request.transport is not None:
                request.transport.abort()

        with events.heard(cut_off) as queue, contextlib.suppress(ConnectionError):
            while (chunk := await queue.get()) is not None:
                await response.write(chunk)
        return response

    return stream
