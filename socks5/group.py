"""Several UDP sockets bound to one loopback port, with a BPF program that chooses among them (Linux)."""

import ctypes
import socket
import struct
from collections.abc import Sequence

from socks5.steering import BUCKETS, OWN_SOCKET, program

BUFFER_BYTES = 4 << 20
SO_ATTACH_REUSEPORT_CBPF = 51  # asm-generic/socket.h; Python's socket module does not name it
_FILTER = struct.Struct("=HBBI")  # struct sock_filter


def enlarge_buffers(sock: socket.socket) -> None:
    """As large as the kernel gives, up to BUFFER_BYTES."""
    for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        sock.setsockopt(socket.SOL_SOCKET, option, BUFFER_BYTES)


class SteeringError(Exception):
    """This system can't steer."""


class ReusePortGroup:
    """Sockets by the index in which the kernel knows them; number 0 is the server's own.

    They stay open, and so keep their index, until the group is closed. Nobody
    but this group has the port; only processes of the same user could join it
    (SO_REUSEPORT, socket(7)).
    """

    def __init__(self, host: str) -> None:
        """The server's own socket, on a free port. Raises SteeringError, OSError."""
        if not hasattr(socket, "SO_REUSEPORT"):
            raise SteeringError("no SO_REUSEPORT")
        self._host = host
        self._port = _unused_port(host)
        self.sockets: list[socket.socket] = []
        self.add()
        try:
            self.steer([OWN_SOCKET] * BUCKETS)
        except OSError as error:
            self.close()
            raise SteeringError(f"SO_ATTACH_REUSEPORT_CBPF: {error.strerror}") from None

    def add(self) -> int:
        """Bind one more socket to the port; returns its index. Raises OSError."""
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            enlarge_buffers(sock)
            sock.setblocking(False)
            sock.bind((self._host, self._port))
        except OSError:
            sock.close()
            raise
        self.sockets.append(sock)
        return len(self.sockets) - 1

    def steer(self, indexes: Sequence[int]) -> None:
        """From now on each bucket's datagrams go to this socket. Raises OSError."""
        instructions = b"".join(_FILTER.pack(*instruction) for instruction in program(indexes, len(self.sockets)))
        self._attach(instructions)

    def _attach(self, instructions: bytes) -> None:
        code = ctypes.create_string_buffer(instructions, len(instructions))
        # struct sock_fprog: number of instructions, then a pointer to them
        description = struct.pack("@HP", len(instructions) // _FILTER.size, ctypes.addressof(code))
        self.sockets[OWN_SOCKET].setsockopt(socket.SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, description)

    def discard(self, index: int) -> int:
        """Throw away what waits in a socket that nobody reads any more; returns how many datagrams."""
        count = 0
        try:
            while True:
                self.sockets[index].recv(1)
                count += 1
        except OSError:
            return count

    def close(self) -> None:
        for sock in self.sockets:
            sock.close()


def _unused_port(host: str) -> int:
    """A port that nobody has: asked to choose for a socket with SO_REUSEPORT, the kernel may give another group's."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind((host, 0))
        return int(sock.getsockname()[1])
