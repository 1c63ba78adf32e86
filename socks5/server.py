"""The Twisted shell: a loopback listener and one UDP socket per association."""

import asyncio
import ipaddress
import itertools
import logging
import socket
from collections import Counter
from typing import Protocol, cast

from twisted.internet.defer import maybeDeferred
from twisted.internet.error import CannotListenError
from twisted.internet.interfaces import IListeningPort, IReactorSocket, IReactorTCP, IReactorUDP, ITransport
from twisted.internet.protocol import DatagramProtocol, Factory
from twisted.internet.protocol import Protocol as StreamProtocol

from socks5.address import Address, AddressType, Socks5Error
from socks5.handshake import Associate, Close, Connect, Handshake, Request, Send, Step
from socks5.messages import ReplyCode, Secret, join_udp_request, split_udp_request
from steering.group import OWN_SOCKET, OpenIn, ReusePortGroup, SteeringError, enlarge_buffers, open_here

LOOPBACK = "127.0.0.1"
MAX_ASSOCIATIONS = 64
MAX_DATAGRAM_BYTES = 65535
SPEAKS_WITHIN_S = 1.0  # of its association, a client that has something to ask

logger = logging.getLogger(__name__)


_ids = itertools.count(1)


class Reactor(IReactorTCP, IReactorUDP, IReactorSocket):
    """Offers what the server asks of Twisted's reactor."""


class Consumer(Protocol):
    """Carries the datagrams of this server's associations, and its clients' HTTP requests."""

    def association_opened(self, association: "Association") -> None: ...

    def association_closed(self, association: "Association") -> None: ...

    def client_known(self, association: "Association") -> None:
        """Hear that the association's `client` is known from now on."""

    def usual_known(self, association: "Association") -> None:
        """Hear that the association's client, which is known, gets what no client asked for."""

    def why_no_connection(self, address: Address) -> tuple[ReplyCode, str] | None:
        """Return why HTTP requests can't go to this address, None when they can."""

    async def http_request(self, address: Address, request: bytes) -> bytes:
        """The answer, headers and all; empty when there is none."""

    def datagram_received(self, association: "Association", address: bytes, payload: bytes) -> None:
        """A datagram for `address` (encoded, RFC 1928 section 5). It may be dropped, never sent otherwise."""


class Association(DatagramProtocol):
    """One UDP association. Only its client, once known, may use it.

    With a `group`, the consumer may have others serve the same port.
    """

    def __init__(
        self, server: "Socks5Server", client: Address, counters: Counter[str], group: ReusePortGroup | None = None
    ) -> None:
        self.id = next(_ids)
        self.group = group
        self._server = server
        self._consumer = server.consumer
        self._client: tuple[str, int] | None = None
        self._announced = client
        self._counters = counters
        self._ended = False

    def startProtocol(self) -> None:
        if self.group is None:
            enlarge_buffers(cast(socket.socket, self.transport.getHandle()))
        self._consumer.association_opened(self)
        self._server.association_opened(self)

    def presume_client(self, port: int) -> None:
        """Take this for the client's port, if it has not said its own: it may wait for others to speak first."""
        self._accept((LOOPBACK, port))

    def stopProtocol(self) -> None:
        self._ended = True
        self._server.association_closed(self)
        self._consumer.association_closed(self)
        if self.group is not None:
            self.group.close()

    @property
    def client(self) -> tuple[str, int] | None:
        """Known from its first datagram on, if not before."""
        return self._client

    def fileno(self) -> int:
        return cast(int, self.transport.fileno())

    def stop_reading(self) -> None:
        """Somebody else reads the socket from now on."""
        self.transport.stopReading()

    def datagramReceived(self, datagram: bytes, addr: tuple[str, int]) -> None:
        if addr != self._client and not self._accept(addr):
            self._counters["socks5_foreign_source"] += 1
            return
        try:
            address, payload = split_udp_request(datagram)
        except Socks5Error:
            self._counters["socks5_malformed"] += 1
            return
        self._consumer.datagram_received(self, address, payload)

    def _accept(self, addr: tuple[str, int]) -> bool:
        """The first datagram tells the client's port, unless the request did (libtorrent's does not)."""
        known_port = self._announced.kind is not AddressType.DOMAIN and self._announced.port
        if self._ended or self._client is not None or (known_port and addr[1] != known_port) or addr[0] != LOOPBACK:
            return False
        self._client = addr
        self._consumer.client_known(self)
        self._server.client_known(self)
        return True

    def send(self, address: bytes, payload: bytes) -> None:
        """Give the client a datagram that came from `address` (encoded)."""
        if self._client is None or self.transport is None:
            self._counters["socks5_no_client"] += 1
            return
        try:
            self.transport.write(join_udp_request(address, payload), self._client)
        except OSError:
            self._counters["socks5_client_full"] += 1


class Connection(StreamProtocol):
    """A client's TCP connection; the association lives exactly as long (section 7)."""

    def __init__(self, server: "Socks5Server") -> None:
        self._server = server
        self._handshake = Handshake(server.secret)
        self._udp: IListeningPort | None = None
        self._requesting: asyncio.Task[None] | None = None

    def dataReceived(self, data: bytes) -> None:
        self._perform(self._handshake.receive(data))

    def connectionLost(self, reason: object = None) -> None:
        self._server.connections.discard(self)
        if self._udp is not None:
            self._udp.stopListening()
            self._udp = None
        if self._requesting is not None:
            self._requesting.cancel()

    def connectionMade(self) -> None:
        self._server.connections.add(self)

    def _perform(self, steps: list[Step]) -> None:
        transport = cast(ITransport, self.transport)
        for step in steps:
            match step:
                case Send(data):
                    transport.write(data)
                case Associate(client):
                    self._perform(self._associate(client))
                case Connect(address):
                    refusal = self._server.consumer.why_no_connection(address)
                    self._perform(self._handshake.refused(*refusal) if refusal else self._handshake.connected())
                case Request(address, request):
                    self._requesting = asyncio.get_running_loop().create_task(self._request(address, request))
                case Close(why):
                    logger.info("SOCKS5 client turned away: %s", why)
                    transport.loseConnection()

    async def _request(self, address: Address, request: bytes) -> None:
        answer = await self._server.consumer.http_request(address, request)
        transport = cast(ITransport, self.transport)
        transport.write(answer)
        transport.loseConnection()

    def _associate(self, client: Address) -> list[Step]:
        try:
            self._udp = self._server.open_association(client)
        except (CannotListenError, Socks5Error) as error:
            return self._handshake.failed(str(error))
        return self._handshake.associated(LOOPBACK, self._udp.getHost().port)


def _bound_socket() -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setblocking(False)
    sock.bind((LOOPBACK, 0))
    return sock


class Socks5Server:
    """Listens on loopback for one consumer: one server per hop count."""

    def __init__(
        self,
        reactor: Reactor,
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
        self._reactor = reactor
        self.consumer = consumer
        self._port: IListeningPort | None = None
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
        """Presume whose it is, in a while where there are others: it may be another client's, which has time to speak.

        Not before Twisted reads the socket, which others may take over then.
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
        """Start listening; returns the port. Raises twisted's CannotListenError."""
        factory = Factory.forProtocol(Connection)
        factory.buildProtocol = lambda addr: Connection(self)
        try:
            with self._open_in(lambda: socket.create_server((LOOPBACK, port))) as listening:
                listening.setblocking(False)
                self._port = self._reactor.adoptStreamPort(listening.fileno(), socket.AF_INET, factory)
        except OSError as error:
            raise CannotListenError(LOOPBACK, port, error) from None
        return cast(int, self._port.getHost().port)

    def open_association(self, client: Address) -> IListeningPort:
        """A UDP socket for `client`. Raises Socks5Error, CannotListenError."""
        if len(self.connections) > MAX_ASSOCIATIONS:
            raise Socks5Error(f"more than {MAX_ASSOCIATIONS} associations")
        if client.kind is not AddressType.DOMAIN:
            source = ipaddress.ip_address(client.host)
            if not (source.is_unspecified or source.is_loopback):
                raise Socks5Error("only clients on loopback are served")
        group = self._open_group() if self._steering else None
        association = Association(self, client, self.counters, group)
        try:
            if group is not None:
                own = group.sockets[OWN_SOCKET].fileno()
                return self._reactor.adoptDatagramPort(own, socket.AF_INET, association, MAX_DATAGRAM_BYTES)
            with self._open_in(_bound_socket) as sock:
                return self._reactor.adoptDatagramPort(sock.fileno(), socket.AF_INET, association, MAX_DATAGRAM_BYTES)
        except OSError as error:
            if group is not None:
                group.close()
            raise Socks5Error(f"no socket for an association: {error.strerror}") from None

    def _open_group(self) -> ReusePortGroup | None:
        try:
            return ReusePortGroup(LOOPBACK, open_in=self._open_in)
        except (SteeringError, OSError) as error:
            logger.info("Datagrams pass through the main process, this system does not steer them: %s", error)
            return None

    async def close(self) -> None:
        """Stop listening and end every association."""
        if self._port is not None:
            stopped = maybeDeferred(self._port.stopListening)
            self._port = None
            await stopped.asFuture(asyncio.get_running_loop())
        for connection in list(self.connections):
            cast(ITransport, connection.transport).loseConnection()
