"""An end that comes in any case."""

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

EXIT_CODE = 1

logger = logging.getLogger(__name__)


@contextmanager
def ends_within(seconds: float) -> Iterator[None]:
    """Give what is in this context so long; then the process ends as it is, with exit code 1."""

    def give_up() -> None:
        logger.error("The program did not end in order within %.0f s, and ends now; what was kept is whole", seconds)
        logging.shutdown()
        os._exit(EXIT_CODE)

    timer = threading.Timer(seconds, give_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
