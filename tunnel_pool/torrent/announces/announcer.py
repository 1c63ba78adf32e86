"""Leads the questions of one libtorrent session over one circuit, so that others find its torrents at one address.

That is the address under which the circuit's exit is seen (outside.py). UDP and HTTP trackers are told its port; DHT
nodes see it. Before the circuit is worn, another one takes its place, once it is known where that is seen; trackers and
the DHT are told at once then, and peers that came over the old circuit stay until it ends.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Collection, Iterable
from enum import Enum, auto
from functools import partial

from ipv8.messaging.anonymization.tunnel import CIRCUIT_STATE_READY, CIRCUIT_TYPE_DATA, PEER_FLAG_EXIT_BT, Circuit

from tunnel_pool.contract import Address, Tunnels
from tunnel_pool.overlay.ground.lanes import Lane
from tunnel_pool.overlay.ground.pacing import Newest, doubled_s
from tunnel_pool.overlay.requests.http import PEER_FLAG_EXIT_HTTP
from tunnel_pool.socks5.address import AddressType, decode_address
from tunnel_pool.torrent.announces import http_trackers
from tunnel_pool.torrent.announces.account import Account
from tunnel_pool.torrent.announces.announced import AnnouncedSession, Settling, Watched
from tunnel_pool.torrent.announces.choice import Life, Seen, choose, is_worn
from tunnel_pool.torrent.announces.outside import Nodes
from tunnel_pool.torrent.announces.pace import Event
from tunnel_pool.torrent.announces.questions import (
    Question,
    begins_connection,
    is_dht_answer,
    may_be_trackers,
    question_of,
)
from tunnel_pool.torrent.announces.silent_trackers import SilentTrackers
from tunnel_pool.torrent.announces.tellings import Found, Tellings
from tunnel_pool.torrent.announces.tracker_questions import (
    HttpQuestion,
    HttpQuestions,
    HttpTurn,
    Sent,
    UdpQuestions,
    UdpTurn,
    tracker_of,
)
from tunnel_pool.torrent.announces.udp_trackers import Datagram, without_own

LOOK_S = 0.25
SETTLED_S, IDLE_LOOK_S = 30.0, 2.0  # once a circuit has been the one for so long, it is looked at less often
ASK_S = 1.0  # between questions to DHT nodes while it is not known where a circuit is seen
ASK_AGAIN_S = 60.0  # and once it is known
ANSWER_S = 6.0  # how long nodes have to answer before another circuit is tried
CREATE_S, MAX_CREATE_S = 10.0, 1800.0  # between circuits that are built for this, the first ones and later ones
HELD_S = 12.0  # how long announces wait for the port that they name
ANNOUNCE_S = 5.0  # between announces for the sake of a new address
# When the DHT is told again: at first libtorrent knows few nodes, and it waits 15 s for one that does not answer.
DHT_AGAIN_S = (5.0, 15.0, 30.0, 60.0)
ANNOUNCES_AT_ONCE = 5  # torrents; a look-up in the DHT is a hundred datagrams
MAX_DHT_ASKED = 512
NOWHERE = "0.0.0.0"  # noqa: S104 - no address, as py-ipv8 writes it

logger = logging.getLogger(__name__)


class NoCircuitError(Exception):
    """Says that there is no circuit yet for the questions of a lane."""


class Came(Enum):
    """Lists what becomes of a datagram that came over an announced circuit."""

    TAKEN = auto()
    STRANGER = auto()  # it begins a connection


class Announcer:
    """Leads one session's questions, from `start` until `end`."""

    def __init__(
        self,
        tunnels: Tunnels,
        lane: Lane,
        session: AnnouncedSession,
        life: Life,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tunnels = tunnels
        self._lane = lane
        self._session = session
        self._life = life
        self._clock = clock
        self.has_dht = True  # whether DHT nodes may see where circuits are found
        self.is_steady: Callable[[], bool] = lambda: True  # whether torrents have run for some time
        self._nodes = Nodes()
        self._dht_asked = Newest[bytes, None](MAX_DHT_ASKED)
        self._tellings = Tellings()
        self._udp = UdpQuestions(self, self._tellings, secrets.token_bytes)
        self._http = HttpQuestions(self, self._tellings)
        self._silent = SilentTrackers()
        self._settling = Settling()
        self._asking: set[asyncio.Task[None]] = set()
        self._current: int | None = None
        self._next: int | None = None
        self._watched: dict[int, Watched] = {}
        self._wants_requests = False  # whether a torrent has an HTTP tracker
        self._created = 0  # circuits that were built for this of late
        self._next_creation_s = float("-inf")
        self._announced_s = float("-inf")
        self._again_s: list[float] = []
        self._told: Found | None = None  # where trackers were told to find us
        self._keeping: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._keeping = asyncio.get_running_loop().create_task(self._keep())

    def end(self) -> None:
        for task in (self._keeping, *self._asking):
            if task is not None:
                task.cancel()

    @property
    def circuit_id(self) -> int | None:
        """Return the circuit that questions take, None where there is none."""
        circuit = self._tunnels.circuits.get(self._current or 0)
        return self._current if circuit is not None and circuit.state == CIRCUIT_STATE_READY else None

    @property
    def may_ask(self) -> bool:
        """Return whether there is a circuit that questions take, and what comes back over it is looked at."""
        watched = self._watched.get(self.circuit_id or 0)
        return watched is not None and watched.is_announced

    @property
    def port(self) -> int | None:
        """Return by which port of the exit others find the session's torrents, None while that is not known."""
        watched = self._watched.get(self._current or 0)
        return watched.port() if watched is not None else None

    @property
    def outside(self) -> Address | None:
        """Return where others find the session's torrents, None while that is not known."""
        watched, circuit = self._watched.get(self._current or 0), self._tunnels.circuits.get(self._current or 0)
        if watched is None or circuit is None or (port := watched.port()) is None:
            return None
        host = str(circuit.hops[-1].address[0]) if circuit.hops else NOWHERE
        return watched.outside.agreed() or (None if host == NOWHERE else (host, port))

    def is_ready(self, circuit_id: int) -> bool:
        """Return whether a circuit can be sent over."""
        circuit = self._tunnels.circuits.get(circuit_id)
        return circuit is not None and circuit.state == CIRCUIT_STATE_READY

    def account_of(self, infohash: bytes) -> Account | None:
        """Return the account of a torrent of the session (AnnouncedSession)."""
        return self._session.account_of(infohash)

    # What libtorrent asks

    def ask(self, destination: bytes, payload: bytes) -> UdpTurn | None:
        """Return what is sent, and over which circuit; None for what is no question.

        Raises NoCircuitError for a question that can't be asked now.
        """
        question = question_of(payload)
        is_tracked = question in (Question.ANNOUNCE, Question.SCRAPE) and self._is_tracker(destination)
        if question is Question.NONE or not (question in (Question.DHT, Question.CONNECT) or is_tracked):
            return None
        circuit_id = self._circuit_now()
        if question is Question.DHT:
            self._dht_asked[destination] = None
            return UdpTurn(circuit_id, [Sent(circuit_id, Datagram(destination, payload))], None)
        may_connect = self._is_settled(circuit_id)
        return self._udp.ask(circuit_id, Datagram(destination, payload), self._clock(), may_connect=may_connect)

    def _is_tracker(self, destination: bytes) -> bool:
        """Return whether a destination is a UDP tracker, and not a peer whose uTP packet looks like a question."""
        if destination[0] == AddressType.DOMAIN or self._udp.connections.is_tracker(destination):
            return True
        return self._session.is_udp_tracker(*decode_address(destination)[1:])

    def _circuit_now(self) -> int:
        """Return the circuit that questions take. Raises NoCircuitError."""
        if self.circuit_id is None:
            self.look()
        if (circuit_id := self.circuit_id) is None or not self.may_ask:
            raise NoCircuitError
        return circuit_id

    async def http_request(self, tracker: Address, request: bytes) -> HttpTurn | bytes:
        """Return what is asked in the place of an HTTP request, once it is known where torrents are found.

        Bytes are the answer to an announce that the tracker does not get.
        """
        if http_trackers.infohash_of(request) is None:
            return HttpTurn(None, HttpQuestion(request, None))
        self._wants_requests = True
        if (turn := self._http.at_once(tracker, request, self._clock())) is not None:
            return turn
        is_last = http_trackers.event_of(request) is Event.STOPPED
        if self._requesting() is None and self._http_exits() and not is_last:
            await self._settling.wait(HELD_S)
        return self._http.told(tracker, request, self._requesting(waits=False))

    def request_ended(self, tracker: Address, circuit_id: int | None, *, is_answered: bool) -> None:
        """Hear how an HTTP request over this circuit ended: where its exit is silent, the next ones take another."""
        if circuit_id in self._watched:
            self._silent.ended(tracker, circuit_id, is_answered=is_answered)

    def request_answered(self, tracker: Address, request: bytes, response: bytes) -> None:
        """Hear what libtorrent gets for an HTTP request of its own."""
        self._http.answered(tracker, request, response, self._clock())

    # What comes in

    def came(self, circuit_id: int, origin: bytes, payload: bytes) -> tuple[bytes, ...] | Came:
        """Judge a datagram that came over an announced circuit from where no client sends to over it.

        Return what the client gets in its place, or what else becomes of it.
        """
        if question_of(payload) is Question.DHT:
            watched = self._watched.get(circuit_id)
            if watched is not None and watched.outside.answered(origin, payload):
                return Came.TAKEN
            if origin in self._dht_asked:
                self._nodes.add(origin)
            # What is answered goes over the present circuit: who asks over another must not see that both are ours.
            is_ours = circuit_id == self.circuit_id or (origin in self._dht_asked and is_dht_answer(payload))
            return (payload,) if is_ours else Came.TAKEN
        if begins_connection(payload):
            is_known = self._session.is_connected(decode_address(origin)[1:])
            return Came.TAKEN if is_known or origin[0] != AddressType.IPV4 else Came.STRANGER
        if not may_be_trackers(payload):
            return Came.TAKEN  # libtorrent would answer a stray uTP packet over whatever circuit
        self._send(self._udp.answered(Datagram(origin, payload), self._clock()))
        answer = self._udp.connections.answered(circuit_id, payload)
        for question in answer.sent:
            self._send(self._udp.told(circuit_id, question))
        return tuple(without_own(each, self.outside) for each in answer.for_client) or Came.TAKEN

    def _send(self, sent: Iterable[Sent]) -> None:
        for circuit_id, datagram in sent:
            self._tunnels.send_datagram(circuit_id, *datagram)

    def circuit_removed(self, circuit_id: int) -> None:
        self._watched.pop(circuit_id, None)
        self._send(self._udp.forget_circuit(circuit_id))
        self._silent.forget_circuit(circuit_id)
        if circuit_id == self._next:
            self._next = None
        if circuit_id == self._current:
            self._current, self._next = self._next, None
            self.look()

    # Which circuit it is

    def look(self) -> None:
        """Take a circuit where there is none, find out where it is seen, replace it in time, and have others told."""
        now_s = self._clock()
        self._choose_circuits(now_s)
        for asked_over, question in self._udp.connections.again(now_s, self._is_settled):
            self._tunnels.send_datagram(asked_over, *question)
        self._send(self._udp.overdue(now_s))
        for circuit_id in (self._current, self._next):
            if circuit_id is not None:
                self._find_out(circuit_id, now_s)
        if self._next is not None and self._is_found(self._next, now_s):
            self._current, self._next = self._next, None
        self._tell(now_s)
        if self._settling.is_awaited and self._requesting() is not None:
            self._settling.ended()

    def _is_settled(self, circuit_id: int) -> bool:
        """Return whether it is known where a circuit is seen, or has taken too long to find out."""
        watched = self._watched.get(circuit_id)
        if watched is None:
            return False
        nobody_says_it = watched.is_exit_silent and not self.has_dht
        return watched.port() is not None or nobody_says_it or self._clock() - watched.since_s >= HELD_S

    def _requesting(self, *, waits: bool = True) -> int | None:
        """Return the present circuit, if HTTP trackers are asked over it; None while it `waits` for its port."""
        circuit = self._tunnels.circuits.get(self.circuit_id or 0)
        if circuit is None or not self._is_able(circuit, self._http_exits()):
            return None
        return None if waits and not self._is_settled(circuit.circuit_id) else circuit.circuit_id

    def _choose_circuits(self, now_s: float) -> None:
        http_exits = self._http_exits()
        circuits = self._tunnels.circuits_for_new_peers(*self._lane)
        ready = {circuit.circuit_id: self._seen(circuit, http_exits) for circuit in circuits}
        if self.circuit_id is None:
            self._current = self._choose_at_once(list(ready.values()), wants_requests=bool(http_exits))
        elif self._next is None:
            current = ready.get(self.circuit_id)  # None while its child is drained
            others = [seen for seen in ready.values() if seen.circuit_id != self._current]
            lacks_requests = current is not None and not current.makes_requests and bool(http_exits)
            if current is None or is_worn(current, self._life) or lacks_requests:
                self._next = self._choose(others, now_s, wants_requests=bool(http_exits))
            elif self._is_unanswered(now_s):
                untried = [seen for seen in others if not self._has_failed(seen.circuit_id)]
                self._next = self._chosen(untried, wants_requests=bool(http_exits))

    def _tell(self, now_s: float) -> None:
        """Have torrents announced anew when they are found elsewhere, and to the DHT again after that."""
        found = self._found()
        if found.port is not None and found != self._told and now_s - self._announced_s >= ANNOUNCE_S:
            self._told, self._announced_s = found, now_s
            if now_s >= self._next_creation_s:
                self._created = 0
            hops, noun = self._lane.hops, "hop" if self._lane.hops == 1 else "hops"
            logger.info("Others find the torrents with %d %s from now on.", hops, noun)
            logger.debug("They are found at the exit of circuit %08x, by port %d.", *found)
            self._session.announce_anew(to_trackers=True, is_told=self._is_told)
            self._again_s = [now_s + wait_s for wait_s in DHT_AGAIN_S]
        elif self._again_s and now_s >= self._again_s[0]:
            del self._again_s[0]
            self._session.announce_anew(to_trackers=False)

    def _is_told(self, infohashes: Iterable[bytes], url: str) -> bool:
        tracker = tracker_of(url)
        return tracker is not None and self._tellings.are_right(infohashes, tracker, self._found())

    def _found(self) -> Found:
        return Found(self._current or 0, self.port)

    def _seen(self, circuit: Circuit, http_exits: Collection[bytes]) -> Seen:
        carried_bytes = circuit.bytes_up + circuit.bytes_down
        age_s = time.time() - circuit.creation_time
        return Seen(circuit.circuit_id, age_s, carried_bytes, self._is_able(circuit, http_exits))

    def _http_exits(self) -> set[bytes]:
        """Return the keys of the exits that ask HTTP trackers; none where no torrent has such a tracker."""
        known = self._tunnels.get_candidates(PEER_FLAG_EXIT_HTTP) if self._wants_requests else ()
        return {peer.public_key.key_to_bin() for peer in known}

    def _is_able(self, circuit: Circuit, http_exits: Collection[bytes]) -> bool:
        """Return whether a circuit ends at one of these exits, which has answered all requests so far."""
        return (
            not self._silent.refuses(circuit.circuit_id)
            and bool(circuit.hops)
            and circuit.hops[-1].public_key_bin in http_exits
        )

    def _has_failed(self, circuit_id: int) -> bool:
        watched = self._watched.get(circuit_id)
        return watched is not None and watched.has_failed

    def _chosen(self, circuits: list[Seen], *, wants_requests: bool) -> int | None:
        failed = [seen.circuit_id for seen in circuits if self._has_failed(seen.circuit_id)]
        chosen = choose(circuits, self._life, wants_requests=wants_requests, failed=failed)
        return chosen.circuit_id if chosen is not None else None

    def _choose_at_once(self, circuits: list[Seen], *, wants_requests: bool) -> int | None:
        """Return a circuit, worn as it may be; none where the lane has none yet."""
        least_spent = min(circuits, key=lambda circuit: circuit.spent(self._life), default=None)
        chosen = self._chosen(circuits, wants_requests=wants_requests)
        return chosen or (least_spent.circuit_id if least_spent is not None else None)

    def _choose(self, circuits: list[Seen], now_s: float, *, wants_requests: bool) -> int | None:
        """Return a circuit, and have one built where none will do: less and less often, if that does not help."""
        chosen = self._chosen(circuits, wants_requests=wants_requests)
        if chosen is None and now_s >= self._next_creation_s:
            wait_s = doubled_s(CREATE_S, self._created, MAX_CREATE_S)
            self._next_creation_s, self._created = now_s + wait_s, self._created + 1
            flags = [PEER_FLAG_EXIT_BT, PEER_FLAG_EXIT_HTTP] if wants_requests else [PEER_FLAG_EXIT_BT]
            self._tunnels.create_circuit(self._lane.hops, CIRCUIT_TYPE_DATA, exit_flags=flags, group=self._lane.group)
        return chosen

    def _find_out(self, circuit_id: int, now_s: float) -> None:
        if circuit_id not in self._watched:
            self._watched[circuit_id] = Watched(now_s)
        watched = self._watched[circuit_id]
        if not watched.is_announced and now_s - watched.announced_s >= ASK_S:
            watched.announced_s = now_s
            self._tunnels.announce_over(circuit_id, partial(self._announced, circuit_id))
        if watched.is_announced and not watched.is_exit_asked:
            watched.is_exit_asked = True
            task = asyncio.get_running_loop().create_task(self._ask_exit(circuit_id, watched))
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)
        wait_s = ASK_S if watched.outside.agreed() is None else ASK_AGAIN_S
        if now_s - watched.asked_s >= wait_s:
            questions = watched.outside.ask(self._nodes)
            if questions:
                watched.asked_s = now_s
            for address, question in questions:
                self._tunnels.send_datagram(circuit_id, address, question)

    async def _ask_exit(self, circuit_id: int, watched: Watched) -> None:
        watched.exit_port = await self._tunnels.find_exit_port(circuit_id)
        watched.is_exit_silent = watched.exit_port is None
        self.look()

    def _announced(self, circuit_id: int) -> None:
        if (watched := self._watched.get(circuit_id)) is not None:
            watched.is_announced = True

    def _is_found(self, circuit_id: int, now_s: float) -> bool:
        watched = self._watched[circuit_id]
        return watched.port() is not None or now_s - watched.since_s >= ANSWER_S

    def _is_unanswered(self, now_s: float) -> bool:
        """Return whether nodes that were asked over the circuit had the time to answer, and none did."""
        watched = self._watched.get(self._current or 0)
        if watched is None or watched.outside.is_answered or watched.asked_s == float("-inf"):
            return False
        watched.has_failed = watched.has_failed or now_s - watched.since_s >= ANSWER_S
        return watched.has_failed

    async def _keep(self) -> None:
        while True:
            self.look()
            are_left = self._session.announce_some(ANNOUNCES_AT_ONCE)
            watched = self._watched.get(self._next or self._current or 0)
            is_new = watched is None or self._clock() - watched.since_s < SETTLED_S
            await asyncio.sleep(LOOK_S if are_left or is_new else IDLE_LOOK_S)
