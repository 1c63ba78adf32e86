"""A torrent's trackers, whatever they have answered."""

from collections.abc import Sequence
from typing import Any

import libtorrent as lt

from tunnel_pool.torrent.announces.words import NO_TEXT

# Of a tracker whose last answer is no text, which libtorrent's Python can't get at.
UNREADABLE: dict[str, Any] = {
    "fails": 1,
    "message": NO_TEXT,
    "next_announce": None,
    "scrape_complete": 0,
    "scrape_downloaded": 0,
    "scrape_incomplete": 0,
    "updating": False,
    "verified": False,
}


def trackers_of(handle: lt.torrent_handle) -> Sequence[Any]:
    """Return libtorrent's entries. Where one can't be read, none tells more than its URL.

    Raises RuntimeError when the torrent is in no session.
    """
    try:
        return handle.trackers()
    except UnicodeError:
        pass
    try:
        urls = lt.parse_magnet_uri(lt.make_magnet_uri(handle)).trackers
    except UnicodeError:
        return []
    return [{**UNREADABLE, "url": url, "tier": tier} for tier, url in enumerate(urls)]
