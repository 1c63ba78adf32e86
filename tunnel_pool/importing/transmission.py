"""Reads what Transmission keeps: torrents/*.torrent and resume/*.resume (libtransmission/resume.cc)."""

import os
import re
from collections.abc import Iterator
from functools import partial
from itertools import zip_longest
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
from tunnel_pool.torrent.links import links_in, text_of

USUAL = (
    Path("~/.config/transmission-daemon"),
    Path("~/.config/transmission"),
    Path("/var/lib/transmission-daemon/.config/transmission-daemon"),
    Path("/var/lib/transmission/.config/transmission-daemon"),
)
NAME = "Transmission"
PRIORITIES = {-1: LOW, 0: NORMAL, 1: HIGH}
OLD_KEYS = {b"sequential_download": b"sequentialDownload"}  # those that had no hyphens
RESERVED = re.compile(r'[<>:"|?*\x00-\x1f]')
PARTIAL = ".part"  # what the names of files end with that are not whole (rename-partial-files)


def read(folder: Path) -> Iterator[Found | BadTorrentError]:
    for path in sorted((folder / "torrents").glob("*.torrent")):
        yield attempted(path.name, partial(_read, path, folder / "resume" / f"{path.stem}.resume"))
    for path in sorted((folder / "torrents").glob("*.magnet")):
        yield attempted(path.name, partial(_read_link, path))


def _read(path: Path, resume: Path) -> Found:
    kept = dictionary_of(content_of(resume), resume.name) if resume.exists() else {}
    return _found(torrent_of(path), _usual_keys(kept))


def _read_link(path: Path) -> Found:
    """Raises BadTorrentError: what Transmission knows of such a torrent is its link."""
    link = next(iter(links_in(text_of(content_of(path)))), "")
    if not link:
        raise BadTorrentError(f"{path.name} has no link")
    raise BadTorrentError(f"its metadata is not known yet: add its link, {link}")


def _usual_keys(kept: Any) -> Any:
    """Return what is kept by the keys of Transmission before 4.1, however deep: `added-date` for `added_date`."""
    if isinstance(kept, dict):
        return {OLD_KEYS.get(key, key.replace(b"_", b"-")): _usual_keys(value) for key, value in kept.items()}
    return kept


def _found(parameters: lt.add_torrent_params, kept: dict[bytes, Any]) -> Found:
    info = info_of(parameters)
    name = text(kept.get(b"name")) or info.name()
    parameters.save_path = text(kept.get(b"destination"))
    guesses = _names_of(parameters, name, kept.get(b"files"))
    parameters.renamed_files = guesses[0]
    parameters.have_pieces = _pieces(kept.get(b"progress"), info)
    incomplete = text(kept.get(b"incomplete-dir"))
    if incomplete and not all(parameters.have_pieces) and _is_there(incomplete, parameters):
        parameters.save_path = incomplete
    guesses = [_with_partial_names(parameters, names) for names in guesses]
    parameters.renamed_files = guesses[0]
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
    renames = usual_names(parameters, PARTIAL)
    found = Found(parameters, labels, is_stopped, _changes(kept), name, renames, guesses[1:])
    found.go_home(text(kept.get(b"destination")))
    return found


def _names_of(parameters: lt.add_torrent_params, name: str, files: object) -> list[dict[int, str]]:
    """Return how its files may be named on the disk: as is kept, or as Transmission writes names of its own.

    The resume file names each file by its whole path, or by an empty text where it was not renamed. It has no such list
    before 4.0 where nothing was renamed. `name` is what is shown, and of old the top folder's, too. Characters that
    some file systems refuse are written as `_`.
    """
    layout = info_of(parameters).layout()
    own = [str(layout.file_path(index)) for index in range(layout.num_files())]
    kept = [text(each) for each in files] if isinstance(files, list) else []
    said = [there or usual for there, usual in zip_longest(kept[: len(own)], own, fillvalue="")]
    mended = [RESERVED.sub("_", path) for path in said]
    guesses = [renamed(parameters, paths) for paths in (said, mended)]
    if name != info_of(parameters).name():
        guesses.insert(0 if not any(kept) else 2, below(name, parameters))
    return guesses


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


def _with_partial_names(parameters: lt.add_torrent_params, names: dict[int, str]) -> dict[int, str]:
    """Name files as they are on the disk until they are whole, where this is the same machine."""
    parameters.renamed_files = names
    found = dict(names)
    for index, path in paths_of(parameters).items():
        place = os.path.join(parameters.save_path, path)
        if not os.path.exists(place) and os.path.exists(place + PARTIAL):
            found[index] = path + PARTIAL
    return found
