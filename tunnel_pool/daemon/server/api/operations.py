"""The operations of the API: the one list that both the server and the OpenAPI document are made of."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from tunnel_pool.daemon.changes.changes import Changes
from tunnel_pool.daemon.changes.edits import (
    AddRequest,
    Edit,
    Relabel,
    Remove,
    Run,
    SetHops,
    Stop,
)
from tunnel_pool.daemon.changes.planning import refused
from tunnel_pool.daemon.errors import NotFoundError, RequestError
from tunnel_pool.daemon.rules.hops import hops_of_labels
from tunnel_pool.daemon.server.api import model, views
from tunnel_pool.daemon.server.api.watcher import HISTORY_S, Watcher
from tunnel_pool.daemon.sources import of_metainfo, of_resume, of_source
from tunnel_pool.daemon.torrents.torrent import Torrent


@dataclass(frozen=True, slots=True)
class Call:
    """Holds a request: words of the path and the query, and the body."""

    words: dict[str, str]
    body: Any = None

    def whole(self, name: str) -> int:
        """Return a number among the words. Raises NotFoundError."""
        text = self.words[name]
        if not text.isascii() or not text.isdigit() or len(text) > 10:
            raise NotFoundError(f"`{name}` must be a number")
        return int(text)


@dataclass(frozen=True, slots=True)
class Operation:
    name: str
    method: str
    path: str
    summary: str
    answer: Callable[[Call], Awaitable[object]]
    gives: object = None  # None: nothing, with status 204
    takes: type[model.Model] | None = None
    query: dict[str, str] | None = None  # names in the query, and what they mean
    status: int = 200


class Api:
    def __init__(self, watcher: Watcher, changes: Changes, config: Callable[[], model.Config]) -> None:
        self._library, self._tunnels, self._pool = watcher.library, watcher.tunnels, watcher.control
        self._changes = changes
        self._config = config
        self.watcher = watcher

    def operations(self) -> list[Operation]:
        one = "/api/torrents/{infohash}"
        take = model.TorrentChange
        workers = model.Workers
        return [
            Operation("status", "GET", "/api/status", "The daemon in a few numbers", self._status, model.Status),
            Operation("torrents", "GET", "/api/torrents", "All torrents", self._torrents, list[model.Torrent]),
            Operation(
                "add", "POST", "/api/torrents", "Add a torrent", self._add, model.Added, model.NewTorrent, status=201
            ),
            Operation("torrent", "GET", one, "A torrent", self._torrent, model.Torrent),
            Operation(
                "change", "PATCH", one, "Start, stop, label it, change its hops", self._change, model.Changed, take
            ),
            Operation(
                "remove", "DELETE", one, "Remove it", self._remove, query={"files": "`true`: delete its files, too"}
            ),
            Operation("files", "GET", one + "/files", "Its files", self._files, list[model.File]),
            Operation("pool", "GET", "/api/pool", "The processes", self._get_pool, model.Pool),
            Operation("scale", "PUT", "/api/pool/workers", "How many children", self._scale, None, workers),
            Operation(
                "drain",
                "POST",
                "/api/pool/children/{slot}/drain",
                "Give a child nothing new, and end it when it carries nothing",
                self._drain,
            ),
            Operation("circuits", "GET", "/api/circuits", "Our own", self._circuits, list[model.Circuit]),
            Operation("close_circuit", "DELETE", "/api/circuits/{circuit_id}", "Close one", self._close_circuit),
            Operation("swarms", "GET", "/api/swarms", "Hidden swarms", self._swarms, list[model.Swarm]),
            Operation("relays", "GET", "/api/relays", "What we relay", self._relays, list[model.Relay]),
            Operation("exits", "GET", "/api/exits", "What exits here", self._exits, list[model.Exit]),
            Operation("dropped", "GET", "/api/dropped", "Dropped datagrams", self._dropped, model.Dropped),
            Operation(
                "history",
                "GET",
                "/api/history",
                "A row a second, the oldest first",
                self._history,
                list[model.Sample],
                query={"seconds": f"the last ones, 1 to {HISTORY_S}"},
            ),
            Operation("config", "GET", "/api/config", "What holds, and who said so", self._get_config, model.Config),
        ]

    # Torrents

    def _found(self, call: Call) -> Torrent:
        if (torrent := self._library.find(call.words["infohash"])) is None:
            raise NotFoundError("there is no such torrent")
        return torrent

    async def _status(self, call: Call) -> model.Status:
        return self.watcher.status()

    async def _torrents(self, call: Call) -> msgspec.Raw:
        return msgspec.Raw(b"[" + self.watcher.rows.all_of(self._library) + b"]")

    async def _torrent(self, call: Call) -> model.Torrent:
        return views.torrent_view(self._found(call))

    async def _add(self, call: Call) -> model.Added:
        body: model.NewTorrent = call.body
        if [body.source, body.metainfo, body.resume].count(None) != 2:
            raise RequestError("name one of `source`, `metainfo` and `resume`")
        renamed: dict[int, str] = {}
        if body.resume is not None:
            parameters, renamed = of_resume(body.resume)
        else:
            parameters = of_metainfo(body.metainfo) if body.metainfo else of_source(body.source or "", files=False)
        if body.folder_when_done and body.resume is None:
            raise RequestError("`folder_when_done` is for `resume` alone: set the folder for incomplete torrents")
        wish = AddRequest(
            folder=body.folder or None,
            folder_when_done=body.folder_when_done or "",
            hops=body.hops,
            labels=body.labels,
            stopped=body.stopped,
            renamed=renamed,
        )
        torrent, was_there = await self._changes.add(parameters, wish)
        return model.Added(torrent=views.torrent_view(torrent), new=not was_there)

    async def _change(self, call: Call) -> model.Changed:
        torrent, body = self._found(call), call.body
        with refused():
            said = hops_of_labels(body.labels or ())
        if body.hops is not None and said not in (None, body.hops):
            raise RequestError(f"{body.hops} hops are asked for, but the label says {said}")
        edits: list[Edit] = []
        if body.hops is not None or said is not None:
            edits.append(SetHops(body.hops, said, body.confirm_fewer_hops))
        if body.labels is not None:
            edits.append(Relabel.to(body.labels))
        if body.stopped is not None:
            edits.append(Stop() if body.stopped else Run(body.now))
        return model.Changed(notice=await self._changes.apply([torrent], *edits))

    async def _remove(self, call: Call) -> None:
        files = call.words.get("files", "false")
        if files not in ("true", "false"):
            raise RequestError("`files` must be true or false")
        await self._changes.apply([self._found(call)], Remove(files == "true"))

    async def _files(self, call: Call) -> list[model.File]:
        try:
            return views.files_view(self._found(call))
        except RuntimeError:
            raise NotFoundError("the torrent goes from one hop count to another: ask again") from None

    # The pool and the tunnels

    async def _get_pool(self, call: Call) -> model.Pool:
        return self.watcher.pool

    async def _scale(self, call: Call) -> None:
        self._pool.scale(call.body.least, call.body.most)

    async def _drain(self, call: Call) -> None:
        self._pool.drain(call.whole("slot"))

    async def _circuits(self, call: Call) -> list[model.Circuit]:
        return views.circuits_view(self._tunnels, self._library.sessions)

    async def _close_circuit(self, call: Call) -> None:
        circuit_id = call.whole("circuit_id")
        if circuit_id not in self._tunnels.circuits:
            raise NotFoundError("there is no such circuit")
        self._tunnels.remove_circuit(circuit_id, "its owner asked for it", destroy=True)

    async def _swarms(self, call: Call) -> list[model.Swarm]:
        return views.swarms_view(self._tunnels, self._library)

    async def _relays(self, call: Call) -> list[model.Relay]:
        return views.relays_view(self._tunnels)

    async def _exits(self, call: Call) -> list[model.Exit]:
        return views.exits_view(self._tunnels)

    async def _dropped(self, call: Call) -> model.Dropped:
        return model.Dropped(datagrams=dict(self._library.sessions.dropped() + self._tunnels.dropped()))

    async def _history(self, call: Call) -> list[model.Sample]:
        text = call.words.get("seconds", str(HISTORY_S))
        if not text.isascii() or not text.isdigit() or len(text) > 10 or not 0 < int(text) <= HISTORY_S:
            raise RequestError(f"`seconds` must be a number from 1 to {HISTORY_S}")
        return self.watcher.recent(int(text))

    async def _get_config(self, call: Call) -> model.Config:
        return self._config()
