"""Mends the URLs of trackers that libtorrent would leave out for a blank in them. Pure.

People paste them so into torrents and links. Transmission takes the blanks around them off
(`tr_announce_list::announce_to_scrape` and `add` in libtransmission/announce-list.cc), others ask as they are.
"""

import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote_to_bytes

import libtorrent as lt

_INFO = b"4:infod"
_SCHEME = re.compile("(https?|udp)://[^/]", re.IGNORECASE)
_AROUND = " \t\r\n\v\f\0\ufeff"


def tiers_of_metainfo(data: bytes) -> list[list[bytes]]:
    """Return the tiers of trackers (BEP 3, BEP 12) as a .torrent file spells them.

    Its keys are sorted, so that those of trackers come before `info`, whose size does not matter then; of a file that
    is not so, none are returned.
    """
    head, found, _ = data.partition(_INFO)
    try:
        metainfo: Any = lt.bdecode(head + b"e") if found else None
    except RuntimeError:
        metainfo = None
    if not isinstance(metainfo, dict):
        return []
    listed = metainfo.get(b"announce-list")
    tiers = [[url for url in urls if isinstance(url, bytes)] for urls in _lists_in(listed)]
    announce = metainfo.get(b"announce")
    return tiers if any(map(any, tiers)) else [[announce]] if isinstance(announce, bytes) else []


def _lists_in(listed: object) -> list[list[object]]:
    return [each for each in listed if isinstance(each, list)] if isinstance(listed, list) else []


def tiers_of_link(link: str) -> list[list[bytes]]:
    """Return the trackers of a magnet link (BEP 9), each in a tier of its own. A plus sign is none for a blank."""
    pairs = (pair.partition("=") for pair in link.partition("?")[2].split("&"))
    return [[unquote_to_bytes(url)] for name, _, url in pairs if name.partition(".")[0].lower() == "tr"]


def mended(url: bytes) -> str:
    """Return a tracker's URL without blanks around it, and with those within escaped; empty where it is no text."""
    try:
        text = url.decode().strip(_AROUND)
    except UnicodeDecodeError:
        return ""
    if "://" in text and text.startswith("+"):  # of a form, in which it stands for a blank
        text = text.strip("+")
    return text.replace(" ", "%20")


def mend(parameters: lt.add_torrent_params, tiers: Sequence[Sequence[bytes]]) -> None:
    """Have the parameters of a torrent name all of these trackers, where libtorrent has left some out for a blank."""
    known = set(parameters.trackers)
    named = [(number, mended(url)) for number, tier in enumerate(tiers) for url in tier]
    good = {url: number for number, url in reversed(named) if url in known or _SCHEME.match(url)}
    if good.keys() <= known:
        return
    in_order = sorted(good, key=lambda url: (good[url], url not in known))
    parameters.trackers = in_order
    parameters.tracker_tiers = [good[url] for url in in_order]
    parameters.flags |= lt.torrent_flags.override_trackers
