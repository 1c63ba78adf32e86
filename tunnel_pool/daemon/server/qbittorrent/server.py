"""qBittorrent's Web API over HTTP (its webapplication.cpp)."""

import asyncio
from collections.abc import Callable, Mapping
from urllib.parse import parse_qsl

import msgspec
from aiohttp import web

from tunnel_pool.contract import Tunnels
from tunnel_pool.daemon.changes.changes import Changes
from tunnel_pool.daemon.errors import Kind, RequestError
from tunnel_pool.daemon.feeds.feeds import Feeds
from tunnel_pool.daemon.server.entrance import Entrance
from tunnel_pool.daemon.server.guard import Credentials
from tunnel_pool.daemon.server.qbittorrent.adding import Adding
from tunnel_pool.daemon.server.qbittorrent.application import Application
from tunnel_pool.daemon.server.qbittorrent.editing import Editing
from tunnel_pool.daemon.server.qbittorrent.labels import Labels
from tunnel_pool.daemon.server.qbittorrent.paths import LOGIN, LOGOUT, ROOTS, cookie_of
from tunnel_pool.daemon.server.qbittorrent.reading import Reading
from tunnel_pool.daemon.server.qbittorrent.rss import Rss
from tunnel_pool.daemon.server.qbittorrent.shown import Shown
from tunnel_pool.daemon.server.qbittorrent.words import Call, FileAnswer, Words
from tunnel_pool.daemon.storage.store import StoreError
from tunnel_pool.daemon.torrents.library import Library
from tunnel_pool.system.http_server import FIRST_REQUEST_S

CODES = {Kind.WRONG: 400, Kind.CONFLICT: 409, Kind.NOT_FOUND: 404, Kind.NO_TORRENT: 415}

JSON, TEXT = "application/json", "text/plain"
OK = "Ok."
MAX_LOGIN_BYTES = 1 << 14


def add_qbittorrent(
    app: web.Application,
    library: Library,
    changes: Changes,
    tunnels: Tunnels,
    feeds: Feeds,
    *,
    entrance: Entrance,
    credentials: Callable[[], Credentials | None],
    stop: Callable[[], None],
) -> None:
    shown = Shown(library, changes)
    reading = Reading(shown)
    labels = Labels(library, changes, reading)
    application = Application(shown, tunnels, entrance.logins, stop)
    rss = Rss(feeds, changes)
    safe = {**application.reading(), **reading.calls(), **rss.reading()}
    editing = Editing(library, changes, reading)
    adding = Adding(changes, labels)
    posted = {**application.changing(), **editing.calls(), **labels.calls(), **adding.calls(), **rss.changing()}
    doors = _Doors(entrance, credentials)

    async def answer(request: web.Request) -> web.Response:
        name = request.match_info["call"]
        call = posted.get(name, safe.get(name))
        if call is None:
            return _text(404, "Endpoint does not exist")
        if request.method not in (("POST",) if name in posted else ("GET", "POST", "HEAD")):
            return _text(405, "Method Not Allowed")
        try:
            words = await _words(request)
        except RequestError as error:
            return _text(400, str(error))
        return await _answered(call, words, library)

    for root in ROOTS:
        app.router.add_post(root + LOGIN, doors.log_in)
        app.router.add_post(root + LOGOUT, doors.log_out)
        app.router.add_route("*", root + "{call:[^/]+/[^/]+}", answer)


class _Doors:
    """Lets clients in and out."""

    def __init__(self, entrance: Entrance, credentials: Callable[[], Credentials | None]) -> None:
        self._entrance = entrance
        self._credentials = credentials

    async def log_in(self, request: web.Request) -> web.Response:
        credentials = self._credentials()
        self._entrance.check_may_guess(request, credentials)
        given = dict(parse_qsl(await _little_of(request), keep_blank_values=True))
        user, password = given.get("username", ""), given.get("password", "")
        content = self._entrance.log_in(request, credentials, user, password)
        response = _text(200, OK)
        response.set_cookie(cookie_of(request), content, path="/", httponly=True, samesite="Strict")
        return response

    async def log_out(self, request: web.Request) -> web.Response:
        self._entrance.logins.end(request.cookies.get(cookie_of(request), ""))
        response = _text(200, "")
        response.del_cookie(cookie_of(request), path="/")
        return response


async def _little_of(request: web.Request) -> str:
    """Return the body of a request by somebody who is not known yet: no more than a form with a password, in time."""
    body = bytearray()
    try:
        async with asyncio.timeout(FIRST_REQUEST_S):
            async for chunk in request.content.iter_any():
                body += chunk
                if len(body) > MAX_LOGIN_BYTES:
                    raise web.HTTPRequestEntityTooLarge(MAX_LOGIN_BYTES, len(body))
    except TimeoutError:
        raise web.HTTPRequestTimeout(text="The body of the request did not come.\n") from None
    return body.decode(errors="replace")


async def _words(request: web.Request) -> Words:
    """Return what a client asks for, in the query or in a form; of a name that comes twice, the last value holds.

    Raises RequestError for a form that can't be read.
    """
    login = request.cookies.get(cookie_of(request), "")
    try:
        form: Mapping[str, object] = await request.post() if request.method == "POST" else request.query
    except (web.HTTPException, ConnectionError):
        raise
    except Exception:  # of many kinds, by what is wrong with the form
        raise RequestError("the form can't be read") from None
    given: dict[str, str] = {}
    files: dict[str, bytes] = {}
    for name, value in form.items():
        if isinstance(value, web.FileField):
            files[
                value.filename if value.filename not in files else f"{len(files)} {value.filename}"
            ] = await asyncio.to_thread(value.file.read)
        else:
            given[name] = value.decode(errors="replace") if isinstance(value, bytes | bytearray) else str(value)
    return Words(given, files, login)


async def _answered(call: Call, words: Words, library: Library) -> web.Response:
    """Answer with what the call returns, or with why it failed; a change that has begun is finished."""
    try:
        given = await asyncio.shield(asyncio.ensure_future(call(words)))
    except RequestError as error:
        return _text(CODES[error.kind], str(error))
    except StoreError as error:
        return _text(500, f"the change could not be saved: {error}")
    except RuntimeError:
        if not any(torrent.is_between_sessions for torrent in library.torrents.values()):
            raise
        return _text(409, "the torrent goes from one session to another: ask again")
    return _answer(given)


def _answer(given: object) -> web.Response:
    """Return an answer as what it is: a file, a text, or else JSON."""
    if isinstance(given, FileAnswer):
        disposition = {"Content-Disposition": f'attachment; filename="{given.name}"'}
        return web.Response(body=given.content, content_type=given.content_type, headers=disposition)
    if given is None or isinstance(given, str):
        return _text(200, given or "")
    return web.Response(
        body=msgspec.json.encode(given), content_type=JSON, charset="utf-8", headers={"Cache-Control": "no-store"}
    )


def _text(status: int, text: str) -> web.Response:
    return web.Response(status=status, text=text, content_type=TEXT, headers={"Cache-Control": "no-store"})
