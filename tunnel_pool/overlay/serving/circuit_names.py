"""The names that a circuit's traffic leads to: each is looked up once, also for many who want it at a time.

libtorrent writes a tracker's name into each datagram. A client that starts with many torrents would use up what a
circuit may have looked up at a time, and its other announces would be lost. What was found is not shared between
circuits: by how long an answer takes, one would tell where others go.
"""

import asyncio
import socket
import time
from collections.abc import Callable

from tunnel_pool.overlay.ground.pacing import Newest
from tunnel_pool.overlay.serving.inner_names import is_inner_name
from tunnel_pool.overlay.serving.resolver import Found, Names
from tunnel_pool.overlay.serving.shares import Asker

FOUND_S = 60.0  # how long what was found holds: getaddrinfo(3) does not say how long it may
MAX_FOUND = 64

Keep = Callable[["asyncio.Task[Found]"], object]
"""Keeps a task, and cancels it when the circuit ends."""


def is_refused_name(name: str, allow_private: bool, device: str) -> bool:
    """Return whether an exit looks this name up for nobody.

    Names of inner networks tell strangers what there is. Where all that exits goes through a `device`, the system's
    resolver would ask through any.
    """
    return bool(device) or (is_inner_name(name) and not allow_private)


class TooManyNamesError(Exception):
    """Says that a name is not looked up now."""


class CircuitNames:
    def __init__(self, names: Names, asker: Asker, keep: Keep) -> None:
        self._names, self._asker, self._keep = names, asker, keep
        self._finding: dict[str, asyncio.Task[Found]] = {}
        self._asked: set[asyncio.Future[Found]] = set()
        self._found = Newest[str, tuple[float, Found]](MAX_FOUND)  # until when it holds

    def is_known(self, name: str) -> bool:
        """Return whether a name need not be looked up: it was, or is just now."""
        return name in self._finding or self._found.get(name, (0.0, []))[0] > time.monotonic()

    async def look_up(self, name: str) -> Found:
        """Return what the system says of a name. Raises TooManyNamesError, OSError, and UnicodeError for no name."""
        if name not in self._finding and self.is_known(name):
            return self._found[name][1]
        if not self._names.waiting.take(self._asker):
            raise TooManyNamesError
        try:
            return await self._once_found(name)
        finally:
            self._names.waiting.give_back(self._asker)

    async def _once_found(self, name: str) -> Found:
        if name not in self._finding:
            finding = asyncio.get_running_loop().create_task(self._find(name))
            self._keep(finding)
            self._finding[name] = finding
            finding.add_done_callback(lambda done: self._is_found(name, done))
        finding = self._finding[name]
        try:
            return await asyncio.shield(finding)
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise
            raise OSError("the circuit has ended") from None

    async def _find(self, name: str) -> Found:
        while (asked := self._names.look_up(self._asker, name, socket.SOCK_STREAM)) is None:
            if not self._asked:  # others have all there are
                raise TooManyNamesError
            await asyncio.wait(self._asked, return_when=asyncio.FIRST_COMPLETED)
        self._asked.add(asked)
        try:
            return await asked
        finally:
            self._asked.discard(asked)

    def _is_found(self, name: str, done: "asyncio.Task[Found]") -> None:
        del self._finding[name]
        if not done.cancelled() and done.exception() is None:
            self._found[name] = time.monotonic() + FOUND_S, done.result()
