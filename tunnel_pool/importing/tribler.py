"""Reads what Tribler 7 and 8 keep: dlcheckpoints/*.conf, one file for each download (its download_config.py).

They are in Tribler's state folder; before 8.0.4, in one for each version there.
"""

import base64
import binascii
import configparser
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import libtorrent as lt

from tunnel_pool.daemon.record import NORMAL, UNWANTED, LimitMode
from tunnel_pool.importing.libtorrents import speed_changes, with_resume
from tunnel_pool.importing.model import BadTorrentError, Found, attempted, content_of, info_of, number, unquoted
from tunnel_pool.overlay.ground.config import MAX_HOPS
from tunnel_pool.torrent.metainfo import read_metainfo, read_resume

USUAL = (Path("~/.Tribler"),)
NAME = "Tribler"
FOLDER = "dlcheckpoints"
OF_STATE = ("engineresumedata", "metainfo")
YES = ("true", "1", "yes", "on")  # as Python's configparser reads them


def read(folder: Path) -> Iterator[Found | BadTorrentError]:
    for path in sorted(_checkpoints(folder).glob("*.conf")):
        yield attempted(path.name, partial(_read, path))


def _checkpoints(folder: Path) -> Path:
    """Return the folder of the downloads: of several versions, the one that was written last."""
    if (folder / FOLDER).is_dir():
        return folder / FOLDER
    of_versions = sorted(folder.glob(f"*/{FOLDER}"), key=lambda place: place.stat().st_mtime)
    return of_versions[-1] if of_versions else folder


def _read(path: Path) -> Found:
    parser = configparser.RawConfigParser(default_section="download_defaults", strict=False)
    try:
        parser.read_string(content_of(path).decode())
        state = parser["state"]
    except (configparser.Error, KeyError, ValueError):
        raise BadTorrentError(f"{path.name} can't be read") from None
    # Tribler 8.4.3 also writes the download's own values to [state], and leaves these there when they change or go.
    kept = {**parser.defaults(), **{name: state[name] for name in OF_STATE if name in state}}
    return _found({name: unquoted(value.strip()) for name, value in kept.items()}, path.stem)


def _found(kept: Mapping[str, str], infohash: str) -> Found:
    parameters = _parameters(kept, infohash)
    parameters.save_path = kept.get("saveas") or parameters.save_path
    if chosen := [int(index) for index in _chosen(kept) if index.isdigit()]:
        files = info_of(parameters).num_files()
        parameters.file_priorities = [NORMAL if index in chosen else UNWANTED for index in range(files)]
    is_stopped = kept.get("user_stopped", "").lower() in YES
    found = Found(parameters, is_stopped=is_stopped, changes=_changes(kept), name=info_of(parameters).name())
    found.hops = min(MAX_HOPS, max(0, number(kept.get("hops", "0").encode())))
    found.go_home(kept.get("completed_dir", ""))
    return found


def _chosen(kept: Mapping[str, str]) -> list[str]:
    names = kept.get("files") or kept.get("selected_file_indexes") or ""  # of 7
    return [name.strip() for name in names.split(",")]


def _parameters(kept: Mapping[str, str], infohash: str) -> lt.add_torrent_params:
    """Return the torrent with what is there of it: its metadata is in the resume data, before 8.3 beside these.

    Raises BadTorrentError.
    """
    resume, metainfo = _decoded(kept.get("engineresumedata")), _decoded(kept.get("metainfo"))
    try:
        parameters = read_resume(resume)
    except RuntimeError:
        parameters = lt.add_torrent_params()
    if parameters.ti is not None:
        content: Any = lt.write_torrent_file(parameters)
        return with_resume(read_metainfo(lt.bencode(content)), resume)
    try:
        found = read_metainfo(metainfo)
    except RuntimeError:
        raise BadTorrentError(f"{infohash}: its metadata is not known yet: add its magnet link") from None
    return with_resume(found, resume) if parameters.info_hashes.has_v1() else found


def _decoded(text: str | None) -> bytes:
    try:
        return base64.b64decode(text or "")
    except (binascii.Error, ValueError):
        return b""


def _changes(kept: Mapping[str, str]) -> dict[str, Any]:
    """Return limits of its own, as torrent-set takes them; speeds are bytes a second, below 0 for none."""
    down, up = (number(kept.get(f"{way}_limit", "-1").encode()) for way in ("download", "upload"))
    changes = speed_changes(down, up)
    try:
        ratio = float(kept["seeding_ratio"])
    except (KeyError, ValueError):
        return changes
    return changes | {"seed_ratio_mode": int(LimitMode.SINGLE), "seed_ratio_limit": max(0.0, ratio)}
