"""A torrent's trackers in tiers (BEP 12), as clients see and change them."""

from collections.abc import Sequence
from urllib.parse import SplitResult, urlsplit

from tunnel_pool.daemon.errors import RequestError
from tunnel_pool.daemon.torrents.torrent import Torrent
from tunnel_pool.torrent.metainfo import MAX_TRACKERS
from tunnel_pool.torrent.trackers import trackers_of

SCHEMES = ("http", "https", "udp")


def tiers_of(torrent: Torrent) -> list[list[str]]:
    tiers: dict[int, list[str]] = {}
    for entry in trackers_of(torrent.handle):
        tiers.setdefault(entry["tier"], []).append(entry["url"])
    return [urls for _, urls in sorted(tiers.items())]


def checked(tiers: Sequence[Sequence[str]], torrent: Torrent) -> list[list[str]]:
    """Return the tiers that are not empty; those that the torrent has already may be of any kind.

    Raises RequestError.
    """
    urls = [url for urls in tiers for url in urls]
    known = {entry["url"] for entry in trackers_of(torrent.handle)}
    if len(urls) > max(MAX_TRACKERS, len(known)):
        raise RequestError(f"invalid argument: {MAX_TRACKERS} trackers are the most")
    for url in urls:
        if isinstance(url, str) and url in known:
            continue
        parts = split_url(url) if isinstance(url, str) else None
        if parts is None or parts.scheme not in SCHEMES or not parts.hostname:
            raise RequestError(f"invalid argument: a tracker's URL begins with one of {', '.join(SCHEMES)}")
    return [list(urls) for urls in tiers if urls]


def split_url(url: str) -> SplitResult:
    """Return the parts of a URL, empty ones where it is none."""
    try:
        return urlsplit(url)
    except ValueError:
        return urlsplit("")
