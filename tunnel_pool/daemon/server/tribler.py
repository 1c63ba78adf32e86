"""The part of Tribler's REST API by which Sonarr drives it (Tribler's restapi/downloads_endpoint.py).

Sonarr sends the key of its settings as X-Api-Key: the password of the daemon, where there is one.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from tunnel_pool.daemon.changes.changes import Changes
from tunnel_pool.daemon.changes.edits import (
    AddRequest,
    Edit,
    Run,
    Select,
    SetHops,
    Stop,
    Verify,
)
from tunnel_pool.daemon.changes.edits import (
    Remove as RemoveEdit,
)
from tunnel_pool.daemon.errors import NotFoundError, RequestError
from tunnel_pool.daemon.record import NORMAL, UNWANTED
from tunnel_pool.daemon.rules.life import State
from tunnel_pool.daemon.server.api.model import Hops, Text
from tunnel_pool.daemon.server.api.server import answered, json_response
from tunnel_pool.daemon.server.api.views import files_view
from tunnel_pool.daemon.server.shown import NO_ROOM, eta_s, ratio
from tunnel_pool.daemon.sources import of_source
from tunnel_pool.daemon.torrents.library import Library
from tunnel_pool.daemon.torrents.torrent import Torrent

# Tribler's download states: their names and numbers.
STATES = (
    "WAITING4HASHCHECK", "HASHCHECKING", "METADATA", "DOWNLOADING", "SEEDING", "STOPPED", "ALLOCATING_DISKSPACE",
    "EXIT_NODES", "CIRCUITS", "STOPPED_ON_ERROR",
)  # fmt: skip
DOWNLOADS_PATH = "/api/downloads"
DOWNLOAD_PATH = "/api/downloads/{infohash}"


class Add(msgspec.Struct):
    uri: Text
    anon_hops: Hops | None = None
    safe_seeding: bool | None = None  # over hops it always is
    destination: Text | None = None


class Remove(msgspec.Struct):
    remove_data: bool = False


class Update(msgspec.Struct):
    anon_hops: Hops | None = None
    confirm_fewer_hops: bool = False  # our own argument
    selected_files: list[int] | None = None
    state: str | None = None


def add_tribler(app: web.Application, library: Library, changes: Changes) -> None:
    calls = _Calls(library, changes)
    for method, path, call, kind in (
        ("GET", "/api/settings", calls.settings, None),
        ("GET", DOWNLOADS_PATH, calls.downloads, None),
        ("PUT", DOWNLOADS_PATH, calls.add, Add),
        ("PATCH", DOWNLOAD_PATH, calls.update, Update),
        ("DELETE", DOWNLOAD_PATH, calls.remove, Remove),
        ("GET", DOWNLOAD_PATH + "/files", calls.files, None),
    ):
        app.router.add_route(method, path, _handler(call, kind))


def _handler(call: Callable[[str, Any], Awaitable[dict[str, Any]]], kind: Any) -> Handler:
    async def answer(request: web.Request) -> web.Response:
        try:
            body = msgspec.json.decode(await request.read() or b"{}", type=kind) if kind is not None else None
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            return _problem(400, str(error))
        return await answered(lambda: call(request.match_info.get("infohash", ""), body), problem=_problem)

    return answer


def _problem(status: int, why: str) -> web.Response:
    """Return an error in the form that Tribler gives it."""
    return json_response(status, msgspec.json.encode({"error": {"handled": True, "message": why}}))


class _Calls:
    def __init__(self, library: Library, changes: Changes) -> None:
        self._library = library
        self._changes = changes

    def _found(self, infohash: str) -> Torrent:
        """Raises NotFoundError."""
        if (torrent := self._library.find(infohash)) is None:
            raise NotFoundError("this download does not exist")
        return torrent

    async def settings(self, _: str, body: None) -> dict[str, object]:
        settings, hops = self._library.records.settings, self._changes.rules.default
        defaults = {
            "anonymity_enabled": hops > 0,
            "number_hops": hops,
            "safeseeding_enabled": hops > 0,
            "saveas": settings.folder,
            "seeding_mode": "ratio" if settings.seed_ratio_limited else "forever",
            "seeding_ratio": settings.seed_ratio_limit,
            "seeding_time": 60 * settings.idle_seeding_limit,
        }
        return {"settings": {"libtorrent": {"download_defaults": defaults}, "tunnel_community": {"enabled": True}}}

    async def downloads(self, _: str, body: None) -> dict[str, object]:
        torrents = self._library.torrents.values()
        checkpoints = {"total": len(torrents), "loaded": len(torrents), "all_loaded": True}
        return {"checkpoints": checkpoints, "downloads": [_download(torrent) for torrent in torrents]}

    async def files(self, infohash: str, body: None) -> dict[str, object]:
        try:
            files = files_view(self._found(infohash))
        except RuntimeError:  # the torrent goes from one session to another
            raise RequestError("the torrent goes from one session to another: ask again") from None
        return {
            "infohash": infohash,
            "files": [
                {
                    "index": place,
                    "name": file.path,
                    "size": file.size_bytes,
                    "included": file.wanted,
                    "progress": file.done_bytes / file.size_bytes if file.size_bytes else 1.0,
                }
                for place, file in enumerate(files)
            ],
        }

    async def add(self, _: str, body: Add) -> dict[str, object]:
        wish = AddRequest(folder=body.destination or None, hops=body.anon_hops)
        torrent, _was_there = await self._changes.add(of_source(body.uri, files=False), wish)
        return {"started": True, "infohash": torrent.hash_string}

    async def remove(self, infohash: str, body: Remove) -> dict[str, object]:
        await self._changes.apply([self._found(infohash)], RemoveEdit(body.remove_data))
        return {"removed": True, "infohash": infohash}

    async def update(self, infohash: str, body: Update) -> dict[str, object]:
        torrent = self._found(infohash)
        if body.state not in (None, "resume", "stop", "recheck"):
            raise RequestError("`state` must be resume, stop or recheck")
        edits: list[Edit] = []
        if body.anon_hops is not None:
            edits.append(SetHops(body.anon_hops, confirmed=body.confirm_fewer_hops))
        if body.selected_files is not None:
            edits.append(_selection(torrent, body.selected_files))
        if body.state in ("resume", "stop"):
            edits.append(Run() if body.state == "resume" else Stop())
        if body.state == "recheck":
            edits.append(Verify())
        await self._changes.apply([torrent], *edits)
        return {"modified": True, "infohash": infohash}


def _selection(torrent: Torrent, places: list[int]) -> Select:
    """Raises RequestError."""
    indexes = torrent.file_indexes()
    if any(not 0 <= place < len(indexes) for place in places):
        raise RequestError("there is no such file")
    chosen = {indexes[place] for place in places}

    def priorities(torrent: Torrent) -> list[int]:
        return [
            (torrent.priority(index) or NORMAL) if index in chosen else UNWANTED
            for index in range(max(indexes, default=-1) + 1)
        ]

    return Select(priorities)


def _status(torrent: Torrent) -> str:
    state = torrent.state
    if state is State.MOVING:
        return "ALLOCATING_DISKSPACE"  # it tells clients to leave its files alone now
    if state in (State.QUEUED, State.NO_ROOM):
        return "SEEDING" if torrent.is_finished else "ALLOCATING_DISKSPACE"
    if state is State.DOWNLOADING:
        return "CIRCUITS" if torrent.is_paused else "DOWNLOADING" if torrent.summary.has_metadata else "METADATA"
    names = {
        State.CHECKING: "HASHCHECKING",
        State.SEEDING: "SEEDING",
        State.STOPPED: "STOPPED",
        State.MISSING: "STOPPED_ON_ERROR",
        State.FAILED: "STOPPED_ON_ERROR",
    }
    return names[state]


def _download(torrent: Torrent) -> dict[str, object]:
    record, summary = torrent.record, torrent.summary
    name = _status(torrent)
    rate = torrent.down_rate
    return {
        "name": record.name,
        "infohash": torrent.hash_string,
        "status": name,
        "status_code": STATES.index(name),
        "progress": torrent.progress,
        "size": summary.total_wanted,
        "eta": float(eta_s(torrent) or 0),
        "hops": record.hops,
        "anon_download": record.hops > 0,
        "safe_seeding": record.hops > 0,
        "destination": record.final_folder,
        "error": torrent.error or (NO_ROOM if torrent.state is State.NO_ROOM else ""),
        "speed_down": float(rate),
        "speed_up": float(torrent.up_rate),
        "num_peers": summary.num_peers,
        "num_seeds": summary.num_seeds,
        "all_time_download": torrent.totals.downloaded,
        "all_time_upload": torrent.totals.uploaded,
        "all_time_ratio": max(0.0, ratio(torrent)),
        "total_down": torrent.totals.downloaded,
        "total_pieces": torrent.info.num_pieces() if torrent.info is not None else 0,
        "time_added": int(record.added_s),
        "availability": summary.distributed_copies,
        "max_upload_speed": record.upload_limit_kb if record.upload_limited else 0,
        "max_download_speed": record.download_limit_kb if record.download_limited else 0,
        "trackers": [],
    }
