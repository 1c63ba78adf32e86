"""Has libtorrent tell trackers and the DHT of torrents again, however short ago it did, some torrents at a time."""

from collections.abc import Callable, Container, Iterable

import libtorrent as lt

from tunnel_pool.torrent.announces.trackers import trackers_of
from tunnel_pool.torrent.anonymous_torrents import tracker_place
from tunnel_pool.torrent.metainfo import hidden_hashes_of

IsTold = Callable[[Iterable[bytes], str], bool]
"""Whether a tracker, by its URL, has been told where the torrent of these infohashes (20 bytes each) is found."""

NO_FLAGS = 0  # where it is left out, libtorrent's Python takes a tracker's number for flags, and asks all
INFOHASH_BYTES = 20  # by which trackers know torrents; of version 2, it is the beginning (BEP 52)


class Reannounces:
    """Holds which torrents are still to be announced.

    A tracker is told again no sooner than it wants to be (`min interval`; libtorrent takes 30 s by HTTP and 60 s by UDP
    where it does not say), and not if it is told already; one that has failed is asked when libtorrent asks it.

    Of two announces to a tracker libtorrent drops the later one while the earlier, which may name another address, has
    no answer (announce_entry.cpp, can_announce). That tracker is told again once it has answered, or the announce has
    failed, as it was sent before there was a circuit: libtorrent itself would wait half an hour, or half a minute.
    """

    def __init__(self) -> None:
        self._waiting: dict[lt.torrent_handle, bool] = {}  # whether its trackers are told, too
        self._unanswered: dict[lt.torrent_handle, set[str]] = {}  # the URLs of trackers that were being told
        self._is_told: IsTold = lambda infohashes, url: False

    def add(self, handles: Iterable[lt.torrent_handle], *, to_trackers: bool, is_told: IsTold | None = None) -> None:
        """Have torrents announced by calls of `some`; `is_told` holds for these and those that wait."""
        self._is_told = is_told or self._is_told
        self._waiting |= {handle: to_trackers or self._waiting.get(handle, False) for handle in handles}

    def some(self, most: int, torrents: Container[lt.torrent_handle]) -> bool:
        """Announce at most so many torrents, of those that are still in the session; return whether others are left."""
        for handle in list(self._unanswered)[:most]:
            urls = self._unanswered.pop(handle)
            if handle in torrents:
                self._tell(handle, urls, most_fails=1)
        for handle in list(self._waiting)[:most]:
            to_trackers = self._waiting.pop(handle)
            if handle in torrents:
                self._announce(handle, to_trackers=to_trackers)
        return bool(self._waiting or self._unanswered)

    def ask(self, handle: lt.torrent_handle) -> None:
        """Ask a torrent's trackers for peers, those that have answered last and may be asked."""
        for number, tracker in enumerate(trackers_of(handle)):
            if not tracker["fails"]:
                handle.force_reannounce(0, number, NO_FLAGS)

    def ask_one(self, handle: lt.torrent_handle, url: str) -> None:
        """Ask the tracker of this URL, whether or not it has failed."""
        for number, tracker in enumerate(trackers_of(handle)):
            if tracker["url"] == url:
                handle.force_reannounce(0, number, NO_FLAGS)

    def _announce(self, handle: lt.torrent_handle, *, to_trackers: bool) -> None:
        if to_trackers:
            self._tell(handle, {tracker["url"] for tracker in trackers_of(handle)}, most_fails=0)
        handle.force_dht_announce()

    def _tell(self, handle: lt.torrent_handle, urls: Container[str], most_fails: int) -> None:
        """Tell trackers again that have not failed so often; keep those that have not answered yet."""
        infohashes = [each[:INFOHASH_BYTES] for each in hidden_hashes_of(handle.info_hashes())]
        for number, tracker in enumerate(trackers_of(handle)):
            url = tracker["url"]
            if url not in urls or tracker_place(url) is None:
                continue
            if tracker["updating"]:
                self._unanswered.setdefault(handle, set()).add(url)
            elif tracker["fails"] <= most_fails and not self._is_told(infohashes, url):
                handle.force_reannounce(0, number, NO_FLAGS)
