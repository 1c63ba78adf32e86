"""Says in the log what keeps torrents with hops from the world, when it lasts, and that it is over."""

import logging
from collections.abc import Callable

SAID_AFTER_S = 15.0  # the usual start takes less
SAID_AGAIN_S = 600.0

logger = logging.getLogger(__name__)


class NetworkWatch:
    """Watches the way out: call `look` every second."""

    def __init__(self, words: Callable[[], str]) -> None:
        """`words` says why there is no way out as it was asked for, nothing when there is."""
        self._words = words
        self._since_s: float | None = None  # when it was lost
        self._said_s: float | None = None

    def look(self, now_s: float) -> None:
        why = self._words()
        if not why:
            if self._said_s is not None:
                logger.info("Torrents with hops have their way out again")
            self._since_s = self._said_s = None
            return
        if self._since_s is None:
            self._since_s = now_s
        is_due = self._said_s is None or now_s >= self._said_s + SAID_AGAIN_S
        if is_due and now_s >= self._since_s + SAID_AFTER_S:
            self._said_s = now_s
            logger.warning("%s", why)
