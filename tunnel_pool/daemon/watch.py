"""Folders from which torrents are added: .torrent files, and .magnet files with links in them."""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import libtorrent as lt
import msgspec

from tunnel_pool.daemon.changes.changes import Changes
from tunnel_pool.daemon.changes.edits import AddRequest
from tunnel_pool.daemon.config import Watch
from tunnel_pool.daemon.errors import RequestError
from tunnel_pool.daemon.storage.store import StoreError
from tunnel_pool.daemon.torrents.records import Records
from tunnel_pool.system.errors import UserError
from tunnel_pool.torrent.links import links_in, text_of
from tunnel_pool.torrent.metainfo import MAX_TORRENT_FILE_BYTES, parameters_of, read_metainfo

INTERVAL_S = 2.0
WRITTEN_AFTER_S = 2.0  # a file that has not changed for so long has been written
REFUSED_AFTER_S = 10.0
MAX_MAGNET_BYTES = 1 << 16
SUFFIXES = (".torrent", ".magnet")
ADDED, REFUSED = ".added", ".refused"
STUCK = "files that can't be renamed"
MOST_STUCK = 10_000

logger = logging.getLogger(__name__)


class _File(NamedTuple):
    path: str
    inode: int
    changed_s: float


async def keep_watch(watches: Callable[[], Sequence[Watch]], changes: Changes, records: Records) -> None:
    """Watch the folders until cancelled; an added file is renamed to `.added`, a refused one to `.refused`."""
    stuck = await _read_stuck(records)  # files that can't be renamed
    unread: set[str] = set()  # folders that can't be read
    while True:
        before = set(stuck)
        for watch in watches():
            try:
                files = await asyncio.to_thread(_written, Path(watch.folder))
            except OSError as error:
                if watch.folder not in unread:
                    logger.warning("Nothing is added from a watched folder until it can be read: %s", error)
                unread.add(watch.folder)
                continue
            unread.discard(watch.folder)
            stuck -= {file for file in stuck if Path(file.path).parent == Path(watch.folder)} - set(files)
            for file in files:
                if file not in stuck and not await _take(file, watch, changes):
                    stuck.add(file)
        if stuck != before:
            with contextlib.suppress(StoreError):  # it is tried again with the next change
                await records.keep_note(STUCK, _encoded(stuck))
        await asyncio.sleep(INTERVAL_S)


async def _read_stuck(records: Records) -> set[_File]:
    """Return the files that could not be renamed in runs before: a torrent that was removed does not come back."""
    with contextlib.suppress(StoreError, msgspec.DecodeError, ValueError):
        kept = msgspec.json.decode(await records.note(STUCK) or b"[]", type=list[tuple[str, int, float]])
        return {_File(os.fsdecode(bytes.fromhex(path)), inode, changed_s) for path, inode, changed_s in kept}
    return set()


def _encoded(stuck: set[_File]) -> bytes:
    """Return the files as they are kept: a name of any bytes is in hex."""
    some = sorted(stuck)[:MOST_STUCK]
    return msgspec.json.encode([(os.fsencode(path).hex(), inode, changed_s) for path, inode, changed_s in some])


def _written(folder: Path) -> list[_File]:
    """Return the files that nobody writes to any more. Raises OSError.

    The time of modification is what a program says it is: it may be one to come.
    """
    now_s = time.time()
    files = []
    for entry in os.scandir(folder):
        with contextlib.suppress(OSError):
            if entry.name.lower().endswith(SUFFIXES) and entry.is_file():
                found = entry.stat()
                changed_s = min(found.st_mtime, found.st_ctime)
                if not now_s - WRITTEN_AFTER_S <= changed_s <= now_s:
                    files.append(_File(entry.path, entry.inode(), changed_s))
    return files


async def _take(file: _File, watch: Watch, changes: Changes) -> bool:
    """Add and keep a file's torrents before the file is renamed: a kill between the two adds nothing twice.

    Returns False when the file is to be left alone from now on.
    """
    wish = AddRequest(folder=watch.download_to, hops=watch.hops, labels=watch.labels, stopped=watch.stopped)
    try:
        for parameters in await asyncio.to_thread(_parse, Path(file.path)):
            await changes.add(parameters, wish)
        suffix = ADDED
    except (StoreError, OSError) as error:
        logger.warning("A file in a watched folder is not added yet: %s", getattr(error, "strerror", error))
        return True
    except Exception as error:
        if time.time() < file.changed_s + REFUSED_AFTER_S and not isinstance(error, RequestError):
            return True  # whoever writes it may be slow
        logger.warning("A file in a watched folder is renamed to %s, as it can't be added: %s", REFUSED, _reason(error))
        suffix = REFUSED
    try:
        await asyncio.to_thread(os.replace, file.path, f"{file.path}{suffix}")
    except OSError as error:
        logger.warning("A file in a watched folder can't be renamed, and is left alone: %s", error.strerror)
        return False
    return True


def _reason(error: Exception) -> str:
    """Return why a file can't be added, without its name or that of the torrent."""
    return str(error) if isinstance(error, RequestError) else "it is no torrent file, or no magnet link"


def _parse(path: Path) -> list[lt.add_torrent_params]:
    """Return the torrents of a file. Raises UserError, RuntimeError, UnicodeDecodeError, OSError."""
    with path.open("rb") as file:
        if path.suffix.lower() == ".torrent":
            return [read_metainfo(file.read(MAX_TORRENT_FILE_BYTES))]
        links = links_in(text_of(file.read(MAX_MAGNET_BYTES)))
    if not links:
        raise UserError("no magnet link")
    return [parameters_of(link) for link in links]
