"""A deadline after which the process ends, whatever it is doing."""

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

EXIT_CODE = 1

logger = logging.getLogger(__name__)


@contextmanager
def ends_within(seconds: float) -> Iterator[None]:
    """End the process, with exit code 1 and without cleaning up, if the body takes longer than `seconds`."""

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
