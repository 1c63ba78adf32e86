"""The program's log: one line an event, on stderr, in the journal's way where that reads it, or in a file."""

import logging
import os
import time
from collections.abc import Callable
from logging.handlers import RotatingFileHandler
from pathlib import Path

from tunnel_pool.system.errors import UserError
from tunnel_pool.system.repeats import WINDOW_S, Repeats

FILE_BYTES = 10_000_000
FILES = 5
# The prefix of a line tells the journal its priority (sd-daemon(3)); the journal adds the time itself.
PRIORITIES = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3, logging.CRITICAL: 2}


class JournalFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        mark = f"<{PRIORITIES.get(record.levelno, 6)}>"
        return "\n".join(mark + line for line in super().format(record).splitlines())


class RepeatFilter(logging.Filter):
    """Lets a few of the lines that repeat each other through, and tells once a minute how many more there were."""

    def __init__(self, handler: logging.Handler, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._handler, self._clock = handler, clock
        self._repeats = Repeats()

    def filter(self, record: logging.LogRecord) -> bool:
        now_s = self._clock()
        for left_out in self._repeats.take_ended(now_s):
            text = f"{left_out.lines} more lines like this in {round(WINDOW_S)} s: {left_out.last}"
            logger, level = left_out.kind.logger, left_out.kind.level
            self._handler.emit(logging.LogRecord(logger, level, "", 0, text, None, None))
        if record.levelno < logging.INFO:
            return True
        return self._repeats.may_write(record.name, record.levelno, record.getMessage(), now_s)


class PrivateFileHandler(RotatingFileHandler):
    """Files that only their owner may read."""

    def _open(self):  # type: ignore[no-untyped-def]
        return open(self.baseFilename, self.mode, encoding="utf-8", opener=_open_private)


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def set_up_logging(level: str, file: Path | None = None) -> None:
    """Log to the file, which is begun anew when it is large, or to stderr. Raises UserError."""
    handler: logging.Handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s", datefmt="%H:%M:%S"))
    if file is not None:
        try:
            handler = PrivateFileHandler(file, maxBytes=FILE_BYTES, backupCount=FILES)
        except OSError as error:
            raise UserError(f"cannot log to {file}: {error.strerror}") from None
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    elif _is_read_by_the_journal():
        handler.setFormatter(JournalFormatter("%(message)s"))
    handler.addFilter(RepeatFilter(handler))
    logging.raiseExceptions = False  # a full disk is no reason to fill the other, where stderr goes, with tracebacks
    logging.basicConfig(level=level.upper(), handlers=[handler])
    # aiohttp logs a traceback and an address for every malformed request; our handlers log their own failures.
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)
    logging.getLogger("asyncio").setLevel(logging.ERROR)


def _is_read_by_the_journal() -> bool:
    """Return whether stderr is the stream that systemd has opened for us (systemd.exec(5), $JOURNAL_STREAM)."""
    try:
        device, inode = os.environ.get("JOURNAL_STREAM", "").split(":")
        stderr = os.fstat(2)
        return (stderr.st_dev, stderr.st_ino) == (int(device), int(inode))
    except (OSError, ValueError):
        return False
