"""The exit stream's side of the child: a thread, so that it works when the loop does not."""

import asyncio
import contextlib
import os
import sys
import threading
from collections.abc import Callable
from typing import NoReturn

from tunnel_pool.rpc.descriptors import EXIT_IN, EXIT_OUT
from tunnel_pool.rpc.errors import BrokenStreamError
from tunnel_pool.rpc.exit import EXIT_CODES, ExitDecoder, ExitKind, encode
from tunnel_pool.rpc.lifeline import EXIT_CODE_ORPHANED

GRACE_S = 1.0


def end_process(kind: ExitKind, text: str = "") -> NoReturn:
    """Report how we end, then end at once: no handlers, no waiting for threads."""
    with contextlib.suppress(OSError):
        os.write(EXIT_OUT, encode(kind, text))
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.flush()
    os._exit(EXIT_CODES[kind])


class ExitWatch:
    """Waits for a request to end, or for end of file.

    On a request, `stop` runs in the loop; when `ended` is not called within
    GRACE_S the process ends without its loop. On end of file, the main
    process is dead: the child ends at once, without a word to anybody.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, stop: Callable[[str], object]) -> None:
        self._loop = loop
        self._stop = stop
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="exit stream", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def ended(self) -> NoReturn:
        """End the process, now that the loop has closed everything in order."""
        self._ended.set()
        end_process(ExitKind.ENDED)

    def _watch(self) -> None:
        reason = self._wait_for_request()
        if reason is None:
            os._exit(EXIT_CODE_ORPHANED)
        threading.Thread(target=self._watch_for_orphaning, name="exit stream end", daemon=True).start()
        with contextlib.suppress(RuntimeError):  # the loop is closed already
            self._loop.call_soon_threadsafe(self._stop, reason)
        if not self._ended.wait(GRACE_S):
            end_process(ExitKind.STUCK, f"the loop did not end within {GRACE_S} s")

    def _wait_for_request(self) -> str | None:
        decoder = ExitDecoder()
        while data := os.read(EXIT_IN, 4096):
            try:
                frames = decoder.feed(data)
            except BrokenStreamError as error:
                return str(error)
            for frame in frames:
                if frame.kind is ExitKind.REQUEST:
                    return frame.text
        return None

    def _watch_for_orphaning(self) -> None:
        while os.read(EXIT_IN, 4096):
            pass
        os._exit(EXIT_CODE_ORPHANED)
