"""GET /stream/INFOHASH/FILE[/NAME]: a file of a torrent for a player, with byte ranges (RFC 9110, section 14)."""

import asyncio
import os
import re
from contextlib import aclosing

from aiohttp import web
from aiohttp.typedefs import Handler

from tunnel_pool.daemon.server.api.openapi import STREAM_PATH
from tunnel_pool.daemon.server.api.server import problem
from tunnel_pool.daemon.server.media_types import OTHER, media_type
from tunnel_pool.daemon.server.streaming import GoneError, Reader
from tunnel_pool.daemon.storage.presence import Part, Presence, presence_of
from tunnel_pool.daemon.torrents.library import Library
from tunnel_pool.daemon.torrents.torrent import Torrent

_PART = re.compile(r"([0-9]{0,18})-([0-9]{0,18})")
SAFE_TYPES = ("audio", "video")  # a browser may take other types for a page of ours


def add_streams(app: web.Application, library: Library) -> None:
    handler = _handler(library)
    app.router.add_get(STREAM_PATH, handler)
    # Players name what they play by the end of its address.
    app.router.add_get(STREAM_PATH + "/{name:[^/]*}", handler)


def _handler(library: Library) -> Handler:
    async def stream(request: web.Request) -> web.StreamResponse:
        torrent = library.find(request.match_info["infohash"])
        index = request.match_info["index"]
        known = torrent.file_indexes() if torrent is not None else []
        if torrent is None or not (index.isascii() and index.isdigit() and len(index) < 10 and int(index) in known):
            return problem(404, "there is no such torrent or file, or its files are not known yet")
        if why := await _why_not(library, torrent, int(index)):
            return problem(409, why)
        return await _send(request, Reader(torrent, int(index)), _headers(torrent, int(index)))

    return stream


async def _why_not(library: Library, torrent: Torrent, index: int) -> str:
    """Return why the file can't be read now, nothing when it can."""
    if torrent.is_between_sessions:
        return "the torrent goes from one hop count to another: ask again"
    if torrent.is_missing:
        return torrent.error
    is_there = _is_there(torrent, index)
    if is_there and await asyncio.to_thread(_is_short, torrent, index):
        library.places.suspect(torrent)
        return "the file is missing or shorter than it was: what is there is checked now"
    if not is_there and not torrent.is_wanted(index):
        return "the file is not wanted: select it first"
    return "" if Reader(torrent, index).may_wait() else "what is missing does not download now: start it"


def _is_there(torrent: Torrent, index: int) -> bool:
    layout = torrent.layout
    assert layout is not None
    there: list[int] = torrent.handle.file_progress()[index : index + 1]  # empty while libtorrent can't say
    return there == [layout.file_size(index)]


def _is_short(torrent: Torrent, index: int) -> bool:
    """Return whether a file that should be there is not, or not all of it."""
    assert torrent.layout is not None
    path = os.path.join(torrent.record.folder, torrent.file_path(index))
    return presence_of([Part(path, torrent.layout.file_size(index))]) is not Presence.THERE


def _headers(torrent: Torrent, index: int) -> dict[str, str]:
    kind = media_type(torrent.file_path(index))
    return {
        "Content-Type": kind if kind.split("/")[0] in SAFE_TYPES else OTHER,
        "Content-Security-Policy": "sandbox; default-src 'none'",
        "Accept-Ranges": "bytes",
        "Cache-Control": "no-store",
        "ETag": f'"{torrent.record.infohash}-{index}"',
    }


async def _send(request: web.Request, reader: Reader, headers: dict[str, str]) -> web.StreamResponse:
    wanted = range_of(request, reader.size, headers["ETag"])
    if wanted is None:
        refused = problem(416, f"the file has {reader.size} bytes")
        refused.headers["Content-Range"] = f"bytes */{reader.size}"
        return refused
    start, end, is_part = wanted
    response = web.StreamResponse(status=206 if is_part else 200, headers=headers)
    if is_part:
        response.headers["Content-Range"] = f"bytes {start}-{end - 1}/{reader.size}"
    response.content_length = end - start
    await response.prepare(request)
    if request.method == "HEAD":
        return response

    def is_read() -> bool:
        return request.transport is not None and not request.transport.is_closing()

    try:
        async with aclosing(reader.read(start, end, is_read)) as chunks:
            async for chunk in chunks:
                await response.write(chunk)
    except (GoneError, ConnectionError):
        if request.transport is not None:
            request.transport.abort()  # otherwise a file that is cut short would look whole
    return response


def range_of(request: web.Request, size: int, etag: str) -> tuple[int, int, bool] | None:
    """Return where the range begins and ends, and whether it is a part; None when there is no such part.

    Several parts at once, units other than bytes (RFC 9110, 14.2), and a part of another file than this one (13.1.5)
    are answered with all of it.
    """
    header = request.headers.get("Range", "")
    if request.headers.get("If-Range", etag) != etag:
        return 0, size, False
    unit, _, parts = header.partition("=")
    if unit.strip().lower() != "bytes" or "," in parts:
        return 0, size, False
    if (found := _PART.fullmatch(parts.strip())) is None or not any(found.groups()):
        return None
    first, last = found.groups()
    if not first:
        start, end = max(0, size - int(last)), size
    else:
        start, end = int(first), min(size, int(last) + 1 if last else size)
    return (start, end, True) if start < end else None
