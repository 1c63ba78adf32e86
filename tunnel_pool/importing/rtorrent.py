"""Reads what rTorrent keeps in its session folder: *.torrent, *.torrent.rtorrent and *.torrent.libtorrent_resume.

See rtorrent's src/core/download_store.cc and libtorrent's (rakshasa's) src/torrent/utils/resume.cc.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import libtorrent as lt

from tunnel_pool.daemon.record import HIGH, NORMAL, UNWANTED
from tunnel_pool.importing.model import (
    BadTorrentError,
    Found,
    attempted,
    bits,
    content_of,
    dictionary_of,
    info_of,
    number,
    put_into,
    text,
    torrent_of,
)

USUAL = (
    Path("~/.session"),
    Path("~/.rtorrent/session"),
    Path("~/rtorrent/.session"),
    Path("~/.local/share/rtorrent/session"),
)
NAME = "rTorrent"
PRIORITIES = {0: UNWANTED, 1: NORMAL, 2: HIGH}


def read(folder: Path) -> Iterator[Found | BadTorrentError]:
    for path in sorted(folder.glob("*.torrent")):
        yield attempted(path.name, partial(_read, path))


def _read(path: Path) -> Found:
    own = dictionary_of(content_of(Path(f"{path}.rtorrent")), path.name)
    resume = Path(f"{path}.libtorrent_resume")
    kept = dictionary_of(content_of(resume), resume.name) if resume.exists() else {}
    return _found(torrent_of(path), own, kept)


def _found(parameters: lt.add_torrent_params, own: dict[bytes, Any], resume: dict[bytes, Any]) -> Found:
    info = info_of(parameters)
    put_into(parameters, text(own.get(b"directory")))
    parameters.have_pieces = _pieces(resume.get(b"bitfield"), info.num_pieces())
    files = [each for each in resume.get(b"files") or () if isinstance(each, dict)]
    parameters.file_priorities = [PRIORITIES.get(number(file.get(b"priority", 1)), NORMAL) for file in files]
    parameters.total_uploaded, parameters.total_downloaded = (
        number(own.get(b"total_uploaded")),
        number(own.get(b"total_downloaded")),
    )
    parameters.added_time = number(own.get(b"timestamp.started"))
    parameters.completed_time = number(own.get(b"timestamp.finished"))
    if (tiers := _tiers(parameters, resume.get(b"trackers"))) is not None:
        parameters.trackers = [url for urls in tiers for url in urls]
        parameters.tracker_tiers = [tier for tier, urls in enumerate(tiers) for _ in urls]
    label = unquote(text(own.get(b"custom1")))  # ruTorrent's label, which is percent-encoded
    return Found(parameters, [label] if label else [], not number(own.get(b"state")), {}, info.name())


def _tiers(parameters: lt.add_torrent_params, trackers: object) -> list[list[str]] | None:
    """Return the trackers of the session by tier: those of the torrent file but for what was switched off, and others.

    None where the session knows of none.
    """
    if not isinstance(trackers, dict) or not trackers:
        return None
    kept = {text(url): of for url, of in trackers.items() if isinstance(of, dict)}
    tiers: dict[int, list[str]] = {}
    for url, tier in zip(parameters.trackers, parameters.tracker_tiers, strict=True):
        if number(kept.get(url, {}).get(b"enabled", 1)):
            tiers.setdefault(tier, []).append(url)
    for url, of in kept.items():
        if number(of.get(b"extra_tracker")) and number(of.get(b"enabled", 1)):
            tiers.setdefault(number(of.get(b"group")), []).append(url)
    return [list(dict.fromkeys(tiers[tier])) for tier in sorted(tiers)]


def _pieces(bitfield: object, count: int) -> list[bool]:
    """Return which pieces are there: of all or none, it says how many there are; else it is a bitfield."""
    if isinstance(bitfield, bytes):
        return bits(bitfield, count)
    return [isinstance(bitfield, int) and bitfield == count] * count
