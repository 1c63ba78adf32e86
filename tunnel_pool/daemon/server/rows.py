"""Torrents in bytes, made anew only when one has changed: a list of a thousand is asked for again and again."""

import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from tunnel_pool.daemon.torrents.library import Library
from tunnel_pool.daemon.torrents.status import PEERS_FOR_S
from tunnel_pool.daemon.torrents.view import TorrentView


class _Row(NamedTuple):
    changed: int  # the torrent's `changed` when the row was made
    made_s: float
    row: bytes


class Rows:
    """Keeps each torrent's row as `make` made it; with `of_peers`, what it says of peers is up to a second old."""

    def __init__(self, make: Callable[[TorrentView], bytes], of_peers: bool = False) -> None:
        self._make = make
        self._of_peers = of_peers
        self._rows: dict[int, _Row] = {}
        self._all = b""
        self._made_of = 0, 0
        self._stale_s = 0.0

    def of(self, torrents: Iterable[TorrentView]) -> list[bytes]:
        before, self._rows = self._rows, {}
        now_s = time.monotonic()
        return [self._row(torrent, before, now_s) for torrent in torrents]

    def all_of(self, library: Library) -> bytes:
        """Return the rows of all torrents with commas between; nothing is looked at when nothing has changed."""
        made_of = library.seen.value, len(library.torrents)
        now_s = time.monotonic()
        if self._made_of != made_of or (self._of_peers and now_s >= self._stale_s):
            self._made_of, self._stale_s = made_of, now_s + PEERS_FOR_S
            self._all = b",".join(self.of(library.torrents.values()))
        return self._all

    def _row(self, torrent: TorrentView, before: dict[int, _Row], now_s: float) -> bytes:
        number = torrent.record.number
        known = before.get(number)
        is_stale = known is not None and self._of_peers and torrent.summary.num_peers > 0
        if known is None or known.changed != torrent.changed or (is_stale and known.made_s <= now_s - PEERS_FOR_S):
            known = _Row(torrent.changed, now_s, self._make(torrent))
        self._rows[number] = known
        return known.row
