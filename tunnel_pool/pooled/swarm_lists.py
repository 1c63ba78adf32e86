"""Telling each child its hidden swarms (RPC_MONITOR): the whole list, one call at a time, until the child has it."""

import asyncio
import logging
from asyncio import Future
from collections.abc import Callable, Collection
from typing import Any

AGAIN_S = 1.0  # after a call that failed

logger = logging.getLogger(__name__)


class SwarmLists:
    """Keeps the children's lists up to date.

    However often a list changes, a child is told of the last one once it has answered: a thousand torrents that start
    make a few calls, and not a thousand, each with the whole list.
    """

    def __init__(self, tell: Callable[[int], "Future[Any]"], running: Callable[[], Collection[int]]) -> None:
        """`tell` calls the child of a slot with its list as it is then; `running` returns the slots of children."""
        self._tell, self._running = tell, running
        self._stale: set[int] = set()  # slots whose child has yet to hear of the last change
        self._told: set[int] = set()  # slots whose child is being told

    def changed(self, slot: int) -> None:
        """Tell the child of this slot its list, now or once it has answered."""
        self._stale.add(slot)
        if slot not in self._told:
            self._tell_now(slot)

    def _tell_now(self, slot: int) -> None:
        self._stale.discard(slot)
        if slot in self._running():
            self._told.add(slot)
            self._tell(slot).add_done_callback(lambda future: self._answered(slot, future))

    def _answered(self, slot: int, future: "Future[Any]") -> None:
        self._told.discard(slot)
        error = None if future.cancelled() else future.exception()
        if error is not None and slot in self._running():
            logger.info("A child was not told of its swarms, and is told again: %s", error)
            asyncio.get_running_loop().call_later(AGAIN_S, self.changed, slot)
        elif slot in self._stale:
            self._tell_now(slot)
