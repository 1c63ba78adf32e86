"""Has libtorrent tell trackers and the DHT of torrents again, however short ago it did, some torrents at a time."""

from collections.abc import Container, Iterable

import libtorrent as lt

from tunnel_pool.torrent.announces.trackers import trackers_of


class Reannounces:
    """Holds which torrents are still to be announced.

    Of two announces to a tracker libtorrent drops the later one while the earlier, which may name another address, has
    no answer (announce_entry.cpp, can_announce). That tracker is told again once it has answered, or the announce has
    failed, as it was sent before there was a circuit: libtorrent itself would wait half an hour, or half a minute.
    """

    def __init__(self) -> None:
        self._waiting: dict[lt.torrent_handle, bool] = {}  # whether its trackers are told, too
        self._unanswered: dict[lt.torrent_handle, set[str]] = {}  # the URLs of trackers that were being told

    def add(self, handles: Iterable[lt.torrent_handle], *, to_trackers: bool) -> None:
        """Have torrents announced by calls of `some`."""
        self._waiting |= {handle: to_trackers or self._waiting.get(handle, False) for handle in handles}

    def some(self, most: int, torrents: Container[lt.torrent_handle]) -> bool:
        """Announce at most so many torrents, of those that are still in the session; return whether others are left."""
        for handle in list(self._unanswered)[:most]:
            urls = self._unanswered.pop(handle)
            if handle in torrents:
                self._tell_who_is_free(handle, urls)
        for handle in list(self._waiting)[:most]:
            to_trackers = self._waiting.pop(handle)
            if handle in torrents:
                self._announce(handle, to_trackers=to_trackers)
        return bool(self._waiting or self._unanswered)

    def _announce(self, handle: lt.torrent_handle, *, to_trackers: bool) -> None:
        if to_trackers:
            if updating := {tracker["url"] for tracker in trackers_of(handle) if tracker["updating"]}:
                self._unanswered[handle] = updating
            handle.force_reannounce(0, -1, lt.torrent_handle.ignore_min_interval)
        handle.force_dht_announce()

    def _tell_who_is_free(self, handle: lt.torrent_handle, urls: set[str]) -> None:
        """Tell trackers again, and keep those that have not answered yet."""
        for number, tracker in enumerate(trackers_of(handle)):
            if tracker["url"] in urls and tracker["updating"]:
                self._unanswered.setdefault(handle, set()).add(tracker["url"])
            elif tracker["url"] in urls:
                handle.force_reannounce(0, number, lt.torrent_handle.ignore_min_interval)
