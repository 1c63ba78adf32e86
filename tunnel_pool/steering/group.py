"""The sockets of a port, and the BPF programs attached to them."""

import ctypes
import socket
import struct
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from tunnel_pool.steering.bpf import Instruction, count, pack, ret
from tunnel_pool.steering.slots import OWN_SOCKET

BUFFER_BYTES = 4 << 20
SO_ATTACH_REUSEPORT_CBPF = 51  # asm-generic/socket.h; Python's socket module does not name these
SO_ATTACH_FILTER = 26
SO_MEMINFO = 55
_MEMINFO = struct.Struct("=9I")  # linux/sock_diag.h, SK_MEMINFO_*; the last is SK_MEMINFO_DROPS

Prepare = Callable[[socket.socket], None]
T = TypeVar("T")


class OpenIn(Protocol):
    """Calls a function that makes sockets where they are to be made: in a network namespace, say."""

    def __call__(self, make: Callable[[], T], /) -> T: ...


def open_here(make: Callable[[], T], /) -> T:
    return make()


def enlarge_buffers(sock: socket.socket) -> None:
    """Make a socket's buffers as large as the kernel allows, up to BUFFER_BYTES."""
    for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        sock.setsockopt(socket.SOL_SOCKET, option, BUFFER_BYTES)


class SteeringError(Exception):
    """Says why this system can't steer."""


class ReusePortGroup:
    """Holds sockets by the index in which the kernel knows them; number 0 is the opener's own.

    They stay open, and so keep their index, until the group is closed. Nobody
    but this group has the port; only processes of the same user could join it
    (SO_REUSEPORT, socket(7)).
    """

    def __init__(self, host: str, port: int = 0, prepare: Prepare | None = None, open_in: OpenIn = open_here) -> None:
        """Open the first socket; port 0: a free one. `prepare` is called with each socket before it is bound.

        Each socket is made by `open_in`. Raises SteeringError, OSError.
        """
        if not hasattr(socket, "SO_REUSEPORT"):
            raise SteeringError("no SO_REUSEPORT")
        self._host = host
        self._prepare = prepare
        self._open_in = open_in
        self._port = open_in(lambda: _free_port(host, port, prepare))
        self.sockets: list[socket.socket] = []
        self.add()
        try:
            self.steer(ret(OWN_SOCKET))
        except OSError as error:
            self.close()
            raise SteeringError(f"SO_ATTACH_REUSEPORT_CBPF: {error.strerror}") from None

    def add(self) -> int:
        """Bind one more socket to the port; returns its index. Raises OSError."""
        sock = self._open_in(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            enlarge_buffers(sock)
            sock.setblocking(False)
            if self._prepare is not None:
                self._prepare(sock)
            sock.bind((self._host, self._port))
        except OSError:
            sock.close()
            raise
        self.sockets.append(sock)
        return len(self.sockets) - 1

    def steer(self, program: Sequence[Instruction]) -> None:
        """Have each datagram go to the socket whose index the program returns. Raises OSError."""
        _attach(self.sockets[OWN_SOCKET], SO_ATTACH_REUSEPORT_CBPF, program)

    def let_in(self, index: int, program: Sequence[Instruction]) -> None:
        """Have a socket take only datagrams for which the program returns a length. Raises OSError.

        Its packets begin with the UDP header, those of `steer` with what follows it.
        """
        _attach(self.sockets[index], SO_ATTACH_FILTER, program)

    def discard(self, index: int) -> int:
        """Throw away what waits in a socket that nobody reads any more; returns how many datagrams."""
        number = 0
        try:
            while True:
                self.sockets[index].recv(1)
                number += 1
        except OSError:
            return number

    def dropped(self) -> int:
        """Return how many datagrams the kernel dropped since the start: for a full buffer, or not let in."""
        return sum(
            _MEMINFO.unpack(sock.getsockopt(socket.SOL_SOCKET, SO_MEMINFO, _MEMINFO.size))[-1] for sock in self.sockets
        )

    def close(self) -> None:
        for sock in self.sockets:
            sock.close()


def can_steer() -> bool:
    """Return whether this system has what a group needs."""
    try:
        ReusePortGroup("127.0.0.1").close()
    except (OSError, SteeringError):
        return False
    return True


def _attach(sock: socket.socket, option: int, program: Sequence[Instruction]) -> None:
    code = pack(program)
    array = ctypes.create_string_buffer(code, len(code))
    # struct sock_fprog: number of instructions, then a pointer to them
    sock.setsockopt(socket.SOL_SOCKET, option, struct.pack("@HP", count(code), ctypes.addressof(array)))


def _free_port(host: str, port: int, prepare: Prepare | None) -> int:
    """Return the port, if nobody has it: with SO_REUSEPORT we could share another group's. Raises OSError."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        if prepare is not None:
            prepare(sock)
        sock.bind((host, port))
        return int(sock.getsockname()[1])
