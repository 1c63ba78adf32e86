"""HTTP requests through the tunnels, for trackers: one request in a cell, its answer in as many as it takes.

The cells are those of Tribler's network (Tribler's tunnel/payload.py):

    28 request:   circuit id | identifier (4) | target address | length (2) | request
    29 response:  circuit id | identifier (4) | part (2) | parts (2) | length (2) | piece

An exit offers it with peer flag 32768, and lets through only what a tracker
answers: bencoded, or a redirection.
"""

import asyncio
import re
import time
from typing import Any

from ipv8.messaging.anonymization.payload import CellablePayload
from ipv8.messaging.anonymization.tunnel import DESTROY_REASON_UNNEEDED, Circuit
from ipv8.messaging.lazy_payload import vp_compile
from ipv8.requestcache import RandomNumberCacheWithName

from tunnel_pool.overlay.clients.lanes import Lane
from tunnel_pool.overlay.hidden_swarms.services import HiddenServices
from tunnel_pool.overlay.requests.http_answers import PART_BYTES, may_pass
from tunnel_pool.overlay.requests.http_reading import read_response
from tunnel_pool.overlay.serving.destinations import is_address, is_allowed_destination
from tunnel_pool.overlay.serving.exit_rules import ExitRules
from tunnel_pool.overlay.serving.exit_socket import PolicedExitSocket
from tunnel_pool.overlay.serving.exit_source import ExitSource
from tunnel_pool.overlay.wire.addresses import pack_address, unpack_address
from tunnel_pool.rpc.drop_reasons import DropReason
from tunnel_pool.steering.layout import PAYLOAD_AT

PEER_FLAG_EXIT_HTTP = 32768
CIRCUIT_TYPE_HTTP = "HTTP"  # our own: carries requests, and no client's datagrams

MAX_REQUEST_BYTES = 1300
MAX_PARTS = 1024
EXIT_TIMEOUT_S = 10.0
PIECES_AT_ONCE, PAUSE_S = 8, 0.02  # where a limit holds, many at once would not find room in the circuit's queue
TIMEOUT_S = 20.0
MAX_REQUESTS_PER_CIRCUIT = 5
MAX_REQUESTS = 100
# One request line, headers of one line each, no body: what a tracker is asked, and nothing else on this connection.
# Other headers could say that somebody else asks (X-Forwarded-For), or who is logged in.
_HEADERS = rb"(?:host|user-agent|accept|accept-encoding|accept-language|connection|cache-control|pragma)"
_GET_REQUEST = re.compile(
    rb"GET [\x21-\x7e]+ HTTP/1\.[01]\r\n(?:" + _HEADERS + rb":[\t\x20-\x7e]*\r\n)*\r\n", re.IGNORECASE
)


class HttpError(Exception):
    """Says why a request has no answer."""


class NoHttpExitError(HttpError):
    """Says that no exit is known that offers it, or that none could be reached."""


class RefusedError(Exception):
    """Says that an exit does not make this request, or give its answer back, by the name it is counted under."""


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

    def __init__(self, community: "HttpTunnels", circuit: Circuit) -> None:
        super().__init__(community.request_cache, self.name)
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
        if 0 < total <= MAX_PARTS and part < total and self._total in (0, total) and len(piece) <= PART_BYTES + 100:
            self._total = total
            self._parts[part] = piece
        return bool(self._total) and len(self._parts) == self._total

    def answer(self) -> bytes:
        return b"".join(self._parts[part] for part in range(self._total))


class HttpTunnels(HiddenServices):
    """Makes requests through exits, and those of others where `peer_flags` offer it."""

    allow_private: bool
    exit_rules: ExitRules
    exit_source: ExitSource
    cells_over_our_circuits = HiddenServices.cells_over_our_circuits | {HttpResponsePayload.msg_id}

    def __init__(self, settings: Any) -> None:
        super().__init__(settings)
        self._serving: dict[int, int] = {}  # requests by circuit
        self._judging = asyncio.Lock()
        self.add_cell_handler(HttpRequestPayload, self.on_http_request)
        self.add_cell_handler(HttpResponsePayload, self.on_http_response)

    # As originator

    async def perform_http_request(
        self, destination: tuple[str, int], request: bytes, hops: int = 1, group: int = 0
    ) -> bytes:
        """Return the answer as it came, headers and all; names are resolved at the exit. Raises HttpError."""
        if len(request) > MAX_REQUEST_BYTES:
            raise HttpError(f"a request of {len(request)} bytes; {MAX_REQUEST_BYTES} fit into a cell")
        circuit = await self._http_circuit(Lane(hops, group))
        cache = HttpRequestCache(self, circuit)
        if self.request_cache.add(cache) is None:
            raise HttpError("shutting down")
        target = unpack_address(pack_address(*destination))
        self.send_cell(circuit.hop.address, HttpRequestPayload(circuit.circuit_id, cache.number, target, request))
        try:
            return await cache.future
        except HttpError:
            # The exit may be gone, or never answer: the next request tries another.
            self.remove_circuit(circuit.circuit_id, "no answer to a request", destroy=DESTROY_REASON_UNNEEDED)
            raise

    async def _http_circuit(self, lane: Lane) -> Circuit:
        """Return a ready circuit for requests: one that is there or being built, else a new one. Raises HttpError."""
        known = self.circuits_of(CIRCUIT_TYPE_HTTP, lane)
        circuit = known[0] if known else self._build_http_circuit(lane)
        if circuit is None or not await circuit.ready:
            raise NoHttpExitError("no exit that makes HTTP requests can be reached")
        return circuit

    def _build_http_circuit(self, lane: Lane) -> Circuit | None:
        if not self.get_candidates(PEER_FLAG_EXIT_HTTP):
            return None
        circuit: Circuit | None = self.create_circuit(
            lane.hops, CIRCUIT_TYPE_HTTP, exit_flags=[PEER_FLAG_EXIT_HTTP], group=lane.group
        )
        return circuit

    def on_http_response(self, source_address: tuple[str, int], data: bytes, circuit_id: int | None) -> None:
        """Take a piece of an answer that came over the circuit which the request took."""
        payload, _ = self.serializer.unpack_serializable(HttpResponsePayload, data, offset=PAYLOAD_AT)
        cache = self.request_cache.get(HttpRequestCache, payload.identifier)
        if cache is None or cache.circuit.circuit_id != circuit_id:
            self.counters[DropReason.HTTP_RESPONSE_UNASKED] += 1
        elif cache.add(payload.part, payload.total, payload.response):
            self.request_cache.pop(HttpRequestCache, payload.identifier)
            if not cache.future.done():
                cache.future.set_result(cache.answer())

    # As exit

    async def on_http_request(self, source_address: tuple[str, int], data: bytes, circuit_id: int | None) -> None:
        """Make a request for a circuit that ends here, if we offer that; what is wrong is not answered."""
        payload, _ = self.serializer.unpack_serializable(HttpRequestPayload, data, offset=PAYLOAD_AT)
        offered = PEER_FLAG_EXIT_HTTP in self.settings.peer_flags
        if circuit_id is None or circuit_id not in self.exit_sockets or not offered:
            self.counters[DropReason.HTTP_NOT_OFFERED] += 1
            return
        running = self._serving.get(circuit_id, 0)
        if running >= MAX_REQUESTS_PER_CIRCUIT or sum(self._serving.values()) >= MAX_REQUESTS:
            self.counters[DropReason.HTTP_TOO_MANY_REQUESTS] += 1
            return
        self._serving[circuit_id] = running + 1
        try:
            async with asyncio.timeout(EXIT_TIMEOUT_S):
                response = await self._fetch(self.exit_sockets[circuit_id], payload.target, payload.request)
        except RefusedError as refused:
            self.counters[str(refused)] += 1
            return
        except (OSError, TimeoutError):
            self.counters[DropReason.HTTP_FAILED] += 1
            return
        finally:
            self._serving[circuit_id] -= 1
            if not self._serving[circuit_id]:
                del self._serving[circuit_id]
        pieces = [response[start : start + PART_BYTES] for start in range(0, len(response), PART_BYTES)]
        for number, piece in enumerate(pieces):
            if number and number % PIECES_AT_ONCE == 0:
                await asyncio.sleep(PAUSE_S)
            answer = HttpResponsePayload(circuit_id, payload.identifier, number, len(pieces), piece)
            self.send_cell(source_address, answer)

    async def _fetch(self, exit_socket: PolicedExitSocket, target: tuple[str, int], request: bytes) -> bytes:
        """Raises RefusedError, OSError."""
        if not _GET_REQUEST.fullmatch(request):
            raise RefusedError(DropReason.HTTP_REQUEST_REFUSED)
        address = await self._destination(exit_socket, *target)
        if why := exit_socket.asked.refusal(self.exit_rules, address, time.monotonic()):
            raise RefusedError(why)
        reader, writer = await self.exit_source.connect(*address)
        exit_socket.asked.answered(address, time.monotonic())
        try:
            writer.write(request)
            await writer.drain()
            response = await read_response(reader)
        except ValueError:
            raise RefusedError(DropReason.HTTP_ANSWER_REFUSED) from None
        finally:
            writer.close()
        async with self._judging:  # one answer at a time, as each takes milliseconds
            if not await asyncio.to_thread(may_pass, response):
                raise RefusedError(DropReason.HTTP_ANSWER_REFUSED)
        return response

    async def _destination(self, exit_socket: PolicedExitSocket, host: str, port: int) -> tuple[str, int]:
        """Return an address that we may connect to. Raises RefusedError, OSError."""
        if not is_address(host):
            if self.exit_source.device:
                # The system's resolver would ask through any device.
                raise RefusedError(DropReason.EXIT_NAME_REFUSED)
            if not exit_socket.asked.may_look_up(self.exit_rules, time.monotonic()):
                raise RefusedError(DropReason.EXIT_NEW_DESTINATIONS_TOO_FAST)
        why: str = DropReason.EXIT_DESTINATION_REFUSED
        try:
            found = await self.exit_source.resolve(host, port)
        except UnicodeError:  # it is not a name
            raise RefusedError(DropReason.EXIT_NAME_REFUSED) from None
        for ip in found:
            if is_allowed_destination(ip, port, self.allow_private):
                if (refusal := self.exit_rules.destination_refusal(ip, port)) is None:
                    return ip, port
                why = refusal
        raise RefusedError(why)
