"""Handing sockets, and memory, to a child over a Unix socket: the id of what it is for, and the descriptor."""

import os
import socket
import struct
from typing import Protocol

# What a descriptor is for: the child's socket of the node's port, the limits' memory,
# the database of AS numbers, or an association, from 1 on.
TUNNEL_SOCKET = 0
LIMITS_MEMORY = 0xFFFFFFFF
AS_NUMBERS = 0xFFFFFFFE

_ID = struct.Struct("!I")


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Return the giving and the taking end; messages keep their bounds."""
    giving, taking = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    giving.setblocking(False)
    return giving, taking


class HasDescriptor(Protocol):
    def fileno(self) -> int: ...


def give(giving: socket.socket, what: int, file: HasDescriptor) -> None:
    """Raises OSError when the other side does not take."""
    socket.send_fds(giving, [_ID.pack(what)], [file.fileno()])


class DescriptorsTaken:
    """Keeps the descriptors that have come, by id, until they are asked for."""

    def __init__(self, fd: int) -> None:
        self._taking = socket.socket(fileno=fd)
        self._taking.setblocking(False)
        self._taken: dict[int, int] = {}

    def take(self, what: int) -> int | None:
        """Return the descriptor given for this id, the taker's from now on; None when none was."""
        while (received := self._receive()) is not None:
            other, fd = received
            if (old := self._taken.pop(other, None)) is not None:
                os.close(old)
            self._taken[other] = fd
        return self._taken.pop(what, None)

    def take_socket(self, what: int) -> socket.socket | None:
        fd = self.take(what)
        return None if fd is None else socket.socket(fileno=fd)

    def _receive(self) -> tuple[int, int] | None:
        try:
            data, descriptors, _, _ = socket.recv_fds(self._taking, _ID.size, 1)
        except BlockingIOError:
            return None
        if len(data) != _ID.size or not descriptors:
            return None
        return _ID.unpack(data)[0], descriptors[0]
