"""What a SOCKS5 server's associations are handed to, so that their datagrams need not pass through it."""

from collections import Counter
from collections.abc import Callable
from typing import Protocol

from tunnel_pool.socks5.server import Association

OnLost = Callable[[Callable[[tuple[str, int]], bool]], None]
"""Hears which destinations lost their circuit, as a predicate."""


class Carrier(Protocol):
    """Takes datagrams that reached the server's own socket, and arranges that the next ones don't."""

    drops: Counter[str]

    def opened(self, association: Association) -> None:
        """Serve an association whose client is known."""

    def usual(self, association: Association) -> None:
        """Give this association, which was opened, what no client asked for."""

    def take(self, association: Association, address: bytes, payload: bytes) -> bool:
        """Take a datagram; return False when it is to go the usual way."""

    def closed(self, association: Association) -> None: ...

    def end(self) -> None:
        """Stop; this is called when there are no more associations."""
