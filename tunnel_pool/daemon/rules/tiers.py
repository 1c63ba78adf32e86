"""A torrent's trackers in tiers (BEP 12), as its owner may have them. Pure."""

from collections.abc import Sequence
from urllib.parse import SplitResult, urlsplit

import libtorrent as lt

from tunnel_pool.daemon.errors import RequestError
from tunnel_pool.torrent.metainfo import MAX_TRACKERS

MAX_SHOWN = 100
SCHEMES = ("http", "https", "udp")


def checked(tiers: Sequence[Sequence[str]], before: Sequence[Sequence[str]]) -> list[list[str]]:
    """Return the tiers that are not empty, each URL once; those that were there `before` may be of any kind.

    Raises RequestError.
    """
    known = {url for urls in before for url in urls}
    found: dict[str, None] = {}
    left = [[url for url in urls if not (url in found or found.update({url: None}))] for urls in tiers]
    if len(found) > max(MAX_TRACKERS, len(known)):
        raise RequestError(f"invalid argument: {MAX_TRACKERS} trackers are the most")
    for url in found.keys() - known:
        parts = split_url(url) if isinstance(url, str) else None
        if parts is None or parts.scheme not in SCHEMES or not parts.hostname:
            what = f"{str(url)[:MAX_SHOWN]!r} is no tracker"
            raise RequestError(f"invalid argument: {what}: a tracker's URL begins with one of {', '.join(SCHEMES)}")
    return [urls for urls in left if urls]


def split_url(url: str) -> SplitResult:
    """Return the parts of a URL, empty ones where it is none."""
    try:
        return urlsplit(url)
    except ValueError:
        return urlsplit("")


def tiers_in(parameters: lt.add_torrent_params) -> list[list[str]]:
    """Return the trackers that a torrent file or a magnet link names."""
    urls = parameters.trackers
    tiers: dict[int, list[str]] = {}
    for url, tier in zip(urls, [*parameters.tracker_tiers, *[0] * len(urls)], strict=False):
        tiers.setdefault(tier, []).append(url)
    return checked([each for _, each in sorted(tiers.items())], list(tiers.values()))


def name_trackers(parameters: lt.add_torrent_params, tiers: Sequence[Sequence[str]], web_seeds: Sequence[str]) -> None:
    """Have parameters name these trackers and web seeds."""
    parameters.trackers = [url for urls in tiers for url in urls]
    parameters.tracker_tiers = [tier for tier, urls in enumerate(tiers) for _ in urls]
    parameters.url_seeds = list(web_seeds)


def merged(tiers: Sequence[Sequence[str]], more: Sequence[Sequence[str]]) -> list[list[str]]:
    """Return tiers with those URLs of others that are new, in tiers of their own."""
    known = {url for urls in tiers for url in urls}
    new = [[url for url in dict.fromkeys(urls) if url not in known] for urls in more]
    return [*map(list, tiers), *filter(None, new)]
