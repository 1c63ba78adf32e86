"""Carriers take a SOCKS5 server's associations over, so that the datagrams need not pass through the server."""

import socket
from collections import Counter
from collections.abc import Callable
from typing import Protocol

from tunnel_pool.socks5.address import Socks5Address
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

    async def pin(self, association: Association, address: bytes, circuit_id: int) -> bool:
        """Have what the client sends to an encoded IPv4 address go over this circuit; return whether it will."""

    def closed(self, association: Association) -> None: ...

    def has_streams(self, address: Socks5Address) -> bool:
        """Return whether a connection to this address can be carried as a stream."""

    def open_stream(self, sock: socket.socket, address: Socks5Address, early: bytes) -> None:
        """Carry a client's TCP connection, ours from now on, to this address, and reply to the client.

        `early` is what the client has sent already.
        """

    def end(self) -> None:
        """Stop; this is called when there are no more associations."""
