"""Between the SOCKS5 server and the tunnels: which circuit carries which peer's datagrams."""

import asyncio
import contextlib
import logging
import secrets
import socket
from collections import Counter
from collections.abc import Callable, Iterable

from ipv8.messaging.anonymization.tunnel import CIRCUIT_TYPE_DATA, Circuit

from tunnel_pool.contract import Address, Tunnels
from tunnel_pool.framework import own_network
from tunnel_pool.overlay.clients.clients import Clients
from tunnel_pool.overlay.clients.outgoing import OutgoingCircuits
from tunnel_pool.overlay.ground.config import slot_of
from tunnel_pool.overlay.ground.end_to_end import (
    END_TO_END,
    end_to_end_address,
    number_of_end,
)
from tunnel_pool.overlay.ground.lanes import Lane, detour_of, is_announced, lane_of
from tunnel_pool.overlay.ground.pacing import TokenBucket
from tunnel_pool.overlay.ground.streams import Guest
from tunnel_pool.overlay.requests.http import PEER_FLAG_EXIT_HTTP, HttpError
from tunnel_pool.rpc.drop_reasons import DropReason
from tunnel_pool.sandbox.lockdown import Lockdown
from tunnel_pool.socks5.address import AddressType, Socks5Address, Socks5Error, decode_address
from tunnel_pool.socks5.carrier import Carrier, OnLost
from tunnel_pool.socks5.messages import ReplyCode, Secret
from tunnel_pool.socks5.server import Association, Socks5Server
from tunnel_pool.steering.group import open_here
from tunnel_pool.torrent.announces.announcer import Announcer, Came, NoCircuitError
from tunnel_pool.torrent.announces.tracker_answers import AnswerRefusedError, rewritten
from tunnel_pool.torrent.announces.tracker_questions import TAKEN_BACK_S, HttpQuestion, HttpTurn
from tunnel_pool.torrent.anonymous_torrents import HTTP_PORT, HTTPS_PORT

STRANGERS_PER_S, STRANGERS_AT_ONCE = 20, 40  # connections of strangers that are let in
ANSWERS_AT_ONCE, ANSWERS_PAUSE_S = 64, 0.02  # a tracker's to as many torrents: 212 KB of socket buffer hold 270

logger = logging.getLogger(__name__)


class Dispatcher:
    """Carries the datagrams of one lane; a tunnel_pool.socks5.server.Consumer.

    What no ready circuit can take is dropped and counted, never sent otherwise.
    """

    def __init__(
        self,
        tunnels: Tunnels,
        lane: Lane,
        on_lost: OnLost = lambda is_lost: None,
        carrier: Carrier | None = None,
        *,
        may_speak_tls: bool = False,
    ) -> None:
        """`carrier` may take datagrams first.

        `may_speak_tls`: libtorrent can't do harm by what it is told where nobody else can read it (docs/THREATS.md).
        """
        self.lane = lane
        self.drops: Counter[str] = Counter()
        self._tunnels = tunnels
        self._outgoing = OutgoingCircuits(tunnels, lane, slot_of)
        self._associations: list[Association] = []
        self._clients = Clients()
        self._on_lost = on_lost
        self.is_http_tracker: Callable[[str, int], bool] = lambda host, port: False
        # As in Tunnels, for circuits of this lane; returns whether a client connects to the guest.
        self.on_guest: Callable[[Guest], bool] = lambda guest: False
        self._carrier = carrier
        self.announcer: Announcer | None = None  # who leads the questions of the session, where somebody does
        self._strangers = TokenBucket()
        self._entering: dict[bytes, asyncio.Task[None]] = {}  # by encoded address, who begins a connection
        self.may_speak_tls = may_speak_tls

    @property
    def is_associated(self) -> bool:
        """Return whether a client can send."""
        return bool(self._associations)

    def association_opened(self, association: Association) -> None:
        self._associations.append(association)

    def client_known(self, association: Association) -> None:
        if self._carrier is not None:
            self._carrier.opened(association)

    def usual_known(self, association: Association) -> None:
        self._clients.set_usual(self.lane, association.id)
        if self._carrier is not None:
            self._carrier.usual(association)

    def association_closed(self, association: Association) -> None:
        self._associations.remove(association)
        if self._carrier is not None:
            self._carrier.closed(association)

    def datagram_received(self, association: Association, address: bytes, payload: bytes) -> None:
        try:
            decode_address(address)
        except Socks5Error:
            self.drops[DropReason.SOCKS5_MALFORMED] += 1
            return
        try:
            asked = self.announcer.ask(address, payload) if self.announcer is not None else None
        except NoCircuitError:
            self.drops[DropReason.NO_CIRCUIT] += 1
            return
        if asked is not None:
            self._clients.asked(asked.circuit_id, address, association.id)
            for circuit_id, datagram in asked.sent:
                self._tunnels.send_datagram(circuit_id, *datagram)
            if asked.answer is not None:
                association.send(*asked.answer)
            return
        if self._carrier is not None and self._carrier.take(association, address, payload):
            return
        outgoing = self._outgoing.choose(address)
        if outgoing is None:
            self.drops[DropReason.NO_CIRCUIT] += 1
            return
        self._clients.asked(outgoing.circuit.circuit_id, address, association.id)
        self._outgoing.send(outgoing, payload)

    def is_for_streams(self, address: Socks5Address) -> bool:
        """Return whether a connection becomes a stream: to peers, which have addresses, and by TLS.

        What else names a host, or goes to HTTP's port, asks an HTTP tracker, whose answer is looked at.
        """
        is_name = address.kind is AddressType.DOMAIN
        if address.port == HTTP_PORT or (is_name and address.port != HTTPS_PORT):
            return False
        if address.port == HTTPS_PORT and not self.may_speak_tls:
            return False
        has_streams = self._carrier is not None and self._carrier.has_streams(address)
        return has_streams and not self.is_http_tracker(address.host, address.port)

    def guest_came(self, guest: Guest) -> None:
        """Let a guest in; one who has called is a stranger like those who come by datagrams."""
        may_come = guest.infohash is None or self._may_let_stranger_in()
        if not may_come or not self.on_guest(guest):
            self._tunnels.refuse_guest(guest)

    def open_stream(self, sock: socket.socket, address: Socks5Address, early: bytes) -> None:
        assert self._carrier is not None
        self._carrier.open_stream(sock, address, early)

    def why_no_connection(self, address: Socks5Address) -> tuple[ReplyCode, str] | None:
        """Return why a CONNECT is refused, None if it is not: only HTTP trackers are asked, by exits that offer it."""
        if address.port == HTTPS_PORT:
            return ReplyCode.NETWORK_UNREACHABLE, "no circuit that carries TLS is known"
        if number_of_end(address.host, address.port) is not None:
            return ReplyCode.HOST_UNREACHABLE, "the circuit to this peer is gone"
        by_detour = any(map(detour_of, self._tunnels.circuits_for_new_peers(*self.lane)))
        if not by_detour and not self._tunnels.get_candidates(PEER_FLAG_EXIT_HTTP):
            return ReplyCode.NETWORK_UNREACHABLE, "no exit that makes HTTP requests is known"
        if address.port == 0:
            return ReplyCode.NOT_ALLOWED, "no port"
        return None

    async def http_request(self, address: Socks5Address, request: bytes) -> bytes:
        tracker, announcer = address[1:], self.announcer
        turn: HttpTurn | bytes = HttpTurn(None, HttpQuestion(request, None))
        if announcer is not None:
            turn = await announcer.http_request(tracker, request)
        if isinstance(turn, bytes):
            return turn
        if turn.taken_back is not None:
            with contextlib.suppress(HttpError, TimeoutError):
                await asyncio.wait_for(self._perform(tracker, turn.taken_back), TAKEN_BACK_S)
        try:
            response = await self._perform(tracker, turn.asked)
            if announcer is not None:
                announcer.request_ended(tracker, turn.asked.circuit_id, is_answered=True)
            own = announcer.outside if announcer is not None else None
            answer = rewritten(response, _url_of(address, request), own)
            if announcer is not None:
                announcer.request_answered(tracker, request, answer)
            return answer
        except HttpError as error:
            self.drops[DropReason.HTTP_REQUEST_FAILED] += 1
            if announcer is not None:
                announcer.request_ended(tracker, turn.asked.circuit_id, is_answered=False)
            logger.info("A tracker was not asked: %s", error)
        except AnswerRefusedError as error:
            self.drops[DropReason.HTTP_ANSWER_REFUSED] += 1
            logger.info("A tracker's answer was refused: %s", error)
        return b""

    async def _perform(self, tracker: Address, question: HttpQuestion) -> bytes:
        """Raises HttpError."""
        return await self._tunnels.perform_http_request(tracker, question.request, *self.lane, question.circuit_id)

    def datagram_returned(self, circuit_id: int, address: bytes, data: bytes) -> None:
        """Hand a datagram that came over a circuit, from this encoded address, to the client that asked for it."""
        if not self._associations:
            self.drops[DropReason.NO_ASSOCIATION] += 1
            return
        if self.announcer is None or not self._is_strange(circuit_id, address):
            self._hand_to_client(circuit_id, address, data)
            return
        came = self.announcer.came(circuit_id, address, data)
        if came is Came.STRANGER:
            self._let_in(circuit_id, address, data)
        answers = () if isinstance(came, Came) else came
        for answer in answers[:ANSWERS_AT_ONCE]:
            self._hand_to_client(circuit_id, address, answer)
        for number, answer in enumerate(answers[ANSWERS_AT_ONCE:], ANSWERS_AT_ONCE):
            wait_s = number // ANSWERS_AT_ONCE * ANSWERS_PAUSE_S
            asyncio.get_running_loop().call_later(wait_s, self._hand_to_client, circuit_id, address, answer)

    def _is_strange(self, circuit_id: int, address: bytes) -> bool:
        """Return whether no client sends to this encoded address over a circuit by which others find us."""
        circuit = self._tunnels.circuits.get(circuit_id)
        is_ours = circuit is not None and is_announced(circuit)
        return is_ours and self._outgoing.circuit_of(address) != circuit_id

    def _let_in(self, circuit_id: int, address: bytes, data: bytes) -> None:
        """Hand a connection's first datagram on, once what is answered goes over the same circuit."""
        if address in self._entering:
            return
        if not self._may_let_stranger_in():
            return
        self._entering[address] = asyncio.get_running_loop().create_task(self._enter(circuit_id, address, data))

    def _may_let_stranger_in(self) -> bool:
        """Return whether one more stranger may begin a connection; he is counted then."""
        may = self._strangers.spend(STRANGERS_PER_S, STRANGERS_AT_ONCE, asyncio.get_running_loop().time())
        if not may:
            self.drops[DropReason.STRANGERS_TOO_FAST] += 1
        return may

    async def _enter(self, circuit_id: int, address: bytes, data: bytes) -> None:
        try:
            association = self._association_for(circuit_id, address)
            if association is None:
                return
            if self._carrier is None or not await self._carrier.pin(association, address, circuit_id):
                self._outgoing.pin(address, circuit_id)
            self._hand_to_client(circuit_id, address, data)
        finally:
            del self._entering[address]

    def _association_for(self, circuit_id: int, address: bytes) -> Association | None:
        """Return the association that gets what comes over a circuit from this encoded address."""
        known = {association.id: association for association in self._associations}
        chosen = self._clients.for_answer(self.lane, [*known], circuit_id, address)
        return known[chosen] if chosen is not None else None

    def _hand_to_client(self, circuit_id: int, address: bytes, data: bytes) -> None:
        association = self._association_for(circuit_id, address)
        if association is not None:
            association.send(address, data)

    def circuit_removed(self, circuit: Circuit) -> None:
        if circuit.ctype in END_TO_END:
            self._on_lost({end_to_end_address(circuit)}.__contains__)
        self._clients.forget_circuit(circuit.circuit_id)
        if self.announcer is not None:
            self.announcer.circuit_removed(circuit.circuit_id)
        orphans = self._outgoing.forget_circuit(circuit.circuit_id)
        if orphans:
            self.orphaned(orphans)

    def orphaned(self, destinations: Iterable[bytes]) -> None:
        """Hear that these destinations, encoded, have lost their circuit."""
        lost: set[Address] = set()
        for destination in destinations:
            with contextlib.suppress(Socks5Error):  # the name is invalid, so that no peer can have it
                lost.add(decode_address(destination)[1:])
        self._on_lost(lost.__contains__)

    def end(self) -> None:
        """Stop; this is called when there are no more associations."""
        if self._carrier is not None:
            self._carrier.end()

    def dropped(self) -> Counter[str]:
        """Return dropped datagrams by reason, the carrier's included."""
        return self.drops + self._carrier.drops if self._carrier is not None else self.drops


def _url_of(address: Socks5Address, request: bytes) -> str:
    """Return the URL that a GET request to this address asks for."""
    path = request.split(b" ", 2)[1].decode("latin-1")
    host = f"[{address.host}]" if ":" in address.host else address.host
    return f"http://{host}:{address.port}{path}"


def new_secret() -> Secret:
    """Return a user and password that only this process knows."""
    return Secret(secrets.token_hex(8), secrets.token_hex(16))


def serve_session(
    tunnels: Tunnels,
    lane: Lane,
    on_lost: OnLost,
    steering: bool,
    *,
    secret: Secret | None = None,
    lockdown: Lockdown | None = None,
    announced: bool = False,
    may_speak_tls: bool = False,
) -> tuple[Dispatcher, Socks5Server]:
    """Make what a client of this lane needs, such as a libtorrent session: a server to `listen`, a dispatcher.

    A client with datagrams needs the dispatcher to be connected (`connect`); streams alone come without that.

    Without a `secret`, any process of this machine is served. In a `lockdown`, the server is reached from
    there alone. With `announced`, questions to trackers and DHT nodes come to the dispatcher, whose `announcer` is to
    be set.
    """
    carrier = tunnels.carrier(lane, on_lost, announced=announced) if steering else None
    dispatcher = Dispatcher(tunnels, lane, on_lost, carrier, may_speak_tls=may_speak_tls or lockdown is not None)
    open_in = open_here if lockdown is None else lockdown.call
    return dispatcher, Socks5Server(own_network(), dispatcher, steering, secret, open_in)


def connect(tunnels: Tunnels, dispatchers: Iterable[Dispatcher]) -> None:
    """Let the tunnels' datagrams and removals reach the dispatcher of their lane."""
    by_lane = {dispatcher.lane: dispatcher for dispatcher in dispatchers}

    def on_datagram(circuit: Circuit, address: bytes, data: bytes) -> None:
        dispatcher = by_lane.get(lane_of(circuit))
        if dispatcher is not None:
            dispatcher.datagram_returned(circuit.circuit_id, address, data)

    def on_circuit_removed(circuit: Circuit, reason: str) -> None:
        dispatcher = by_lane.get(lane_of(circuit))
        if dispatcher is not None and circuit.ctype in (CIRCUIT_TYPE_DATA, *END_TO_END):
            dispatcher.circuit_removed(circuit)

    def on_orphans(lane: Lane, destinations: list[bytes]) -> None:
        dispatcher = by_lane.get(lane)
        if dispatcher is not None:
            dispatcher.orphaned(destinations)

    def on_guest(guest: Guest) -> None:
        dispatcher = by_lane.get(lane_of(guest.circuit))
        if dispatcher is not None:
            dispatcher.guest_came(guest)

    tunnels.on_guest = on_guest
    tunnels.on_orphans = on_orphans
    tunnels.on_datagram = on_datagram
    tunnels.on_circuit_removed = on_circuit_removed
