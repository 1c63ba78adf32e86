"""HTTP requests through the tunnels, for trackers: one request in a cell, its answer in as many as it takes.

The cells are those of Tribler's network (Tribler's tunnel/payload.py):

    28 request:   circuit id | identifier (4) | target address | length (2) | request
    29 response:  circuit id | identifier (4) | part (2) | parts (2) | length (2) | piece

An exit offers it with peer flag 32768; ours is overlay/serving/http_exit.py.
"""

import asyncio
from weakref import WeakValueDictionary

from ipv8.messaging.anonymization.community import TunnelCommunity
from ipv8.messaging.anonymization.payload import CellablePayload
from ipv8.messaging.anonymization.tunnel import CIRCUIT_STATE_READY, DESTROY_REASON_UNNEEDED, Circuit
from ipv8.messaging.lazy_payload import vp_compile
from ipv8.requestcache import RandomNumberCacheWithName, RequestCache

from tunnel_pool.overlay.ground.addresses import pack_address, unpack_address
from tunnel_pool.overlay.ground.lanes import Lane, lane_of
from tunnel_pool.rpc.drop_reasons import DropReason
from tunnel_pool.steering.layout import PAYLOAD_AT

PEER_FLAG_EXIT_HTTP = 32768
CIRCUIT_TYPE_HTTP = "HTTP"  # our own: carries requests, and no client's datagrams

MAX_REQUEST_BYTES = 8192  # those of a long URL come in fragments of a datagram (IP): a cell has no parts for requests
PART_BYTES = 1100  # of an answer that we put into a cell: it fits a packet of 1,280 bytes at each of three hops
MAX_PART_BYTES = 1400  # as Tribler's exits send
MAX_PARTS = 1024
TIMEOUT_S = 20.0
AT_A_TIME = 5  # requests over a circuit: an exit drops what is more (overlay/serving/http_exit.py)


class HttpError(Exception):
    """Says why a request has no answer."""


class NoHttpExitError(HttpError):
    """Says that no exit is known that offers it, or that none could be reached."""


@vp_compile
class HttpRequestPayload(CellablePayload):
    """A request for an exit to make."""

    msg_id = 28
    format_list = ["I", "I", "address", "varlenH"]  # noqa: RUF012
    names = ["circuit_id", "identifier", "target", "request"]  # noqa: RUF012


@vp_compile
class HttpResponsePayload(CellablePayload):
    """A piece of the answer."""

    msg_id = 29
    format_list = ["I", "I", "H", "H", "varlenH"]  # noqa: RUF012
    names = ["circuit_id", "identifier", "part", "total", "response"]  # noqa: RUF012


class HttpRequestCache(RandomNumberCacheWithName):
    """A request of ours that is on its way."""

    name = "http-request"

    def __init__(self, request_cache: RequestCache, circuit: Circuit) -> None:
        super().__init__(request_cache, self.name)
        self.circuit = circuit
        self.future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._parts: dict[int, bytes] = {}
        self._total = 0

    @property
    def timeout_delay(self) -> float:
        return TIMEOUT_S

    def on_timeout(self) -> None:
        if not self.future.done():
            self.future.set_exception(HttpError("the exit did not answer"))

    def add(self, part: int, total: int, piece: bytes) -> bool:
        """Return whether the answer is complete; pieces that don't belong to it are passed over."""
        if 0 < total <= MAX_PARTS and part < total and self._total in (0, total) and len(piece) <= MAX_PART_BYTES:
            self._total = total
            self._parts[part] = piece
        return bool(self._total) and len(self._parts) == self._total

    def answer(self) -> bytes:
        return b"".join(self._parts[part] for part in range(self._total))


class HttpRequests:
    """Makes requests through exits, as a part of a tunnel community (overlay/community.py)."""

    def __init__(self, community: TunnelCommunity) -> None:
        """Let the answers come in over the community's circuits."""
        self._community = community
        self._turns = WeakValueDictionary[int, asyncio.Semaphore]()  # by circuit, for as long as it is used
        community.add_cell_handler(HttpResponsePayload, self._on_response)
        community.cells_over_our_circuits.add(HttpResponsePayload.msg_id)

    async def perform(
        self, destination: tuple[str, int], request: bytes, lane: Lane, circuit_id: int | None = None
    ) -> bytes:
        """Return the answer as it came, headers and all; names are resolved at the exit. Raises HttpError.

        The request takes the circuit with this id while it is there, else one that is for requests. Over each, so many
        are asked at a time, and the others wait.
        """
        community = self._community
        if len(request) > MAX_REQUEST_BYTES:
            raise HttpError(f"a request of {len(request)} bytes; {MAX_REQUEST_BYTES} are the most")
        named = self._named_circuit(circuit_id, lane)
        circuit = named or await self._circuit(lane)
        turns = self._turns.get(circuit.circuit_id) or asyncio.Semaphore(AT_A_TIME)
        self._turns[circuit.circuit_id] = turns
        async with turns:
            try:
                return await self._ask(circuit, destination, request)
            except HttpError:
                # The exit may be gone, or never answer: the next request tries another.
                if circuit is not named:
                    why = "no answer to a request"
                    community.remove_circuit(circuit.circuit_id, why, destroy=DESTROY_REASON_UNNEEDED)
                raise

    async def _ask(self, circuit: Circuit, destination: tuple[str, int], request: bytes) -> bytes:
        """Raises HttpError."""
        community = self._community
        if circuit.state != CIRCUIT_STATE_READY:
            raise HttpError("the circuit has ended")
        cache = HttpRequestCache(community.request_cache, circuit)
        if community.request_cache.add(cache) is None:
            raise HttpError("shutting down")
        target = unpack_address(pack_address(*destination))
        community.send_cell(circuit.hop.address, HttpRequestPayload(circuit.circuit_id, cache.number, target, request))
        return await cache.future

    def _named_circuit(self, circuit_id: int | None, lane: Lane) -> Circuit | None:
        circuit: Circuit | None = self._community.circuits.get(circuit_id)
        is_there = circuit is not None and circuit.state == CIRCUIT_STATE_READY and lane_of(circuit) == lane
        return circuit if is_there else None

    async def _circuit(self, lane: Lane) -> Circuit:
        """Return a ready circuit for requests: one that is there or being built, else a new one. Raises HttpError."""
        known = self._community.circuits_of(CIRCUIT_TYPE_HTTP, lane)
        circuit = known[0] if known else self._build_circuit(lane)
        if circuit is None or not await circuit.ready:
            raise NoHttpExitError("no exit that makes HTTP requests can be reached")
        return circuit

    def _build_circuit(self, lane: Lane) -> Circuit | None:
        # Where none is known that makes requests, an exit that a relay tells of may.
        flags = [PEER_FLAG_EXIT_HTTP] if self._community.get_candidates(PEER_FLAG_EXIT_HTTP) else None
        circuit: Circuit | None = self._community.create_circuit(
            lane.hops, CIRCUIT_TYPE_HTTP, exit_flags=flags, group=lane.group
        )
        return circuit

    def _on_response(self, source_address: tuple[str, int], data: bytes, circuit_id: int | None) -> None:
        """Take a piece of an answer that came over the circuit which the request took."""
        payload, _ = self._community.serializer.unpack_serializable(HttpResponsePayload, data, offset=PAYLOAD_AT)
        cache = self._community.request_cache.get(HttpRequestCache, payload.identifier)
        if cache is None or cache.circuit.circuit_id != circuit_id:
            self._community.counters[DropReason.HTTP_RESPONSE_UNASKED] += 1
        elif cache.add(payload.part, payload.total, payload.response):
            self._community.request_cache.pop(HttpRequestCache, payload.identifier)
            if not cache.future.done():
                cache.future.set_result(cache.answer())
