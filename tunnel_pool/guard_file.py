"""The guards of a client (overlay/paths/guards.py), kept over restarts in its state directory."""

import asyncio
import logging
from pathlib import Path

from tunnel_pool.overlay.paths.guards import Guards
from tunnel_pool.system.files import write_atomically

INTERVAL_S = 1.0
RETRY_S = 300.0

logger = logging.getLogger(__name__)


def read_guards(path: Path, count: int) -> Guards:
    """Return the guards of the last run; new ones are chosen where that file is not there or can't be read."""
    guards = Guards(count=count)
    try:
        guards.restore(path.read_bytes())
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:
        logger.warning("The first hops of the last run can't be read, others are chosen: %s (%s)", path, error)
    return guards


async def keep_guards(guards: Guards, path: Path) -> None:
    """Keep the file up to date, for ever."""
    written: list[tuple[bytes, float]] | None = None
    while True:
        now = guards.identities()
        if now != written:
            try:
                await asyncio.to_thread(write_atomically, path, guards.encode())
            except OSError as error:
                logger.warning("The first hops of circuits are not kept over a restart: %s", error.strerror)
                await asyncio.sleep(RETRY_S)
            else:
                written = now
        await asyncio.sleep(INTERVAL_S)
