"""Reads what qBittorrent keeps: BT_backup/*.torrent and *.fastresume, or torrents.db (its src/base/bittorrent).

See bencoderesumedatastorage.cpp and dbresumedatastorage.cpp there.
"""

import configparser
import contextlib
import json
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from tunnel_pool.daemon.record import NORMAL, LimitMode
from tunnel_pool.importing.libtorrents import speed_changes, with_resume
from tunnel_pool.importing.model import (
    BadTorrentError,
    Found,
    attempted,
    content_of,
    counted,
    dictionary_of,
    number,
    text,
    torrent_of,
    unquoted,
    usual_names,
)
from tunnel_pool.torrent.metainfo import read_metainfo

USUAL = (Path("~/.local/share/qBittorrent"), Path("~/.local/share/data/qBittorrent"), Path("/var/lib/qbittorrent"))
CONFIG = Path("~/.config/qBittorrent")
NAME = "qBittorrent"
FOLDER, DATABASE = "BT_backup", "torrents.db"
PARTIAL = ".!qB"
GLOBAL_RATIO, NO_RATIO = -2000, -1000  # in thousandths

Homes = Callable[[str], str]
"""Returns the folder of a category's torrents, or of those without one (""); empty where nobody says it."""


def read(folder: Path) -> Iterator[Found | BadTorrentError]:
    homes = _homes(folder)
    backup, database = _backup_of(folder), folder / DATABASE
    if database.is_file() and _is_current(folder, database, backup):
        yield from _of_database(database, homes)
        return
    order: list[str] = []
    with contextlib.suppress(BadTorrentError):
        order = content_of(backup / "queue").decode(errors="replace").split()
    places = {name: place for place, name in enumerate(order)}
    paths = sorted(backup.glob("*.fastresume"))
    for path in sorted(paths, key=lambda path: places.get(path.stem, len(places))):
        yield attempted(path.name, partial(_read, path, homes))


def _is_current(folder: Path, database: Path, backup: Path) -> bool:
    """Return whether the torrents are those of the database: it, and files of before or since, may both be there.

    Of a store that is used no longer, qBittorrent keeps what it had, and torrents that were removed since.
    """
    for place in _configurations(folder):
        if kind := _configured(place, r"Session\ResumeDataStorageType"):
            return kind == "SQLite"
    log = database.with_name(f"{DATABASE}-wal")
    written_s = max(path.stat().st_mtime for path in (database, log) if path.is_file())
    return all(path.stat().st_mtime <= written_s for path in backup.glob("*.fastresume"))


def _read(path: Path, homes: Homes) -> Found:
    resume = content_of(path)
    parameters = torrent_of(path.with_suffix(".torrent"))
    return _found(with_resume(parameters, resume), dictionary_of(resume, path.name), homes)


def categories(folder: Path) -> dict[str, str]:
    """Return the categories and the folder of each, empty for the usual one."""
    for place in _configurations(folder):
        with contextlib.suppress(OSError, ValueError, AttributeError, RecursionError):
            kept = json.loads((place / "categories.json").read_bytes())
            return {str(name): str(one.get("save_path") or "") for name, one in kept.items()}
    return {}


def _configurations(folder: Path) -> list[Path]:
    """Return where the configuration may be that belongs to what is kept here."""
    usual = [CONFIG.expanduser()] if folder in [place.expanduser() for place in USUAL] else []
    return [folder, folder / "config", folder / "qBittorrent" / "config", folder.parent / "config", *usual]


def _homes(folder: Path) -> Homes:
    """Say where torrents go that are managed automatically: it is kept of each category, and not of each torrent."""
    folders = (_configured(place, r"Session\DefaultSavePath") for place in _configurations(folder))
    usual = next(filter(None, folders), "")
    own = categories(folder)

    def home(category: str) -> str:
        return own.get(category) or (os.path.join(usual, category) if usual else "")

    return home


def _configured(place: Path, name: str) -> str:
    """Return what qBittorrent's configuration in a folder says by this name; empty where it says nothing."""
    parser = configparser.RawConfigParser(strict=False)
    with contextlib.suppress(OSError, ValueError, configparser.Error):
        parser.read(place / "qBittorrent.conf", encoding="utf-8")
        return unquoted(parser.get("BitTorrent", name, fallback=""))
    return ""


def _backup_of(folder: Path) -> Path:
    """Return the folder of the torrents, which may be what was named, or in it, or below a profile."""
    for place in (folder / FOLDER, folder / "data" / FOLDER, folder / "qBittorrent" / "data" / FOLDER):
        if place.is_dir():
            return place
    return folder


def _of_database(path: Path, homes: Homes) -> Iterator[Found | BadTorrentError]:
    try:
        rows = _rows_of(path)
    except (sqlite3.Error, OSError, ValueError) as error:
        yield BadTorrentError(f"{path.name} can't be read: {error}")
        return
    for row in rows:
        yield attempted(str(row.get("torrent_id")), partial(_of_row, row, homes))


def _rows_of(path: Path) -> list[dict[str, Any]]:
    """Return the rows of the database by their columns. Raises sqlite3.Error and OSError.

    A copy is read: what was written last is in a log beside it, which SQLite reads where it may write alone.
    """
    with tempfile.TemporaryDirectory() as folder:
        for name in (path.name, f"{path.name}-wal"):
            if (source := path.with_name(name)).is_file():
                shutil.copyfile(source, os.path.join(folder, name))
        with contextlib.closing(sqlite3.connect(os.path.join(folder, path.name))) as connection:
            connection.row_factory = sqlite3.Row
            return [dict(row) for row in connection.execute("SELECT * FROM torrents ORDER BY queue_position")]


def _of_row(row: dict[str, Any], homes: Homes) -> Found:
    """Return a torrent by its row, whose columns are the keys of the other form but for `qBt-`."""
    if not row.get("metadata"):
        raise BadTorrentError("its metadata is not known yet: add its magnet link")
    resume = bytes(row["libtorrent_resume_data"])
    kept = dictionary_of(resume, "its resume data")
    names = {
        "category": b"qBt-category", "name": b"qBt-name", "ratio_limit": b"qBt-ratioLimit", "tags": b"qBt-tags",
        "seeding_time_limit": b"qBt-seedingTimeLimit",
        "inactive_seeding_time_limit": b"qBt-inactiveSeedingTimeLimit", "target_save_path": b"qBt-savePath",
    }  # fmt: skip
    for column, key in names.items():
        value = row.get(column)
        kept[key] = value.encode() if isinstance(value, str) else value
    kept[b"qBt-tags"] = (kept[b"qBt-tags"] or b"").split(b",")
    kept[b"stopped"] = row.get("stopped", 0)
    parameters = with_resume(read_metainfo(bytes(row["metadata"])), resume)
    if not parameters.save_path:
        is_whole = all(parameters.have_pieces or [False])
        there = row.get("target_save_path") if is_whole else row.get("download_path") or row.get("target_save_path")
        parameters.save_path = str(there or "")
    return _found(parameters, kept, homes)


def _found(parameters: Any, kept: dict[bytes, Any], homes: Homes) -> Found:
    category = text(kept.get(b"qBt-category"))
    tags = [text(tag) for tag in kept.get(b"qBt-tags") or ()]
    is_stopped = bool(kept.get(b"stopped") or (kept.get(b"paused") and not kept.get(b"auto_managed")))
    changes = {
        **speed_changes(kept.get(b"download_rate_limit"), kept.get(b"upload_rate_limit")),
        **_ratio(kept.get(b"qBt-ratioLimit")),
        "sequential_download": bool(kept.get(b"sequential_download")),
    }
    for key, name in ((b"qBt-seedingTimeLimit", "seeding_time"), (b"qBt-inactiveSeedingTimeLimit", "seed_idle")):
        changes |= _time(kept.get(key), name)
    # Of its priorities 1 is the normal one (bittorrent/downloadpriority.h), and libtorrent's lowest.
    parameters.file_priorities = [NORMAL if each == 1 else each for each in parameters.file_priorities]
    name = text(kept.get(b"qBt-name"))
    labels = [label for label in (category, *tags) if label]
    found = Found(parameters, labels, is_stopped, changes, name, usual_names(parameters, PARTIAL))
    found.go_home(text(kept.get(b"qBt-savePath")) or homes(category))
    return found


def _ratio(kept: object) -> dict[str, Any]:
    thousandths = number(kept) if kept is not None else GLOBAL_RATIO
    if thousandths < 0:
        return {"seed_ratio_mode": int(LimitMode.UNLIMITED if thousandths == NO_RATIO else LimitMode.GLOBAL)}
    return {"seed_ratio_mode": int(LimitMode.SINGLE), "seed_ratio_limit": counted(thousandths) / 1000}


def _time(kept: object, name: str) -> dict[str, Any]:
    minutes = number(kept) if kept is not None else -2
    if minutes < 0:
        return {f"{name}_mode": int(LimitMode.UNLIMITED if minutes == -1 else LimitMode.GLOBAL)}
    return {f"{name}_mode": int(LimitMode.SINGLE), f"{name}_limit": counted(minutes)}
