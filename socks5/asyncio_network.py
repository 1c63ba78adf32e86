"""asyncio moves the bytes of the SOCKS5 server, in a program that embeds the pool and runs no Twisted."""

import asyncio
import errno
import os
import socket
from collections.abc import Callable

from tunnel_pool.socks5.server import MAX_DATAGRAM_BYTES, Association, Connection, Stream

DATAGRAMS_A_TURN = 64  # of one socket, then the loop's other work has its turn
BACKLOG = 100
NOTHING_LEFT = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
PAUSE_S = 1.0


class AsyncioNetwork:
    """A Network over the running loop."""

    def __init__(self) -> None:
        self._accepting: set[asyncio.Task[object]] = set()  # asyncio itself keeps no task

    def listen(self, sock: socket.socket, connected: Callable[[Stream], Connection]) -> Callable[[], None]:
        sock.listen(BACKLOG)
        loop = asyncio.get_running_loop()
        pausing: asyncio.TimerHandle | None = None

        def accept() -> None:
            nonlocal pausing
            try:
                accepted, _ = sock.accept()
            except OSError as error:
                if error.errno in NOTHING_LEFT:  # the client goes on waiting; so do we, without asking again at once
                    loop.remove_reader(sock)
                    pausing = loop.call_later(PAUSE_S, loop.add_reader, sock, accept)
                return
            accepted.setblocking(False)
            serving = loop.create_task(loop.connect_accepted_socket(lambda: _StreamProtocol(connected), accepted))
            self._accepting.add(serving)
            serving.add_done_callback(self._accepting.discard)

        def stop() -> None:
            if pausing is not None:
                pausing.cancel()
            loop.remove_reader(sock)
            sock.close()

        loop.add_reader(sock, accept)
        return stop

    def receive(self, sock: socket.socket, association: Association) -> "AsyncioDatagrams":
        return AsyncioDatagrams(sock, association)


class AsyncioDatagrams:
    """Datagrams of a socket that the running loop watches."""

    def __init__(self, sock: socket.socket, association: Association) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._association = association
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(sock, self._readable)

    @property
    def port(self) -> int:
        return int(self._sock.getsockname()[1])

    def fileno(self) -> int:
        return self._sock.fileno()

    def send(self, datagram: bytes, to: tuple[str, int]) -> None:
        self._sock.sendto(datagram, to)

    def stop_reading(self) -> None:
        self._loop.remove_reader(self._sock)

    def close(self) -> None:
        self._loop.remove_reader(self._sock)
        self._sock.close()

    def _readable(self) -> None:
        for _ in range(DATAGRAMS_A_TURN):
            try:
                datagram, source = self._sock.recvfrom(MAX_DATAGRAM_BYTES)
            except OSError:
                return
            self._association.datagram_received(datagram, source)


class _StreamProtocol(asyncio.Protocol):
    def __init__(self, connected: Callable[[Stream], Connection]) -> None:
        self._connected = connected
        self._connection: Connection | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._connection = self._connected(_AsyncioStream(transport))

    def data_received(self, data: bytes) -> None:
        if self._connection is not None:
            self._connection.received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._connection is not None:
            self._connection.lost()


class _AsyncioStream:
    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    def write(self, data: bytes) -> None:
        self._transport.write(data)

    def close(self) -> None:
        self._transport.close()

    def detach(self) -> socket.socket:
        given = socket.socket(fileno=os.dup(self._transport.get_extra_info("socket").fileno()))
        self._transport.set_protocol(asyncio.Protocol())
        self._transport.abort()  # closes its own descriptor alone
        return given
