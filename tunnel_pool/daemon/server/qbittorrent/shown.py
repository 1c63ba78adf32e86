"""The daemon's torrents as qBittorrent's clients see them, made anew only where something may have changed."""

import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from tunnel_pool.daemon.changes.changes import Changes
from tunnel_pool.daemon.record import Record
from tunnel_pool.daemon.rules.queue import Activity
from tunnel_pool.daemon.server.qbittorrent import fields
from tunnel_pool.daemon.server.qbittorrent.categories import known_tags
from tunnel_pool.daemon.server.tiers import urls_of
from tunnel_pool.daemon.storage.settings import Settings
from tunnel_pool.daemon.torrents.library import Library
from tunnel_pool.daemon.torrents.view import TorrentView

AT_WORK_FOR_S = 5.0  # how old what changes with time alone may be of a torrent that runs
SELDOM_FOR_S = 60.0
SPREAD_S = 30  # over so many seconds more torrents are looked at anew that came together
NOT_KNOWN = {"content_path": "", "root_path": "", "magnet_uri": "", "trackers_count": 0}


class _Seldom(NamedTuple):
    until_s: float
    made_of: tuple[Record, bool]  # of the record, and of whether there was metadata
    row: dict[str, object]
    trackers: tuple[str, ...]  # their URLs


class _Shown(NamedTuple):
    made_s: float
    made_of: tuple[object, ...]
    row: dict[str, object]


class Shown:
    def __init__(self, library: Library, changes: Changes) -> None:
        self.library = library
        self.changes = changes
        self._seldom: dict[int, _Seldom] = {}  # by the torrent's number
        self._shown: dict[int, _Shown] = {}

    def row(self, torrent: TorrentView) -> Mapping[str, object]:
        """Return the torrent as torrents/info has it."""
        return self.rows([torrent])[0]

    def rows(self, torrents: Iterable[TorrentView]) -> list[Mapping[str, Any]]:
        if len(self._shown) > len(self.library.torrents):
            self._forget_gone()
        settings, categories = self.library.records.settings, self.changes.categories()
        return [self._row(torrent, settings, categories) for torrent in torrents]

    def _row(self, torrent: TorrentView, settings: Settings, categories: Mapping[str, str]) -> Mapping[str, object]:
        number, now_s = torrent.record.number, time.monotonic()
        seldom = self._looked_up(torrent, now_s)
        made_of = torrent.changed, settings, tuple(categories), seldom
        shown = self._shown.get(number)
        is_at_work = torrent.activity is Activity.RUNNING or torrent.is_checking
        if shown is None or shown.made_of != made_of or (is_at_work and shown.made_s < now_s - AT_WORK_FOR_S):
            row = {**fields.info(torrent, settings, categories), **seldom.row}
            if shown is not None and shown.row == row:
                row = shown.row  # so that whoever compares it need not look into it
            shown = self._shown[number] = _Shown(now_s, made_of, row)
        return shown.row

    def _forget_gone(self) -> None:
        numbers = {torrent.record.number for torrent in self.library.torrents.values()}
        self._seldom = {number: kept for number, kept in self._seldom.items() if number in numbers}
        self._shown = {number: kept for number, kept in self._shown.items() if number in numbers}

    def table(self) -> dict[str, Mapping[str, object]]:
        """Return all torrents by their infohashes."""
        return {row["hash"]: row for row in self.rows(self.library.torrents.values())}

    def trackers(self) -> dict[str, list[str]]:
        """Return the infohashes of the torrents of each tracker, by its URL."""
        found: dict[str, list[str]] = {}
        for torrent in self.library.torrents.values():
            for url in self._looked_up(torrent, time.monotonic()).trackers:
                found.setdefault(url, []).append(torrent.hash_string)
        return found

    def tags(self) -> list[str]:
        torrents = ((torrent.record.labels, torrent.record.hops) for torrent in self.library.torrents.values())
        return known_tags(self.library.records.settings.tags, torrents, self.changes.categories())

    def _looked_up(self, torrent: TorrentView, now_s: float) -> _Seldom:
        """Return what is looked up seldom, as it was last time if the torrent goes from one session to another."""
        number = torrent.record.number
        known = self._seldom.get(number)
        made_of = torrent.record, torrent.summary.has_metadata
        if known is not None and known.made_of == made_of and known.until_s > now_s:
            return known
        try:
            trackers = tuple(urls_of(torrent))
            row = {**fields.seldom(torrent), "trackers_count": len(trackers)}
        except RuntimeError:
            return known or _Seldom(now_s, made_of, NOT_KNOWN, ())
        until_s = now_s + SELDOM_FOR_S + number % SPREAD_S
        known = self._seldom[number] = _Seldom(until_s, made_of, row, trackers)
        return known
