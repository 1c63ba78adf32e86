"""Reads what Deluge keeps: state/torrents.state, torrents.fastresume and *.torrent (deluge/core/torrentmanager.py)."""

import contextlib
import io
import json
import pickle
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from tunnel_pool.daemon.record import LimitMode
from tunnel_pool.importing.libtorrents import speed_changes, with_resume
from tunnel_pool.importing.model import BadTorrentError, Found, attempted, content_of, dictionary_of, torrent_of

USUAL = (Path("~/.config/deluge"), Path("/var/lib/deluged/config"), Path("/var/lib/deluge/.config/deluge"))
NAME = "Deluge"
KIB = 1024
MAX_STATE_BYTES = 1 << 30  # of a file that is about all torrents


class _State:
    """Stands for the two classes of Deluge's that are in its state; what they hold is in `__dict__`."""


class _Unpickler(pickle.Unpickler):
    """Reads Deluge's state, of which nothing runs: only names of its two classes are taken."""

    def find_class(self, module: str, name: str) -> Any:
        if module == "deluge.core.torrentmanager" and name in ("TorrentManagerState", "TorrentState"):
            return _State
        raise pickle.UnpicklingError(f"{module}.{name} is not what Deluge keeps")


def read(folder: Path) -> Iterator[Found | BadTorrentError]:
    state = folder / "state" if (folder / "state").is_dir() else folder
    try:
        torrents = _torrents(state / "torrents.state")
        resumes = dictionary_of(content_of(state / "torrents.fastresume", MAX_STATE_BYTES), "torrents.fastresume")
    except BadTorrentError as error:
        yield error
        return
    labels = _labels(folder)
    for kept in torrents:
        infohash = str(kept.get("torrent_id", ""))
        resume = resumes.get(infohash.encode(errors="replace"))
        yield attempted(infohash, partial(_found, state, kept, resume, labels.get(infohash)))


def _found(state: Path, kept: dict[str, Any], resume: bytes | None, label: str | None) -> Found:
    path = state / f"{kept['torrent_id']}.torrent"
    if not path.is_file():
        raise BadTorrentError(f"{path.stem}: its metadata is not known yet: add its magnet link")
    parameters = torrent_of(path)
    if resume is not None:
        parameters = with_resume(parameters, resume)
    parameters.save_path = parameters.save_path or str(kept.get("save_path") or "")
    name = str(kept.get("name") or "")
    found = Found(parameters, [label] if label else [], bool(kept.get("paused")), _changes(kept), name)
    if kept.get("move_completed"):
        found.go_home(str(kept.get("move_completed_path") or ""))
    return found


def _torrents(path: Path) -> list[dict[str, Any]]:
    """Return what is kept of each torrent, in the order of the queue. Raises BadTorrentError."""
    try:
        state = _Unpickler(io.BytesIO(content_of(path, MAX_STATE_BYTES)), encoding="utf-8").load()
        found = [vars(each) for each in vars(state)["torrents"]]
    except BadTorrentError:
        raise
    except Exception as error:  # pickle raises whatever the bytes lead to
        raise BadTorrentError(f"{path.name} can't be read: {error}") from None
    return sorted(found, key=lambda kept: kept["queue"] if isinstance(kept.get("queue"), int) else 0)


def _labels(folder: Path) -> dict[str, str]:
    """Return the labels of the Label plugin, by infohash; its file is two JSON objects, one after the other."""
    with contextlib.suppress(OSError, ValueError, KeyError, AttributeError, RecursionError):
        content = (folder / "label.conf").read_text()
        _, end = json.JSONDecoder().raw_decode(content)
        kept = json.loads(content[end:])
        return {str(infohash): str(label) for infohash, label in kept["torrent_labels"].items()}
    return {}


def _changes(kept: dict[str, Any]) -> dict[str, Any]:
    speeds = (kept.get("max_download_speed"), kept.get("max_upload_speed"))
    down, up = (speed * KIB if isinstance(speed, int | float) else 0 for speed in speeds)
    changes = speed_changes(down, up)
    if kept.get("stop_at_ratio") and isinstance(kept.get("stop_ratio"), int | float):
        changes |= {"seed_ratio_mode": int(LimitMode.SINGLE), "seed_ratio_limit": float(kept["stop_ratio"])}
    return {**changes, "sequential_download": bool(kept.get("sequential_download"))}
