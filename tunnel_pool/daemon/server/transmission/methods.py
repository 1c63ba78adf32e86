"""The methods of Transmission's RPC (docs/rpc-spec.md 3 and 4); names and keys in snake_case."""

import asyncio
import shutil
import time
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from tunnel_pool.daemon.changes.changes import Changes
from tunnel_pool.daemon.changes.edits import (
    AddRequest,
    Move,
    QueueEnd,
    Reannounce,
    Remove,
    Rename,
    Requeue,
    Run,
    Stop,
    Verify,
)
from tunnel_pool.daemon.changes.moves import absolute, check_folders
from tunnel_pool.daemon.errors import RequestError, refuse_some
from tunnel_pool.daemon.rules.queue import Activity
from tunnel_pool.daemon.server.rows import Rows
from tunnel_pool.daemon.server.shown import name_in_folder
from tunnel_pool.daemon.server.transmission import groups, session
from tunnel_pool.daemon.server.transmission.arguments import (
    Arguments,
    edits_of,
    fields_of,
    flag,
    hops_of,
    parameters_of,
    peers_of,
    priorities_of,
    typed,
)
from tunnel_pool.daemon.server.transmission.fields import ASKED_OF_PEERS, FIELDS, MADE_ANEW
from tunnel_pool.daemon.server.transmission.names import snake
from tunnel_pool.daemon.storage.settings import Settings
from tunnel_pool.daemon.torrents.library import RECENT_S, Library
from tunnel_pool.daemon.torrents.torrent import Torrent
from tunnel_pool.daemon.torrents.view import TorrentView
from tunnel_pool.torrent.entries import real_files

RECENTLY_ACTIVE = "recently_active"
MAX_CLIENTS = 8  # kinds of clients that are remembered, each with fields of its own
_ADD_ALSO = ("bandwidth_priority", "peer_limit", "sequential_download")


class Methods:
    """Runs Transmission's methods: call `run` with a method and its arguments. Raises RequestError and StoreError."""

    def __init__(self, library: Library, changes: Changes, session_id: str, stop: Callable[[], None]) -> None:
        self._library = library
        self._changes = changes
        self._session_id = session_id
        self._stop = stop
        self._started_s = time.monotonic()
        self._rows: dict[tuple[tuple[str, ...], bool], Rows] = {}  # by what clients ask for, the last ones
        self._methods: dict[str, Callable[[Arguments], Awaitable[Arguments | None]]] = {
            "blocklist_update": self._blocklist_update,
            "free_space": self._free_space,
            "group_get": self._group_get,
            "group_set": self._group_set,
            "port_test": self._port_test,
            "queue_move_bottom": lambda a: self._queue_move(a, "bottom"),
            "queue_move_down": lambda a: self._queue_move(a, "down"),
            "queue_move_top": lambda a: self._queue_move(a, "top"),
            "queue_move_up": lambda a: self._queue_move(a, "up"),
            "session_close": self._session_close,
            "session_get": self._session_get,
            "session_set": self._session_set,
            "session_stats": self._session_stats,
            "torrent_add": self._torrent_add,
            "torrent_get": self._torrent_get,
            "torrent_reannounce": self._torrent_reannounce,
            "torrent_remove": self._torrent_remove,
            "torrent_rename_path": self._torrent_rename_path,
            "torrent_set": self._torrent_set,
            "torrent_set_location": self._torrent_set_location,
            "torrent_start": self._torrent_start,
            "torrent_start_now": self._torrent_start_now,
            "torrent_stop": self._torrent_stop,
            "torrent_verify": self._torrent_verify,
        }

    def __contains__(self, method: str) -> bool:
        return method in self._methods

    async def run(self, method: str, arguments: Arguments) -> Arguments:
        try:
            return await self._methods[method](arguments) or {}
        except msgspec.ValidationError as error:
            raise RequestError(f"invalid argument: {error}") from None

    # Which torrents

    def _chosen(self, arguments: Arguments) -> list[Torrent]:
        """Return the torrents of `ids`, all without any, none for an empty list. Raises RequestError."""
        torrents = self._library.torrents
        ids = arguments.get("ids")
        if ids is None:
            return list(torrents.values())
        if isinstance(ids, str) and snake(ids) == RECENTLY_ACTIVE:
            since_s = time.monotonic() - RECENT_S
            return [torrent for torrent in torrents.values() if torrent.changed_s >= since_s]
        names = ids if isinstance(ids, list) else [ids]
        by_number = {torrent.record.number: torrent for torrent in torrents.values()}
        by_hash: dict[str, Torrent] = {}
        if any(isinstance(name, str) for name in names):
            by_hash = {each.hex(): torrent for torrent in torrents.values() for each in torrent.hashes}
        chosen: dict[str, Torrent] = {}
        for name in names:
            if isinstance(name, bool) or not isinstance(name, int | str):
                raise RequestError("`ids` must be numbers and infohashes")
            found = by_number.get(name) if isinstance(name, int) else by_hash.get(name.lower()[:40])
            if found is not None:
                chosen[found.record.infohash] = found
        return list(chosen.values())

    # Torrents

    async def _torrent_get(self, arguments: Arguments) -> Arguments:
        names = typed(arguments.get("fields", []), list[str], "fields")
        keys = tuple(name for name in names if snake(name) in FIELDS)
        is_table = arguments.get("format") == "table"
        result: Arguments = {"torrents": self._torrent_rows(self._chosen(arguments), keys, is_table)}
        if isinstance(ids := arguments.get("ids"), str) and snake(ids) == RECENTLY_ACTIVE:
            result["removed"] = self._library.removed_of_late()
        return result

    def _torrent_rows(self, torrents: Sequence[Torrent], keys: tuple[str, ...], is_table: bool) -> object:
        """Return the torrents' rows, from a cache of JSON if all the fields change only with a torrent's state."""
        fields = [snake(key) for key in keys]
        getters = [FIELDS[field] for field in fields]

        def row(torrent: TorrentView) -> object:
            values = [_shown(getter, torrent) for getter in getters]
            return values if is_table else dict(zip(keys, values, strict=True))

        if not MADE_ANEW.isdisjoint(fields) or len(torrents) < len(self._library.torrents):
            return [*([list(keys)] if is_table else ()), *map(row, torrents)]
        if (rows := self._rows.pop((keys, is_table), None)) is None:
            of_peers = not ASKED_OF_PEERS.isdisjoint(fields)
            rows = Rows(lambda torrent: msgspec.json.encode(row(torrent)), of_peers)
        self._rows[keys, is_table] = rows
        while len(self._rows) > MAX_CLIENTS:
            del self._rows[next(iter(self._rows))]
        whole = rows.all_of(self._library)
        head = msgspec.json.encode(keys) + (b"," if whole else b"") if is_table else b""
        return msgspec.Raw(b"[" + head + whole + b"]")

    async def _torrent_add(self, arguments: Arguments) -> Arguments:
        parameters = parameters_of(arguments)
        parameters.peers = [*parameters.peers, *peers_of(arguments)]
        files = real_files(parameters.ti.layout()) if parameters.ti is not None else None
        wish = AddRequest(
            folder=typed(arguments.get("download_dir"), str | None, "download_dir") or None,
            hops=hops_of(arguments.get("hops", arguments.get("anon_hops"))),
            labels=typed(arguments.get("labels", []), list[str], "labels"),
            stopped=flag(arguments, "paused", None),
            file_priorities=priorities_of([], files, arguments),
            others=fields_of({key: arguments[key] for key in _ADD_ALSO if key in arguments}),
        )
        torrent, was_there = await self._changes.add(parameters, wish)
        record = torrent.record
        told = {"id": record.number, "name": name_in_folder(torrent), "hash_string": torrent.hash_string}
        return {"torrent_duplicate" if was_there else "torrent_added": told}

    async def _torrent_set(self, arguments: Arguments) -> Arguments:
        """Set Transmission's arguments, `hops` and `confirm_fewer_hops`; `notice` says what others know already."""
        notice = await self._changes.apply(self._chosen(arguments), *edits_of(arguments))
        return {"notice": notice} if notice else {}

    async def _torrent_remove(self, arguments: Arguments) -> None:
        """Remove the torrents that are named; all of them where there is no `ids`, as Transmission does."""
        await self._changes.apply(self._chosen(arguments), Remove(flag(arguments, "delete_local_data", False)))

    async def _torrent_start(self, arguments: Arguments) -> None:
        await self._changes.apply(self._chosen(arguments), Run())

    async def _torrent_start_now(self, arguments: Arguments) -> None:
        await self._changes.apply(self._chosen(arguments), Run(now=True))

    async def _torrent_stop(self, arguments: Arguments) -> None:
        await self._changes.apply(self._chosen(arguments), Stop())

    async def _torrent_verify(self, arguments: Arguments) -> None:
        await self._changes.apply(self._chosen(arguments), Verify())

    async def _torrent_reannounce(self, arguments: Arguments) -> None:
        await self._changes.apply(self._chosen(arguments), Reannounce())

    async def _torrent_set_location(self, arguments: Arguments) -> None:
        location = typed(arguments.get("location"), str, "location")
        with_files = flag(arguments, "move", False)
        await self._changes.apply(self._chosen(arguments), Move(location, with_files))

    async def _torrent_rename_path(self, arguments: Arguments) -> Arguments:
        torrents = self._chosen(arguments)
        if len(torrents) != 1:
            raise RequestError("torrent-rename-path requires 1 torrent")
        path = typed(arguments.get("path"), str, "path")
        name = typed(arguments.get("name"), str, "name")
        await self._changes.apply(torrents, Rename(path, name))
        return {"id": torrents[0].record.number, "path": path, "name": name}

    async def _queue_move(self, arguments: Arguments, where: QueueEnd) -> None:
        await self._changes.apply(self._chosen(arguments), Requeue(where))

    # The session

    async def _session_get(self, arguments: Arguments) -> Arguments:
        sessions = self._library.sessions
        port, blocked = sessions.plain_port(), len(sessions.blocked.ranges)
        shown = await asyncio.to_thread(session.shown, self._library.records.settings, self._session_id, port, blocked)
        if "fields" not in arguments:
            return shown
        names = {snake(name) for name in typed(arguments["fields"], list[str], "fields")}
        return {name: value for name, value in shown.items() if name in names}

    async def _session_set(self, arguments: Arguments) -> None:
        """Set what can be set; name what can't be, as clients send whole forms. Raises RequestError."""
        refusals: list[str] = []

        def edit(settings: Settings) -> Settings:
            sessions = self._library.sessions
            changed, refused = session.changed(settings, arguments, sessions.plain_port(), len(sessions.blocked.ranges))
            check_folders(changed)
            refusals.extend(refused)
            return changed

        await self._changes.edit_settings(edit)
        refuse_some(refusals, len(arguments))

    async def _session_stats(self, arguments: Arguments) -> Arguments:
        torrents = self._library.torrents.values()
        down = sum(torrent.totals.downloaded for torrent in torrents)
        up = sum(torrent.totals.uploaded for torrent in torrents)
        down_rate, up_rate = self._library.rates()
        stats = {"files_added": 0, "session_count": 1, "seconds_active": int(time.monotonic() - self._started_s)}
        now = {
            "downloaded_bytes": sum(torrent.status.total_payload_download for torrent in torrents),
            "uploaded_bytes": sum(torrent.status.total_payload_upload for torrent in torrents),
        }
        return {
            "active_torrent_count": sum(torrent.activity is Activity.RUNNING for torrent in torrents),
            "paused_torrent_count": sum(torrent.activity is Activity.STOPPED for torrent in torrents),
            "torrent_count": len(torrents),
            "download_speed": down_rate,
            "upload_speed": up_rate,
            "cumulative_stats": {**stats, "downloaded_bytes": down, "uploaded_bytes": up},
            "current_stats": {**stats, **now},
        }

    async def _session_close(self, arguments: Arguments) -> None:
        self._stop()

    async def _free_space(self, arguments: Arguments) -> Arguments:
        path = typed(arguments.get("path"), str, "path")
        try:
            usage = await asyncio.to_thread(shutil.disk_usage, absolute(path))
        except OSError as error:
            raise RequestError(f"no such folder: {error.strerror}") from None
        return {"path": path, "size_bytes": usage.free, "total_size": usage.total}

    async def _group_get(self, arguments: Arguments) -> Arguments:
        return {"group": groups.shown(self._library.records.settings, arguments.get("group"))}

    async def _group_set(self, arguments: Arguments) -> None:
        await self._changes.edit_settings(lambda settings: groups.changed(settings, arguments))

    async def _port_test(self, arguments: Arguments) -> Arguments:
        """Say that the port is not known to be open; asking somebody would tell who we are."""
        return {"port_is_open": False, "ip_protocol": "ipv4"}

    async def _blocklist_update(self, arguments: Arguments) -> Arguments:
        """Say how many ranges are blocked; no list is fetched."""
        return {"blocklist_size": len(self._library.sessions.blocked.ranges)}


def _shown(getter: Callable[[TorrentView], object], torrent: TorrentView) -> object:
    try:
        return getter(torrent)
    except RuntimeError:  # the torrent goes from one session to another
        return None
