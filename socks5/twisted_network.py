"""Twisted moves the bytes of the SOCKS5 server, in a process that runs its reactor."""

import socket
from collections.abc import Callable
from typing import Any

from twisted.internet.protocol import DatagramProtocol, Factory, Protocol

from tunnel_pool.socks5.server import MAX_DATAGRAM_BYTES, Association, Connection, Stream


class TwistedNetwork:
    """A Network over Twisted's IReactorSocket, which duplicates the sockets."""

    def listen(self, sock: socket.socket, connected: Callable[[Stream], Connection]) -> Callable[[], None]:
        from twisted.internet import reactor

        factory = Factory()
        factory.buildProtocol = lambda addr: _StreamProtocol(connected)
        with sock:
            port = reactor.adoptStreamPort(sock.fileno(), socket.AF_INET, factory)
        return lambda: port.stopListening() and None

    def receive(self, sock: socket.socket, association: Association) -> "TwistedDatagrams":
        from twisted.internet import reactor

        with sock:
            protocol = _DatagramsProtocol(association)
            port = reactor.adoptDatagramPort(sock.fileno(), socket.AF_INET, protocol, MAX_DATAGRAM_BYTES)
        return TwistedDatagrams(port)


class TwistedDatagrams:
    """Datagrams of a Twisted port."""

    def __init__(self, port: Any) -> None:
        self._port = port

    @property
    def port(self) -> int:
        return int(self._port.getHost().port)

    def fileno(self) -> int:
        return int(self._port.fileno())

    def send(self, datagram: bytes, to: tuple[str, int]) -> None:
        self._port.write(datagram, to)

    def stop_reading(self) -> None:
        self._port.stopReading()

    def close(self) -> None:
        self._port.stopListening()


class _DatagramsProtocol(DatagramProtocol):
    def __init__(self, association: Association) -> None:
        self._association = association

    def datagramReceived(self, datagram: bytes, addr: tuple[str, int]) -> None:
        self._association.datagram_received(datagram, addr)


class _StreamProtocol(Protocol):
    def __init__(self, connected: Callable[[Stream], Connection]) -> None:
        self._connected = connected
        self._connection: Connection | None = None

    def connectionMade(self) -> None:
        self._connection = self._connected(_TwistedStream(self.transport))

    def dataReceived(self, data: bytes) -> None:
        if self._connection is not None:
            self._connection.received(data)

    def connectionLost(self, reason: object = None) -> None:
        if self._connection is not None:
            self._connection.lost()


class _TwistedStream:
    def __init__(self, transport: Any) -> None:
        self._transport = transport

    def write(self, data: bytes) -> None:
        self._transport.write(data)

    def close(self) -> None:
        self._transport.loseConnection()

    def detach(self) -> socket.socket:
        transport = self._transport
        transport.doWrite()
        transport.stopReading()
        transport.stopWriting()
        given: socket.socket = transport.getHandle().dup()
        # Twisted shuts a connection down where it closes one; this one goes on.
        transport.getHandle().close()
        return given
