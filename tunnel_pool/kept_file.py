"""A file in the state directory that is kept up to date while something changes."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from tunnel_pool.system.files import write_atomically

INTERVAL_S = 1.0
RETRY_S = 300.0

logger = logging.getLogger(__name__)


def restore_file(path: Path, restore: Callable[[bytes], object], lost: str) -> None:
    """Call `restore` with what was kept, if anything was; `lost` is the warning when that can't be read.

    `restore` raises ValueError then.
    """
    try:
        restore(path.read_bytes())
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:
        logger.warning("%s: %s (%s)", lost, path, error)


async def keep_file(path: Path, version: Callable[[], object], encode: Callable[[], bytes], lost: str) -> None:
    """Write the file whenever what `version` returns has changed, for ever; `lost` is the warning when that fails."""
    written: object = None
    while True:
        now = version()
        if now != written:
            try:
                await asyncio.to_thread(write_atomically, path, encode())
            except OSError as error:
                logger.warning("%s: %s", lost, error.strerror)
                await asyncio.sleep(RETRY_S)
            else:
                written = now
        await asyncio.sleep(INTERVAL_S)
