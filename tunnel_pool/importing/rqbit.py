"""Reads what rqbit keeps of its torrents: session.json, and of each HASH.torrent, and HASH.bitv with `--fastresume`.

As rqbit 9.1.0 writes them (session_persistence/json.rs in its crates/librqbit).
"""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from tunnel_pool.daemon.record import NORMAL, UNWANTED
from tunnel_pool.importing.model import (
    BadTorrentError,
    Found,
    attempted,
    bits,
    content_of,
    info_of,
    put_into,
    torrent_of,
)

USUAL = (Path("~/.local/share/com.rqbit.session"),)
NAME = "rqbit"
SESSION = "session.json"


def read(folder: Path) -> Iterator[Found | BadTorrentError]:
    if not (folder / SESSION).is_file():
        return
    try:
        kept: dict[str, Any] = json.loads(content_of(folder / SESSION))["torrents"]
        rows = sorted(kept.items(), key=lambda row: int(row[0]))
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError, BadTorrentError):
        yield BadTorrentError(f"{SESSION} can't be read")
        return
    for _, row in rows:
        yield attempted(f"a torrent in {SESSION}", partial(_read, folder, row))


def _read(folder: Path, row: dict[str, Any]) -> Found:
    infohash = bytes.fromhex(row["info_hash"]).hex()
    path = folder / f"{infohash}.torrent"
    if not path.is_file():
        raise BadTorrentError(f"{infohash}: its metadata is not known yet: add its magnet link")
    parameters = torrent_of(path)
    info = info_of(parameters)
    pieces = path.with_suffix(".bitv")
    if pieces.is_file():  # else nobody knows, and the files are checked
        parameters.have_pieces = bits(content_of(pieces), info.num_pieces())
    put_into(parameters, str(row["output_folder"]))
    if (only := row.get("only_files")) is not None:
        parameters.file_priorities = [NORMAL if at in only else UNWANTED for at in range(info.num_files())]
    parameters.trackers = [str(url) for url in row.get("trackers") or ()]  # all are asked, in no order
    parameters.tracker_tiers = [0] * len(parameters.trackers)
    return Found(parameters, is_stopped=bool(row.get("is_paused")), name=info.name())
