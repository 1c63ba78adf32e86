"""The store's backup, and what is done with a store that is damaged or gone. All of it runs in the store's thread."""

import contextlib
import logging
import os
import sqlite3
import time
from pathlib import Path

from tunnel_pool.system.errors import UserError
from tunnel_pool.system.files import write_atomically

BACKUP_SUFFIX = ".backup"
GONE, EMPTY = "it is gone", "it is empty"
COMPANIONS = ("-wal", "-shm")  # SQLite's other files
TORRENTS = "SELECT infohash, record, resume FROM torrents"

logger = logging.getLogger(__name__)

Row = tuple[object, ...]


def backup_of(path: Path) -> Path:
    return path.with_name(path.name + BACKUP_SUFFIX)


def write_backup(connection: sqlite3.Connection, path: Path) -> None:
    """Replace the backup of the store at `path` by what it is now. Raises OSError and sqlite3.Error."""
    new = backup_of(path).with_suffix(".new")
    new.unlink(missing_ok=True)
    os.close(os.open(new, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    try:
        with contextlib.closing(sqlite3.connect(new)) as copy:
            connection.backup(copy)
            copy.execute("PRAGMA journal_mode = DELETE")
        os.replace(new, backup_of(path))
    finally:
        new.unlink(missing_ok=True)


def what_is_wrong(path: Path) -> str:
    """Return why a store can't be used as it is; nothing when it can. Raises OSError."""
    if not path.exists():
        return GONE
    if not path.stat().st_size and not path.with_name(path.name + COMPANIONS[0]).exists():
        return EMPTY
    try:
        with contextlib.closing(sqlite3.connect(path)) as connection:
            (found,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
            (tables,) = connection.execute("SELECT count(*) FROM sqlite_master WHERE type = 'table'").fetchone()
    except sqlite3.DatabaseError as error:
        if _is_damage(error):
            return str(error)
        raise
    return EMPTY if not tables else "" if found == "ok" else str(found).splitlines()[-1]


def _is_damage(error: sqlite3.DatabaseError) -> bool:
    return error.sqlite_errorname in ("SQLITE_CORRUPT", "SQLITE_NOTADB")


def restore(path: Path, schema: str) -> bool:
    """Make a store whole again that is damaged or gone; return whether it had to be. Raises UserError and OSError.

    It is then as it was when the backup was made, with what can be read of the damaged one, which is kept under
    another name. Files that were to be deleted are not: who knows what they are by now.
    """
    if not (why := what_is_wrong(path)):
        return False
    backup = backup_of(path)
    has_backup = what_is_wrong(backup) == ""
    if why in (GONE, EMPTY) and not has_backup:
        return False
    rows = _readable_rows(path) if path.exists() else []
    if not has_backup and not rows:
        raise UserError(
            f"{path} is damaged ({why}), and there is no backup: move it away to begin without torrents; "
            "their files stay where they are"
        )
    made = backup.stat().st_mtime if has_backup else None
    whole = backup.read_bytes() if has_backup else b""
    aside = _set_aside(path)
    write_atomically(path, whole)
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        if not has_backup:
            connection.executescript(schema)
        connection.execute("DELETE FROM deletions")
        connection.executemany("INSERT OR REPLACE INTO torrents VALUES (?, ?, ?)", rows)
    _tell(path, why, made, len(rows), aside)
    return True


def _readable_rows(path: Path) -> list[Row]:
    """Return the torrents that can be read of a damaged store."""
    rows: list[Row] = []
    with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(path)) as connection:
        for row in connection.execute(TORRENTS):
            if all(isinstance(value, kind) for value, kind in zip(row, (str, bytes, bytes), strict=True)):
                rows.append(row)
    return rows


def _set_aside(path: Path) -> Path | None:
    """Rename a damaged store, and what SQLite has beside it, which must not be applied to another."""
    aside = path.with_name(f"{path.name}.damaged-{time.strftime('%Y%m%d-%H%M%S')}")
    for suffix in COMPANIONS:
        with contextlib.suppress(FileNotFoundError):
            os.replace(path.with_name(path.name + suffix), aside.with_name(aside.name + suffix))
    try:
        os.replace(path, aside)
    except FileNotFoundError:
        return None
    return aside


def _tell(path: Path, why: str, made_s: float | None, rows: int, aside: Path | None) -> None:
    says = [f"{path} can't be used: {why}"]
    if made_s is not None:
        says.append(
            f"the torrents are those of its backup of {time.strftime('%Y-%m-%d %H:%M', time.localtime(made_s))}"
        )
    if rows:
        says.append(f"{rows} torrents were read from what is left of it")
    if aside is not None:
        says.append(f"what is left of it is in {aside}")
    logger.error("%s", "; ".join(says))
