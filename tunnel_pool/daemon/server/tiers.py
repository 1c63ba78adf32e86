"""A torrent's trackers as its owner has them, with what libtorrent says of those that it asks."""

from collections.abc import Iterator, Mapping
from typing import Any

from tunnel_pool.daemon.torrents.view import TorrentView
from tunnel_pool.torrent.announces.trackers import UNREADABLE, trackers_of

NOT_ASKED = "not asked over hops, where it can't be: it is asked again at 0 hops"


def entries_of(torrent: TorrentView) -> Iterator[Mapping[str, Any]]:
    """Yield the trackers in the form of libtorrent's entries; `is_asked` says whether they are asked at all.

    Raises RuntimeError when the torrent is in no session.
    """
    asked = {entry["url"]: entry for entry in trackers_of(torrent.handle)}
    for tier, urls in enumerate(torrent.record.trackers):
        for url in urls:
            entry = asked.get(url) or {**UNREADABLE, "fails": 0, "message": NOT_ASKED}
            heard = torrent.trackers.get(url)
            message = heard.said if heard is not None and url in asked and heard.said else entry["message"]
            yield {**entry, "url": url, "tier": tier, "is_asked": url in asked, "message": message}


def refusal_of(torrent: TorrentView) -> str:
    """Return what the trackers of a torrent say that all refuse it; empty where one is of use, or may be."""
    said = ""
    for url in urls_of(torrent):
        heard = torrent.trackers.get(url)
        if heard is None or not heard.is_refusal:
            return ""
        said = said or heard.said
    return said


def warning_of(torrent: TorrentView) -> str:
    """Return what a tracker of the torrent warns of; empty where none does."""
    heard = (torrent.trackers.get(url) for url in urls_of(torrent))
    return next((each.said for each in heard if each is not None and each.is_warning), "")


def urls_of(torrent: TorrentView) -> list[str]:
    return [url for urls in torrent.record.trackers for url in urls]
