"""The server: a listener on loopback, and one UDP socket for each association.

Who moves the bytes is a `Network`: Twisted (twisted_network.py), or asyncio alone (asyncio_network.py).
"""

import asyncio
import ipaddress
import itertools
import logging
import socket
from collections import Counter
from collections.abc import Callable
from typing import Protocol

from tunnel_pool.rpc.drop_reasons import DropReason
from tunnel_pool.socks5.address import AddressType, Socks5Address, Socks5Error
from tunnel_pool.socks5.handshake import Associate, Close, Connect, Handshake, Request, Send, Step
from tunnel_pool.socks5.messages import ReplyCode, Secret, join_udp_request, split_udp_request
from tunnel_pool.steering.group import OpenIn, ReusePortGroup, SteeringError, enlarge_buffers, open_here
from tunnel_pool.steering.slots import OWN_SOCKET

LOOPBACK = "127.0.0.1"
MAX_DATAGRAM_BYTES = 65535
MAX_ASSOCIATIONS = 64
SPEAKS_WITHIN_S = 1.0  # a client with something to ask does so within this time of its association

logger = logging.getLogger(__name__)


_ids = itertools.count(1)


def new_id() -> int:
    """Return a number for an association or a client's connection, by which its socket is handed over."""
    return next(_ids)


class CannotListenError(Exception):
    """Says why the port can't be had."""


class Stream(Protocol):
    """A client's TCP connection, as the server writes to it."""

    def write(self, data: bytes) -> None: ...

    def close(self) -> None:
        """Close it when all is written."""

    def detach(self) -> socket.socket:
        """Give the connection's socket away, after all is written; nothing more is heard of the connection."""


class Datagrams(Protocol):
    """A UDP socket that is read."""

    @property
    def port(self) -> int: ...

    def fileno(self) -> int: ...

    def send(self, datagram: bytes, to: tuple[str, int]) -> None:
        """Raises OSError when the socket does not take it."""

    def stop_reading(self) -> None: ...

    def close(self) -> None: ...


class Network(Protocol):
    """Moves bytes between sockets and the server; it takes the sockets, which are bound and do not block, over."""

    def listen(self, sock: socket.socket, connected: Callable[[Stream], "Connection"]) -> Callable[[], None]:
        """Accept connections; what is returned ends that. Raises OSError."""

    def receive(self, sock: socket.socket, association: "Association") -> Datagrams:
        """Give an association what comes, from the next turn of the loop on. Raises OSError."""


class Consumer(Protocol):
    """Carries the datagrams of this server's associations, and its clients' HTTP requests."""

    def association_opened(self, association: "Association") -> None: ...

    def association_closed(self, association: "Association") -> None: ...

    def client_known(self, association: "Association") -> None:
        """Hear that the association's `client` is known from now on."""

    def usual_known(self, association: "Association") -> None:
        """Hear that the association's client, which is known, gets what no client asked for."""

    def is_for_streams(self, address: Socks5Address) -> bool:
        """Return whether a connection to this address is handed over to `open_stream`."""

    def open_stream(self, sock: socket.socket, address: Socks5Address, early: bytes) -> None:
        """Carry a client's connection, which waits for its reply; `early` is what the client has sent already."""

    def why_no_connection(self, address: Socks5Address) -> tuple[ReplyCode, str] | None:
        """Return why HTTP requests can't go to this address, None when they can."""

    async def http_request(self, address: Socks5Address, request: bytes) -> bytes:
        """Return the answer, headers and all; empty when there is none."""

    def datagram_received(self, association: "Association", address: bytes, payload: bytes) -> None:
        """Take a datagram for `address` (encoded, RFC 1928 section 5). It may be dropped, never sent otherwise."""


class Association:
    """One UDP association. Only its client, once known, may use it.

    With a `group`, the consumer may have others serve the same port.
    """

    def __init__(
        self, server: "Socks5Server", client: Socks5Address, counters: Counter[str], group: ReusePortGroup | None = None
    ) -> None:
        self.id = new_id()
        self.group = group
        self._server = server
        self._consumer = server.consumer
        self._client: tuple[str, int] | None = None
        self._announced = client
        self._counters = counters
        self._datagrams: Datagrams | None = None
        self._ended = False

    def opened(self, datagrams: Datagrams) -> None:
        """Begin: the socket is there."""
        self._datagrams = datagrams
        self._consumer.association_opened(self)
        self._server.association_opened(self)

    def presume_client(self, port: int) -> None:
        """Take this for the client's port, if it has not said its own: it may wait for others to speak first."""
        self._accept((LOOPBACK, port))

    def close(self) -> None:
        self._ended = True
        if self._datagrams is not None:
            self._server.association_closed(self)
            self._consumer.association_closed(self)
            self._datagrams.close()
            self._datagrams = None
        if self.group is not None:
            self.group.close()

    @property
    def client(self) -> tuple[str, int] | None:
        """Return the client's address, which is known from its first datagram on, if not before."""
        return self._client

    @property
    def port(self) -> int:
        """Return the port that the client sends its datagrams to."""
        return self._open_datagrams().port

    def fileno(self) -> int:
        return self._open_datagrams().fileno()

    def stop_reading(self) -> None:
        """Leave the socket to somebody else from now on."""
        self._open_datagrams().stop_reading()

    def _open_datagrams(self) -> Datagrams:
        assert self._datagrams is not None, "the association is closed"
        return self._datagrams

    def datagram_received(self, datagram: bytes, addr: tuple[str, int]) -> None:
        if addr != self._client and not self._accept(addr):
            self._counters[DropReason.SOCKS5_FOREIGN_SOURCE] += 1
            return
        try:
            address, payload = split_udp_request(datagram)
        except Socks5Error:
            self._counters[DropReason.SOCKS5_MALFORMED] += 1
            return
        self._consumer.datagram_received(self, address, payload)

    def _accept(self, addr: tuple[str, int]) -> bool:
        """Take the client's port from its first datagram, unless the request told it (libtorrent's does not)."""
        known_port = self._announced.kind is not AddressType.DOMAIN and self._announced.port
        if self._ended or self._client is not None or (known_port and addr[1] != known_port) or addr[0] != LOOPBACK:
            return False
        self._client = addr
        self._consumer.client_known(self)
        self._server.client_known(self)
        return True

    def send(self, address: bytes, payload: bytes) -> None:
        """Give the client a datagram that came from `address` (encoded)."""
        if self._client is None or self._datagrams is None:
            self._counters[DropReason.SOCKS5_NO_CLIENT] += 1
            return
        try:
            self._datagrams.send(join_udp_request(address, payload), self._client)
        except OSError:
            self._counters[DropReason.SOCKS5_CLIENT_FULL] += 1


class Connection:
    """A client's TCP connection; the association lives exactly as long (section 7)."""

    def __init__(self, server: "Socks5Server", stream: Stream) -> None:
        self._server = server
        self._stream = stream
        self._handshake = Handshake(server.secret)
        self._association: Association | None = None
        self._requesting: asyncio.Task[None] | None = None
        if server.is_closed:
            stream.close()
        else:
            server.connections.add(self)

    def received(self, data: bytes) -> None:
        if self._server.is_closed:
            return
        self._perform(self._handshake.receive(data))

    def lost(self) -> None:
        self._server.connections.discard(self)
        if self._association is not None:
            self._association.close()
            self._association = None
        if self._requesting is not None:
            self._requesting.cancel()

    def close(self) -> None:
        self._stream.close()

    def _perform(self, steps: list[Step]) -> None:
        for step in steps:
            match step:
                case Send(data):
                    self._stream.write(data)
                case Associate(client):
                    self._perform(self._associate(client))
                case Connect(address) if self._server.consumer.is_for_streams(address):
                    early = self._handshake.handed_over()
                    self._server.connections.discard(self)
                    self._server.consumer.open_stream(self._stream.detach(), address, early)
                case Connect(address):
                    refusal = self._server.consumer.why_no_connection(address)
                    self._perform(self._handshake.refused(*refusal) if refusal else self._handshake.connected())
                case Request(address, request):
                    self._requesting = asyncio.get_running_loop().create_task(self._request(address, request))
                case Close(why):
                    logger.info("SOCKS5 client turned away: %s", why)
                    self._stream.close()

    async def _request(self, address: Socks5Address, request: bytes) -> None:
        try:
            self._stream.write(await self._server.consumer.http_request(address, request))
        finally:
            self._stream.close()

    def _associate(self, client: Socks5Address) -> list[Step]:
        try:
            self._association = self._server.open_association(client)
        except Socks5Error as error:
            return self._handshake.failed(str(error))
        return self._handshake.associated(LOOPBACK, self._association.port)


def _bound_socket() -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setblocking(False)
    sock.bind((LOOPBACK, 0))
    return sock


class Socks5Server:
    """Listens on loopback for one consumer: one server per hop count."""

    def __init__(
        self,
        network: Network,
        consumer: Consumer,
        steering: bool = False,
        secret: Secret | None = None,
        open_in: OpenIn = open_here,
    ) -> None:
        """Make a server whose associations, with `steering`, have groups where the system can do that.

        Clients have to know the `secret`; without one, any process of this machine is served. `open_in`
        makes the sockets.
        """
        self._steering = steering
        self._open_in = open_in
        self.secret = secret
        self._network = network
        self.consumer = consumer
        self.address: tuple[str, int] = (LOOPBACK, 0)  # where it listens
        self.is_closed = False
        self._stop_listening: Callable[[], None] | None = None
        self._usual_client: int | None = None
        self._associations: list[Association] = []
        self.connections: set[Connection] = set()
        self.counters: Counter[str] = Counter()

    def set_usual_client(self, port: int) -> None:
        """Set the loopback port of the client that waits for others to speak first.

        libtorrent does not say its port when it asks for an association, and a session that only seeds would never
        be heard of. What no client asked for is for this one.
        """
        self._usual_client = port
        for association in self._associations:
            self.client_known(association)
        self._presume()

    def association_opened(self, association: Association) -> None:
        """Call `_presume` soon; if there are other associations, after SPEAKS_WITHIN_S, so that the client can speak.

        It is never called at once: the network has to read the socket first, as others may then take it over.
        """
        self._associations.append(association)
        asyncio.get_running_loop().call_later(SPEAKS_WITHIN_S if len(self._associations) > 1 else 0, self._presume)

    def association_closed(self, association: Association) -> None:
        """Presume anew in a while: a client may open another association before its last one is gone."""
        self._associations.remove(association)
        asyncio.get_running_loop().call_later(SPEAKS_WITHIN_S, self._presume)

    def client_known(self, association: Association) -> None:
        if association.client is not None and association.client[1] == self._usual_client:
            self.consumer.usual_known(association)

    def _presume(self) -> None:
        """Take the newest association for the usual client's, if it has said nothing and nobody else is that client."""
        if self._usual_client is None or not self._associations:
            return
        newest = self._associations[-1]
        if newest.client is None and not any(
            known.client is not None and known.client[1] == self._usual_client for known in self._associations
        ):
            newest.presume_client(self._usual_client)

    def listen(self, port: int = 0) -> int:
        """Start listening; returns the port. Raises CannotListenError."""
        try:
            listening = self._open_in(lambda: socket.create_server((LOOPBACK, port)))
            listening.setblocking(False)
            self.address = listening.getsockname()
            self._stop_listening = self._network.listen(listening, lambda stream: Connection(self, stream))
        except OSError as error:
            raise CannotListenError(f"Couldn't listen on {LOOPBACK}:{port}: {error.strerror}") from None
        return self.address[1]

    def open_association(self, client: Socks5Address) -> Association:
        """Open a UDP socket for `client`. Raises Socks5Error."""
        if len(self.connections) > MAX_ASSOCIATIONS:
            raise Socks5Error(f"more than {MAX_ASSOCIATIONS} associations")
        if client.kind is not AddressType.DOMAIN:
            source = ipaddress.ip_address(client.host)
            if not (source.is_unspecified or source.is_loopback):
                raise Socks5Error("only clients on loopback are served")
        group = self._open_group() if self._steering else None
        association = Association(self, client, self.counters, group)
        try:
            sock = group.sockets[OWN_SOCKET].dup() if group is not None else self._open_in(_bound_socket)
            if group is None:
                enlarge_buffers(sock)
            association.opened(self._network.receive(sock, association))
        except OSError as error:
            association.close()
            raise Socks5Error(f"no socket for an association: {error.strerror}") from None
        return association

    def _open_group(self) -> ReusePortGroup | None:
        try:
            return ReusePortGroup(LOOPBACK, open_in=self._open_in)
        except (SteeringError, OSError) as error:
            logger.info("Datagrams pass through the main process, this system does not steer them: %s", error)
            return None

    async def close(self) -> None:
        """Stop listening and end every association."""
        self.is_closed = True
        if self._stop_listening is not None:
            self._stop_listening()
            self._stop_listening = None
        for connection in list(self.connections):
            connection.close()
