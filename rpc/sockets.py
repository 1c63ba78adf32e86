"""Handing sockets to a child over a Unix socket: the id of what it is for, and the descriptor."""

import socket
import struct

_ID = struct.Struct("!I")


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """The giving and the taking end; messages keep their bounds."""
    giving, taking = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    giving.setblocking(False)
    return giving, taking


def give(giving: socket.socket, association_id: int, sock: socket.socket) -> None:
    """Raises OSError when the other side does not take."""
    socket.send_fds(giving, [_ID.pack(association_id)], [sock.fileno()])


class SocketsTaken:
    """What has come so far, by id, until it is asked for."""

    def __init__(self, fd: int) -> None:
        self._taking = socket.socket(fileno=fd)
        self._taking.setblocking(False)
        self._taken: dict[int, socket.socket] = {}

    def take(self, association_id: int) -> socket.socket | None:
        """The socket given for this id, None when none was."""
        while (received := self._receive()) is not None:
            other, sock = received
            if (old := self._taken.pop(other, None)) is not None:
                old.close()
            self._taken[other] = sock
        return self._taken.pop(association_id, None)

    def _receive(self) -> tuple[int, socket.socket] | None:
        try:
            data, descriptors, _, _ = socket.recv_fds(self._taking, _ID.size, 1)
        except BlockingIOError:
            return None
        if len(data) != _ID.size or not descriptors:
            return None
        return _ID.unpack(data)[0], socket.socket(fileno=descriptors[0])
