"""The system's resolver, in threads of its own: others' slow names hold up no other work of this process."""

import asyncio
import socket
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from typing import Any

from tunnel_pool.overlay.serving.shares import Asker, Shares

# Names that are looked up at a time: of a circuit, of the circuits of one previous hop, and of all.
MAX_RESOLVING, MAX_RESOLVING_OF_HOP, MAX_RESOLVING_IN_ALL = 8, 32, 256
# Datagrams, streams and requests that wait for a name, likewise.
MAX_WAITING, MAX_WAITING_OF_HOP, MAX_WAITING_IN_ALL = 512, 1024, 4096

Found = list[tuple[Any, ...]]
"""What getaddrinfo(3) says: (family, type, protocol, canonical name, socket address) of each address."""


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(MAX_RESOLVING_IN_ALL, thread_name_prefix="resolver")


class Names:
    """Looks names up for circuits that end here: by stream, datagram and HTTP together, so many at a time."""

    def __init__(self) -> None:
        self._shares = Shares(MAX_RESOLVING, MAX_RESOLVING_OF_HOP, MAX_RESOLVING_IN_ALL)
        self.waiting = Shares(MAX_WAITING, MAX_WAITING_OF_HOP, MAX_WAITING_IN_ALL)

    @property
    def under_way(self) -> int:
        return self._shares.all

    def look_up(self, asker: Asker, host: str, kind: socket.SocketKind) -> "asyncio.Future[Found] | None":
        """Return what the system will say of a host, None if too many names are looked up.

        The future's errors are OSError, and UnicodeError for what is no name. A name counts until the system has
        answered: a thread that asks it can't be stopped.
        """
        if not self._shares.take(asker):
            return None
        loop = asyncio.get_running_loop()
        asked = _threads().submit(socket.getaddrinfo, host, None, type=kind)

        def answered(_: "Future[Found]") -> None:
            with suppress(RuntimeError):  # the loop has been closed
                loop.call_soon_threadsafe(self._shares.give_back, asker)

        asked.add_done_callback(answered)
        return asyncio.wrap_future(asked)
