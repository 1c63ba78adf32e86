"""The daemon's torrents as qBittorrent's clients see them, made anew only where something may have changed."""

import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from tunnel_pool.daemon.rules.queue import Activity
from tunnel_pool.daemon.server.qbittorrent import fields
from tunnel_pool.daemon.server.qbittorrent.categories import known_tags
from tunnel_pool.daemon.storage.record import Record
from tunnel_pool.daemon.torrents.changes import Changes
from tunnel_pool.daemon.torrents.library import Library
from tunnel_pool.daemon.torrents.torrent import Torrent

AT_WORK_FOR_S = 5.0  # how old what changes with time alone may be of a torrent that runs
SELDOM_FOR_S = 60.0


class _Seldom(NamedTuple):
    made_s: float
    made_of: tuple[Record, bool]  # of the record, and of whether there was metadata
    row: dict[str, Any]
    trackers: tuple[str, ...]  # their URLs


class _Shown(NamedTuple):
    made_s: float
    made_of: tuple[Any, ...]
    row: dict[str, Any]


class Shown:
    def __init__(self, library: Library, changes: Changes) -> None:
        self.library = library
        self.changes = changes
        self._seldom: dict[int, _Seldom] = {}  # by the torrent's number
        self._shown: dict[int, _Shown] = {}

    def row(self, torrent: Torrent) -> Mapping[str, Any]:
        """Return the torrent as torrents/info has it."""
        settings, categories = self.library.records.settings, self.changes.categories()
        number, now_s = torrent.record.number, time.monotonic()
        seldom = self._looked_up(torrent, now_s)
        made_of = (torrent.changed, settings, tuple(categories), seldom.made_s)
        shown = self._shown.get(number)
        is_at_work = torrent.activity is Activity.RUNNING or torrent.is_checking
        if shown is None or shown.made_of != made_of or (is_at_work and shown.made_s < now_s - AT_WORK_FOR_S):
            row = {**fields.info(torrent, settings, categories), **seldom.row}
            if shown is not None and shown.row == row:
                row = shown.row  # so that whoever compares it need not look into it
            shown = self._shown[number] = _Shown(now_s, made_of, row)
        return shown.row

    def rows(self, torrents: Iterable[Torrent]) -> list[Mapping[str, Any]]:
        return [self.row(torrent) for torrent in torrents]

    def table(self) -> dict[str, Mapping[str, Any]]:
        """Return all torrents by their infohashes, and forget those that are gone."""
        torrents = self.library.torrents.values()
        numbers = {torrent.record.number for torrent in torrents}
        self._seldom = {number: kept for number, kept in self._seldom.items() if number in numbers}
        self._shown = {number: kept for number, kept in self._shown.items() if number in numbers}
        return {row["hash"]: row for row in self.rows(torrents)}

    def trackers(self) -> dict[str, list[str]]:
        """Return the infohashes of the torrents of each tracker, by its URL."""
        found: dict[str, list[str]] = {}
        for torrent in self.library.torrents.values():
            infohash = self.row(torrent)["hash"]
            for url in self._seldom[torrent.record.number].trackers:
                found.setdefault(url, []).append(infohash)
        return found

    def tags(self) -> list[str]:
        torrents = ((torrent.record.labels, torrent.record.hops) for torrent in self.library.torrents.values())
        return known_tags(self.library.records.settings.tags, torrents, self.changes.categories())

    def _looked_up(self, torrent: Torrent, now_s: float) -> _Seldom:
        """Return what is looked up seldom, as it was last time if the torrent goes from one session to another."""
        known = self._seldom.get(torrent.record.number)
        made_of = torrent.record, torrent.summary.has_metadata
        if known is not None and known.made_of == made_of and known.made_s > now_s - SELDOM_FOR_S:
            return known
        try:
            trackers = tuple(entry["url"] for entry in torrent.handle.trackers())
            row = {**fields.seldom(torrent), "trackers_count": len(trackers)}
        except RuntimeError:
            row, trackers = (known.row, known.trackers) if known is not None else ({}, ())
        known = self._seldom[torrent.record.number] = _Seldom(now_s, made_of, row, trackers)
        return known
