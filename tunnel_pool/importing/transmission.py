"""Reads what Transmission keeps: torrents/*.torrent and resume/*.resume (libtransmission/resume.cc)."""

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import libtorrent as lt

from tunnel_pool.daemon.record import HIGH, LOW, NORMAL, UNWANTED
from tunnel_pool.daemon.rules.groups import MAX_KB_PER_S
from tunnel_pool.daemon.storage.settings import MAX_COUNT
from tunnel_pool.importing.model import (
    BadTorrentError,
    Found,
    attempted,
    below,
    content_of,
    counted,
    dictionary_of,
    info_of,
    number,
    paths_of,
    pieces_of_blocks,
    renamed,
    text,
    torrent_of,
    usual_names,
)

USUAL = (
    Path("~/.config/transmission-daemon"),
    Path("~/.config/transmission"),
    Path("/var/lib/transmission-daemon/.config/transmission-daemon"),
    Path("/var/lib/transmission/.config/transmission-daemon"),
)
NAME = "Transmission"
PRIORITIES = {-1: LOW, 0: NORMAL, 1: HIGH}
PARTIAL = ".part"  # what the names of files end with that are not whole (rename-partial-files)


def read(folder: Path) -> Iterator[Found | BadTorrentError]:
    for path in sorted((folder / "torrents").glob("*.torrent")):
        yield attempted(path.name, partial(_read, path, folder / "resume" / f"{path.stem}.resume"))


def _read(path: Path, resume: Path) -> Found:
    kept = dictionary_of(content_of(resume), resume.name) if resume.exists() else {}
    return _found(torrent_of(path), kept)


def _found(parameters: lt.add_torrent_params, kept: dict[bytes, Any]) -> Found:
    info = info_of(parameters)
    name = text(kept.get(b"name")) or info.name()
    parameters.save_path = text(kept.get(b"destination"))
    if names := [text(each) for each in kept.get(b"files") or ()]:
        parameters.renamed_files = renamed(parameters, (each if each == name else f"{name}/{each}" for each in names))
    elif name != info.name():
        parameters.renamed_files = below(name, parameters)
    parameters.have_pieces = _pieces(kept.get(b"progress"), info)
    incomplete = text(kept.get(b"incomplete-dir"))
    if incomplete and not all(parameters.have_pieces) and _is_there(incomplete, parameters):
        parameters.save_path = incomplete
    _take_partial_names(parameters)
    parameters.file_priorities = _priorities(kept, info.num_files())
    parameters.total_uploaded, parameters.total_downloaded = (
        number(kept.get(b"uploaded")),
        number(kept.get(b"downloaded")),
    )
    parameters.added_time, parameters.completed_time = number(kept.get(b"added-date")), number(kept.get(b"done-date"))
    parameters.finished_time = parameters.seeding_time = number(kept.get(b"seeding-time-seconds"))
    parameters.active_time = number(kept.get(b"downloading-time-seconds")) + parameters.finished_time
    labels = [text(label) for label in kept.get(b"labels") or ()]
    is_stopped = bool(number(kept.get(b"paused")))
    return Found(parameters, labels, is_stopped, _changes(kept), name, usual_names(parameters, PARTIAL))


def _pieces(progress: object, info: lt.torrent_info) -> list[bool]:
    """Return which pieces are there: `blocks` is a bitfield of blocks of 16 KiB, or says `all` or `none`."""
    blocks = progress.get(b"blocks", b"none") if isinstance(progress, dict) else b"none"
    if blocks in (b"all", b"none"):
        return [blocks == b"all"] * info.num_pieces()
    return pieces_of_blocks(blocks if isinstance(blocks, bytes) else b"", info)


def _priorities(kept: dict[bytes, Any], files: int) -> list[int]:
    unwanted, priorities = kept.get(b"dnd") or [], kept.get(b"priority") or []
    return [
        UNWANTED
        if index < len(unwanted) and unwanted[index]
        else PRIORITIES.get(priorities[index] if index < len(priorities) else 0, NORMAL)
        for index in range(files)
    ]


def _changes(kept: dict[bytes, Any]) -> dict[str, Any]:
    """Return limits of its own, as torrent-set takes them."""
    ratio, idle = kept.get(b"ratio-limit") or {}, kept.get(b"idle-limit") or {}
    changes: dict[str, Any] = {
        "seed_ratio_mode": min(2, max(0, number(ratio.get(b"ratio-mode")))),
        "seed_ratio_limit": min(MAX_COUNT, max(0.0, float(text(ratio.get(b"ratio-limit")) or 0))),
        "seed_idle_mode": min(2, max(0, number(idle.get(b"idle-mode")))),
        "seed_idle_limit": counted(idle.get(b"idle-limit")),
        "bandwidth_priority": min(1, max(-1, number(kept.get(b"bandwidth-priority")))),
        "peer_limit": counted(kept.get(b"max-peers")) or 50,
        "sequential_download": bool(number(kept.get(b"sequentialDownload"))),
    }
    for way, name in ((b"down", "download"), (b"up", "upload")):
        speed = kept.get(b"speed-limit-" + way) or {}
        changes[f"{name}_limited"] = bool(number(speed.get(b"use-speed-limit")))
        changes[f"{name}_limit"] = min(MAX_KB_PER_S, counted(number(speed.get(b"speed-Bps")) // 1000))
    return changes


def _is_there(folder: str, parameters: lt.add_torrent_params) -> bool:
    paths = paths_of(parameters).values()
    return any(os.path.exists(os.path.join(folder, path + end)) for path in paths for end in ("", PARTIAL))


def _take_partial_names(parameters: lt.add_torrent_params) -> None:
    """Name files as they are on the disk until they are whole, where this is the same machine."""
    found = dict(parameters.renamed_files)
    for index, path in paths_of(parameters).items():
        place = os.path.join(parameters.save_path, path)
        if not os.path.exists(place) and os.path.exists(place + PARTIAL):
            found[index] = path + PARTIAL
    parameters.renamed_files = found
