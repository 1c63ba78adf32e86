"""UDP sockets without asyncio's transport: many datagrams a wake-up, bounded everywhere.

asyncio's datagram transport asks for 256 KiB of memory per datagram and
queues without limit what the kernel does not take; here one buffer is reused
and what does not fit is dropped and counted.
"""

import asyncio
import contextlib
import resource
import socket
import struct
from collections import Counter
from collections.abc import Callable
from functools import lru_cache, partial
from typing import cast

from ipv8.messaging.interfaces.udp.endpoint import UDPEndpoint, UDPv4Address

from tunnel_pool.packet_engine.boundary import GuardedDelivery
from tunnel_pool.rpc.drop_reasons import DropReason
from tunnel_pool.steering.group import enlarge_buffers

MAX_DATAGRAM_BYTES = 65535
DATAGRAMS_PER_WAKE_UP = 64
MAX_ARRIVALS = 1 << 14
IP_PKTINFO = 8  # linux/in.h; Python 3.11 has no name for it
_PKTINFO = struct.Struct("=I4s4s")  # struct in_pktinfo: the device's index, our address, the address in the header


class CannotBindError(Exception):
    """Says in one line which address can't be bound, and why."""


def bind_to_device(sock: socket.socket, device: str) -> None:
    """Let the socket send and receive through this device alone; "" is any. Raises OSError when there is none."""
    if device:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device.encode() + b"\0")


def bind_udp(host: str, port: int, family: int = socket.AF_INET, device: str = "") -> socket.socket:
    """Return a bound non-blocking socket with buffers as large as the kernel gives. Raises CannotBindError."""
    sock = None
    try:
        sock = socket.socket(family, socket.SOCK_DGRAM)
        enlarge_buffers(sock)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bind_to_device(sock, device)
        sock.bind((host, port))
        sock.setblocking(False)
    except OSError as error:
        if sock is not None:
            sock.close()
        raise CannotBindError(cannot_bind(host, port, device, error.strerror or error)) from None
    return sock


def cannot_bind(host: str, port: int, device: str, why: object) -> str:
    return f"cannot listen on UDP {host}:{port}{f' of {device}' if device else ''}: {why}"


def receive_buffer_bytes(sock: socket.socket) -> int:
    """Return what the kernel gave of BUFFER_BYTES; Linux reports twice the usable size."""
    return sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // 2


@lru_cache(maxsize=4096)
def is_ipv4(host: str) -> bool:
    try:
        return len(socket.inet_pton(socket.AF_INET, host)) == 4
    except (OSError, ValueError):
        return False


def raise_descriptor_limit() -> None:
    """Allow as many open sockets as the system lets us have: an exit takes one or two a circuit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class Arrivals:
    """Knows to which of our addresses each sender writes, of a socket that has all of them.

    A machine with several addresses would answer from the one that its routes name, and who asked would not know the
    answer for one. The native engine's twin is packet_engine/src/arrivals.rs.
    """

    def __init__(self) -> None:
        self._at: dict[tuple[str, int], bytes] = {}

    def receive(self, sock: socket.socket, buffer: bytearray) -> tuple[int, tuple[str, int]]:
        """Receive a datagram as `recvfrom_into` does, and note where it came in. Raises OSError."""
        size, ancillary, _, source = sock.recvmsg_into([buffer], socket.CMSG_SPACE(_PKTINFO.size))
        for level, kind, value in ancillary:
            if (level, kind, len(value)) == (socket.IPPROTO_IP, IP_PKTINFO, _PKTINFO.size):
                if len(self._at) >= MAX_ARRIVALS:
                    self._at.clear()
                self._at[source] = _PKTINFO.unpack(value)[1]
        return size, source

    def send(self, sock: socket.socket, data: bytes, destination: tuple[str, int]) -> None:
        """Send a datagram from where its receiver writes to, if that is known. Raises OSError."""
        if (at := self._at.get(destination)) is not None:
            info = _PKTINFO.pack(0, at, bytes(4))
            try:
                sock.sendmsg([data], [(socket.IPPROTO_IP, IP_PKTINFO, info)], 0, destination)
                return
            except BlockingIOError:
                raise
            except OSError:  # it may be no address of this machine any more
                del self._at[destination]
        sock.sendto(data, destination)


def arrivals_of(sock: socket.socket) -> Arrivals | None:
    """Return what can learn where datagrams come in; None where they can come to one address alone."""
    if sock.family != socket.AF_INET or sock.getsockname()[0] != "0.0.0.0":  # noqa: S104
        return None
    sock.setsockopt(socket.IPPROTO_IP, IP_PKTINFO, 1)
    return Arrivals()


class UdpSocket:
    """A bound socket on the loop; `on_datagram(data, source)` gets each datagram."""

    def __init__(
        self,
        sock: socket.socket,
        on_datagram: Callable[[bytes, tuple[str, int]], None],
        counters: Counter[str],
        arrivals: Arrivals | None = None,
    ) -> None:
        """With `arrivals`, what is sent leaves from where its receiver writes to."""
        self.sock = sock
        self._on_datagram = on_datagram
        self._counters = counters
        self._arrivals = arrivals
        self._buffer = bytearray(MAX_DATAGRAM_BYTES)
        self._view = memoryview(self._buffer)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(sock.fileno(), self._readable)

    def _readable(self) -> None:
        arrivals, buffer, view = self._arrivals, self._buffer, self._view
        receive = self.sock.recvfrom_into if arrivals is None else partial(arrivals.receive, self.sock)
        for _ in range(DATAGRAMS_PER_WAKE_UP):
            try:
                size, source = receive(buffer)
            except BlockingIOError:
                return
            except OSError:  # an ICMP error for something sent before
                self._counters[DropReason.UDP_RECEIVE_ERROR] += 1
                continue
            self._on_datagram(bytes(view[:size]), source)
            if self.sock.fileno() < 0:
                return

    def sendto(self, data: bytes, destination: tuple[str, int]) -> None:
        try:
            if self._arrivals is None:
                self.sock.sendto(data, destination)
            else:
                self._arrivals.send(self.sock, data, destination)
        except BlockingIOError:
            self._counters[DropReason.UDP_SEND_FULL] += 1
        except OSError:
            self._counters[DropReason.UDP_SEND_ERROR] += 1

    def close(self) -> None:
        if self.sock.fileno() >= 0:
            self._loop.remove_reader(self.sock.fileno())
            self.sock.close()


class BatchedEndpoint(GuardedDelivery, UDPEndpoint):
    """py-ipv8's UDP endpoint on a UdpSocket; it closes its socket, which is bound."""

    def __init__(self, sock: socket.socket, counters: Counter[str]) -> None:
        host, port = sock.getsockname()[:2]
        super().__init__(port, host)
        self._sock = sock
        self._counters = counters
        self._udp: UdpSocket | None = None

    async def open(self) -> bool:
        if not self._running:  # type: ignore[has-type]
            self._udp = UdpSocket(self._sock, self._received, self._counters, arrivals_of(self._sock))
            self._running = True
        return True

    @property
    def sock(self) -> socket.socket:
        return self._sock

    def _received(self, data: bytes, source: tuple[str, int]) -> None:
        if self._running:
            self.bytes_down += len(data)
            self.notify_listeners((UDPv4Address(*source), data))

    def send(self, socket_address: tuple[str, int], packet: bytes) -> None:
        if self._udp is None or not self._running:
            return
        if not is_ipv4(socket_address[0]):
            # sendto would look a name up, here and now.
            self._counters[DropReason.UDP_SEND_NO_ADDRESS] += 1
            return
        self._udp.sendto(packet, socket_address)
        self.bytes_up += len(packet)

    def assert_open(self) -> None:
        assert self._running, "the endpoint is not open"

    def close(self) -> None:
        self._running = False
        if self._udp is not None:
            self._udp.close()

    def get_address(self) -> tuple[str, int]:
        return cast(tuple[str, int], self.sock.getsockname()[:2])
