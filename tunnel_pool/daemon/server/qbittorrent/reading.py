"""Answers what qBittorrent's clients ask of torrents without changing any."""

from collections.abc import Mapping
from typing import Any

import libtorrent as lt

from tunnel_pool.daemon.errors import ConflictError, NotFoundError
from tunnel_pool.daemon.rules.tiers import name_trackers
from tunnel_pool.daemon.server.qbittorrent import categories, fields, listing, trackers
from tunnel_pool.daemon.server.qbittorrent.shown import Shown
from tunnel_pool.daemon.server.qbittorrent.words import Call, FileAnswer, Words
from tunnel_pool.daemon.torrents.torrent import Torrent
from tunnel_pool.torrent.metainfo import read_resume

ALL = ("all", "*")


class Reading:
    def __init__(self, shown: Shown) -> None:
        self._library = shown.library
        self._changes = shown.changes
        self._shown = shown

    def calls(self) -> dict[str, Call]:
        return {
            "torrents/categories": self._categories,
            "torrents/count": self._count,
            "torrents/downloadLimit": self._download_limit,
            "torrents/export": self._export,
            "torrents/files": self._files,
            "torrents/info": self._info,
            "torrents/pieceAvailability": self._piece_availability,
            "torrents/pieceHashes": self._piece_hashes,
            "torrents/pieceStates": self._piece_states,
            "torrents/properties": self._properties,
            "torrents/tags": self._tags,
            "torrents/trackers": self._trackers,
            "torrents/uploadLimit": self._upload_limit,
            "torrents/webseeds": self._web_seeds,
            "sync/torrentPeers": self._peers,
        }

    def one(self, words: Words) -> Torrent:
        """Return the torrent that `hash` names. Raises RequestError and NotFoundError."""
        if (torrent := self._library.find(words.text("hash"))) is None:
            raise NotFoundError("Not Found")
        return torrent

    def several(self, words: Words, name: str = "hashes") -> list[Torrent]:
        """Return the torrents that are named, without those that are not there. Raises RequestError."""
        hashes = words.several(name)
        if len(hashes) == 1 and hashes[0] in ALL:
            return list(self._library.torrents.values())
        found = (self._library.find(each) for each in hashes)
        return list({torrent.record.number: torrent for torrent in found if torrent is not None}.values())

    async def _count(self, words: Words) -> str:
        return str(len(self._library.torrents))

    async def _info(self, words: Words) -> list[Mapping[str, object]]:
        torrents = self.several(words) if words.given.get("hashes") else list(self._library.torrents.values())
        by_hash = {torrent.hash_string: torrent for torrent in torrents}
        rows = listing.listed(
            self._shown.rows(torrents),
            words.text("filter", ""),
            words.given.get("category"),
            words.given.get("tag"),
            words.flag("private"),
        )
        sort, is_reversed = words.text("sort", ""), bool(words.flag("reverse"))
        rows = listing.paged(rows, sort, is_reversed, words.number("limit", 0), words.number("offset", 0))
        if words.flag("includeFiles"):
            rows = [{**row, "files": fields.files(by_hash[row["hash"]])} for row in rows]
        if words.flag("includeTrackers"):
            rows = [{**row, "trackers": self._tracker_rows(by_hash[row["hash"]])} for row in rows]
        return rows

    async def _properties(self, words: Words) -> dict[str, object]:
        torrent = self.one(words)
        return fields.properties(torrent, self._shown.row(torrent))

    async def _files(self, words: Words) -> list[dict[str, object]]:
        rows = fields.files(self.one(words))
        if not words.given.get("indexes"):
            return rows
        return [rows[place] for place in words.places("indexes", len(rows))]

    async def _trackers(self, words: Words) -> list[dict[str, object]]:
        return self._tracker_rows(self.one(words))

    def _tracker_rows(self, torrent: Torrent) -> list[dict[str, object]]:
        settings = self._library.records.settings
        return trackers.entries(torrent, settings.dht_enabled, settings.pex_enabled, settings.lpd_enabled)

    async def _web_seeds(self, words: Words) -> list[dict[str, str]]:
        return [{"url": url} for url in self.one(words).record.web_seeds]

    async def _piece_states(self, words: Words) -> list[int]:
        return fields.piece_states(self.one(words))

    async def _piece_availability(self, words: Words) -> list[int]:
        return list(self.one(words).handle.piece_availability())

    async def _piece_hashes(self, words: Words) -> list[str]:
        info = self.one(words).info
        if info is None or not info.info_hashes().has_v1():
            return []
        return [info.hash_for_piece(piece).hex() for piece in range(info.num_pieces())]

    async def _export(self, words: Words) -> FileAnswer:
        torrent = self.one(words)
        if torrent.info is None:
            raise ConflictError("Unable to export torrent file. Error: its metadata is not known yet")
        parameters = read_resume(await self._library.records.resume_data(torrent))
        name_trackers(parameters, torrent.record.trackers, torrent.record.web_seeds)
        metainfo: Any = lt.write_torrent_file(parameters)
        content = lt.bencode(metainfo)
        return FileAnswer(content, "application/x-bittorrent", f"{torrent.hash_string}.torrent")

    async def _download_limit(self, words: Words) -> dict[str, int]:
        return self._limits(words, "dl_limit")

    async def _upload_limit(self, words: Words) -> dict[str, int]:
        return self._limits(words, "up_limit")

    def _limits(self, words: Words, name: str) -> dict[str, int]:
        rows = self._shown.rows(self.several(words))
        return {row["hash"]: row[name] for row in rows}

    async def _categories(self, words: Words) -> dict[str, Any]:
        return categories.shown(self._changes.categories())

    async def _tags(self, words: Words) -> list[str]:
        return self._shown.tags()

    async def _peers(self, words: Words) -> dict[str, object]:
        """Return all peers each time, as the first answer of qBittorrent does."""
        peers = fields.peers(self.one(words))
        return {"rid": words.number("rid", 0) + 1, "full_update": True, "show_flags": False, "peers": peers}
