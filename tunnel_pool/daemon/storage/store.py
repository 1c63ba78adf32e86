"""The daemon's memory: torrents and settings in SQLite, whole after `kill -9` at any moment.

One thread writes, so that the loop never waits for the disk; what was awaited is on the disk.
"""

import asyncio
import logging
import os
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from tunnel_pool.daemon.record import Record
from tunnel_pool.daemon.storage import backup
from tunnel_pool.system.errors import UserError

STORE_FILE = "daemon.db"
ENDED = "ended"  # the setting that is there between two runs, if the first was not killed
SCHEMA_VERSION = 1
SCHEMA = """
CREATE TABLE torrents (infohash TEXT PRIMARY KEY, record BLOB NOT NULL, resume BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE deletions (path TEXT PRIMARY KEY, root TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE settings (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
"""
NEW_STORE = f"BEGIN; {SCHEMA} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;"
DAMAGED_ROWS = "CREATE TABLE IF NOT EXISTS damaged (infohash TEXT PRIMARY KEY, record BLOB, resume BLOB) WITHOUT ROWID"

Result = TypeVar("Result")

logger = logging.getLogger(__name__)


class StoreError(Exception):
    """Says why nothing was written."""


class StoredTorrent(NamedTuple):
    infohash: str
    record: Record | None  # None when it can't be read
    resume: bytes  # libtorrent's resume data, the torrent's own included


class Deletion(NamedTuple):
    """A file that its owner gave up; empty folders above it go with it, up to `root`."""

    path: str
    root: str


class Store:
    """Keeps torrents and settings: `open` it; each call returns when it is on the disk. Raises StoreError."""

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / STORE_FILE
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store")
        self._connection: sqlite3.Connection | None = None
        self._backed_up = -1  # how many changes there had been at the last backup
        self.was_restored = False  # from its backup, as it was damaged or gone

    async def open(self) -> bool:
        """Return whether the run before this one was ended by `end_run`, and not by `kill -9`. Raises UserError.

        A store that is damaged or gone is restored from its backup.
        """
        try:
            await self._run(self._open)
            return await self._run(lambda: self._sql("DELETE FROM settings WHERE name = ?", (ENDED,)).rowcount == 1)
        except StoreError as error:
            raise UserError(f"cannot keep torrents in {self._path}: {error}") from None

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await self._run(connection.close)
        self._thread.shutdown()

    async def torrents(self) -> list[StoredTorrent]:
        rows = await self._run(lambda: self._sql("SELECT infohash, record, resume FROM torrents").fetchall())
        return [StoredTorrent(infohash, _record(infohash, record), resume) for infohash, record, resume in rows]

    async def set_aside(self, infohash: str) -> None:
        """Keep another copy of what can't be read of a torrent, before it is written anew."""
        await self._run(
            lambda: self._sql(
                "INSERT OR REPLACE INTO damaged SELECT infohash, record, resume FROM torrents WHERE infohash = ?",
                (infohash,),
            )
        )

    async def back_up(self) -> None:
        """Make a backup, if anything was changed since the last."""
        await self._run(self._back_up)

    async def put(self, record: Record, resume: bytes) -> None:
        row = (record.infohash, msgspec.json.encode(record), resume)
        await self._run(lambda: self._sql("INSERT OR REPLACE INTO torrents VALUES (?, ?, ?)", row))

    async def put_records(self, records: Iterable[Record]) -> None:
        """Write these records of known torrents: all of them, or none."""
        rows = [(msgspec.json.encode(record), record.infohash) for record in records]
        await self._run(lambda: self._many("UPDATE torrents SET record = ? WHERE infohash = ?", rows))

    async def put_resumes(self, resumes: Iterable[tuple[str, bytes]]) -> None:
        """Write the resume data of known torrents, by infohash."""
        rows = [(resume, infohash) for infohash, resume in resumes]
        await self._run(lambda: self._many("UPDATE torrents SET resume = ? WHERE infohash = ?", rows))

    async def remove(self, infohashes: Iterable[str], deletions: Iterable[Deletion] = ()) -> None:
        """Remove these, and note the files that are to be deleted: both, or none."""
        gone, files = [(infohash,) for infohash in infohashes], list(deletions)

        def write() -> None:
            self._many("DELETE FROM torrents WHERE infohash = ?", gone)
            self._many("INSERT OR REPLACE INTO deletions VALUES (?, ?)", files)

        await self._run(write)

    async def deletions(self) -> list[Deletion]:
        rows = await self._run(lambda: self._sql("SELECT path, root FROM deletions").fetchall())
        return [Deletion(*row) for row in rows]

    async def deleted(self, deletions: Iterable[Deletion]) -> None:
        paths = [(deletion.path,) for deletion in deletions]
        await self._run(lambda: self._many("DELETE FROM deletions WHERE path = ?", paths))

    async def setting(self, name: str) -> bytes | None:
        row = await self._run(lambda: self._sql("SELECT value FROM settings WHERE name = ?", (name,)).fetchone())
        return row[0] if row is not None else None

    async def set_setting(self, name: str, value: bytes) -> None:
        await self._run(lambda: self._sql("INSERT OR REPLACE INTO settings VALUES (?, ?)", (name, value)))

    async def remove_setting(self, name: str) -> None:
        await self._run(lambda: self._sql("DELETE FROM settings WHERE name = ?", (name,)))

    async def end_run(self) -> None:
        """Note that every torrent's resume data was written and its files closed."""
        await self.set_setting(ENDED, b"1")

    # In the thread

    async def _run(self, function: Callable[[], Result]) -> Result:
        """Run it as one transaction, which is whole even if whoever waits for it is cancelled."""
        return await asyncio.shield(asyncio.get_running_loop().run_in_executor(self._thread, self._transact, function))

    def _transact(self, function: Callable[[], Result]) -> Result:
        try:
            if self._connection is None:
                return function()
            with self._connection:
                return function()
        except sqlite3.Error as error:
            raise StoreError(str(error)) from None
        except OSError as error:
            raise StoreError(error.strerror or str(error)) from None

    def _open(self) -> None:
        self.was_restored = backup.restore(self._path, NEW_STORE)
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))  # SQLite's other files follow it
        connection = sqlite3.connect(self._path, check_same_thread=False)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version > SCHEMA_VERSION:
            raise StoreError("a newer tunnel-pool wrote it")
        if version == 0:
            connection.executescript(NEW_STORE)
        connection.execute(DAMAGED_ROWS)
        self._connection = connection

    def _back_up(self) -> None:
        assert self._connection is not None
        if self._connection.total_changes != self._backed_up:
            backup.write_backup(self._connection, self._path)
            self._backed_up = self._connection.total_changes

    def _sql(self, statement: str, values: tuple[object, ...] = ()) -> sqlite3.Cursor:
        assert self._connection is not None
        return self._connection.execute(statement, values)

    def _many(self, statement: str, rows: Sequence[tuple[object, ...]]) -> None:
        assert self._connection is not None
        self._connection.executemany(statement, rows)


def _record(infohash: str, kept: bytes) -> Record | None:
    """Return the record as it was kept; None when it can't be read, or is another torrent's."""
    try:
        record = msgspec.json.decode(kept, type=Record)
    except (msgspec.DecodeError, UnicodeError) as error:
        logger.error("What was kept of a torrent can't be read: %s", error)
        return None
    return record if record.infohash == infohash else None
