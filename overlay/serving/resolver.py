"""The system's resolver, in threads of its own: others' slow names hold up no other work of this process."""

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import Any

# Names that are looked up at a time: of a circuit, of the circuits of one previous hop, and of all.
MAX_RESOLVING, MAX_RESOLVING_OF_HOP, MAX_RESOLVING_IN_ALL = 8, 32, 64


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(MAX_RESOLVING_IN_ALL, thread_name_prefix="resolver")


async def look_up(host: str, port: int | None, kind: int) -> list[tuple[Any, ...]]:
    """Return what getaddrinfo(3) says of a host. Raises OSError, and UnicodeError for what is no name."""
    asked = partial(socket.getaddrinfo, host, port, type=kind)
    found: list[tuple[Any, ...]] = await asyncio.get_running_loop().run_in_executor(_threads(), asked)
    return found
