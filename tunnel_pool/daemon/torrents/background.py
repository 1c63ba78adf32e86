"""Work that nobody waits for."""

import asyncio
import logging
from collections.abc import Coroutine

from tunnel_pool.daemon.storage.store import StoreError
from tunnel_pool.system.errors import kind_of

logger = logging.getLogger(__name__)


class Background:
    """Runs work on torrents beside the loop's other work."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[object]] = set()

    def spawn(self, work: Coroutine[object, object, object]) -> None:
        """Run it in the background; a failure is logged, and what failed is tried again with the next change."""

        async def guarded() -> None:
            try:
                await work
            except (StoreError, OSError) as error:
                logger.warning("The state of a torrent was not saved: %s", error)
            except Exception as error:
                logger.error("Work on a torrent failed unexpectedly: %s", kind_of(error))
                logger.debug("The traceback of the failure", exc_info=True)

        task = asyncio.get_running_loop().create_task(guarded())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def wait(self, at_most_s: float) -> None:
        """Return when all of it is done, or so much later."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=at_most_s)
