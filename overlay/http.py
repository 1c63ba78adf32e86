"""HTTP requests through the tunnels, for trackers: one request in a cell, its answer in as many as it takes.

The cells are those of Tribler's network (Tribler's tunnel/payload.py):

    28 request:   circuit id | identifier (4) | target address | length (2) | request
    29 response:  circuit id | identifier (4) | part (2) | parts (2) | length (2) | piece

An exit offers it with peer flag 32768, and lets through only what a tracker
answers: bencoded, or a redirection.
"""

import asyncio
import gzip
import io
import ipaddress
import re
import socket
import zlib
from typing import Any

from ipv8.messaging.anonymization.payload import CellablePayload
from ipv8.messaging.anonymization.tunnel import DESTROY_REASON_UNNEEDED, Circuit
from ipv8.messaging.lazy_payload import vp_compile
from ipv8.requestcache import RandomNumberCacheWithName

from overlay.bencode import is_bencoded
from overlay.crypto_endpoint import pack_address, unpack_address
from overlay.exit_socket import is_allowed_destination
from overlay.hidden import HiddenServices

PEER_FLAG_EXIT_HTTP = 32768
CIRCUIT_TYPE_HTTP = "HTTP"  # our own: carries requests, and no client's datagrams

MAX_REQUEST_BYTES = 1300
PART_BYTES = 1300
MAX_RESPONSE_BYTES = 512 << 10
MAX_PARTS = 1024
EXIT_TIMEOUT_S = 10.0
TIMEOUT_S = 20.0
MAX_REQUESTS_PER_CIRCUIT = 5
MAX_REQUESTS = 100
MAX_CHUNKS = 1000
# One request line, headers of one line each, no body: what a tracker is asked, and nothing else on this connection.
_GET_REQUEST = re.compile(rb"GET [\x21-\x7e]+ HTTP/1\.[01]\r\n(?:[A-Za-z0-9-]+:[\t\x20-\x7e]*\r\n)*\r\n")
REDIRECTIONS = (b"301", b"302", b"303", b"307", b"308")


class HttpError(Exception):
    """A request that came to nothing, with the reason."""


class NoHttpExitError(HttpError):
    """No exit is known that offers it, or none could be reached."""


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
        """Whether the answer is complete; pieces that don't belong to it are passed over."""
        if 0 < total <= MAX_PARTS and part < total and self._total in (0, total) and len(piece) <= PART_BYTES + 100:
            self._total = total
            self._parts[part] = piece
        return bool(self._total) and len(self._parts) == self._total

    def answer(self) -> bytes:
        return b"".join(self._parts[part] for part in range(self._total))


class HttpTunnels(HiddenServices):
    """Makes requests through exits, and those of others where `peer_flags` offer it."""

    allow_private: bool
    cells_over_our_circuits = HiddenServices.cells_over_our_circuits | {HttpResponsePayload.msg_id}

    def __init__(self, settings: Any) -> None:
        super().__init__(settings)
        self._serving: dict[int, int] = {}  # requests by circuit
        self.add_cell_handler(HttpRequestPayload, self.on_http_request)
        self.add_cell_handler(HttpResponsePayload, self.on_http_response)

    # As originator

    async def perform_http_request(self, destination: tuple[str, int], request: bytes, hops: int = 1) -> bytes:
        """The answer as it came, headers and all; names are resolved at the exit. Raises HttpError."""
        if len(request) > MAX_REQUEST_BYTES:
            raise HttpError(f"a request of {len(request)} bytes; {MAX_REQUEST_BYTES} fit into a cell")
        circuit = await self._http_circuit(hops)
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

    async def _http_circuit(self, hops: int) -> Circuit:
        """One that is ready, or is being built, or now."""
        known = self.circuits_of(CIRCUIT_TYPE_HTTP, hops=hops)
        circuit = known[0] if known else self._build_http_circuit(hops)
        if circuit is None or not await circuit.ready:
            raise NoHttpExitError("no exit that makes HTTP requests can be reached")
        return circuit

    def _build_http_circuit(self, hops: int) -> Circuit | None:
        if not self.get_candidates(PEER_FLAG_EXIT_HTTP):
            return None
        circuit: Circuit | None = self.create_circuit(hops, CIRCUIT_TYPE_HTTP, exit_flags=[PEER_FLAG_EXIT_HTTP])
        return circuit

    def on_http_response(self, source_address: tuple[str, int], data: bytes, circuit_id: int | None) -> None:
        """A piece of an answer, over the circuit that the request took."""
        payload, _ = self.serializer.unpack_serializable(HttpResponsePayload, data, offset=23)
        cache = self.request_cache.get(HttpRequestCache, payload.identifier)
        if cache is None or cache.circuit.circuit_id != circuit_id:
            self.counters["http_response_unasked"] += 1
        elif cache.add(payload.part, payload.total, payload.response):
            self.request_cache.pop(HttpRequestCache, payload.identifier)
            if not cache.future.done():
                cache.future.set_result(cache.answer())

    # As exit

    async def on_http_request(self, source_address: tuple[str, int], data: bytes, circuit_id: int | None) -> None:
        """Make a request for a circuit that ends here, if we offer that; what is wrong is not answered."""
        payload, _ = self.serializer.unpack_serializable(HttpRequestPayload, data, offset=23)
        offered = PEER_FLAG_EXIT_HTTP in self.settings.peer_flags
        if circuit_id is None or circuit_id not in self.exit_sockets or not offered:
            self.counters["http_not_offered"] += 1
            return
        running = self._serving.get(circuit_id, 0)
        if running >= MAX_REQUESTS_PER_CIRCUIT or sum(self._serving.values()) >= MAX_REQUESTS:
            self.counters["http_too_many_requests"] += 1
            return
        self._serving[circuit_id] = running + 1
        try:
            async with asyncio.timeout(EXIT_TIMEOUT_S):
                response = await self._fetch(payload.target, payload.request)
        except (OSError, TimeoutError, ValueError) as error:
            self.counters["http_refused" if isinstance(error, ValueError) else "http_failed"] += 1
            return
        finally:
            self._serving[circuit_id] -= 1
            if not self._serving[circuit_id]:
                del self._serving[circuit_id]
        pieces = [response[start : start + PART_BYTES] for start in range(0, len(response), PART_BYTES)]
        for number, piece in enumerate(pieces):
            answer = HttpResponsePayload(circuit_id, payload.identifier, number, len(pieces), piece)
            self.send_cell(source_address, answer)

    async def _fetch(self, target: tuple[str, int], request: bytes) -> bytes:
        """Raises OSError; ValueError for what may not pass."""
        if not _GET_REQUEST.fullmatch(request):
            raise ValueError("not one GET request")
        host, port = await self._resolve(target)
        reader, writer = await asyncio.open_connection(host, port, local_addr=self._http_source(host))
        try:
            writer.write(request)
            await writer.drain()
            response = await read_response(reader)
        except asyncio.IncompleteReadError as error:
            raise ValueError("an answer cut short") from error
        finally:
            writer.close()
        if not may_pass(response):
            raise ValueError("not the answer of a tracker")
        return response

    def _http_source(self, host: str) -> tuple[str, int] | None:
        """Requests leave from where datagrams do."""
        own: str = self.settings.exit_host
        is_set = not ipaddress.ip_address(own).is_unspecified
        return (own, 0) if is_set and ipaddress.ip_address(host).version == 4 else None

    async def _resolve(self, target: tuple[str, int]) -> tuple[str, int]:
        """An address that we may connect to. Raises OSError, ValueError."""
        host, port = target[0], target[1]
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        for *_, address in sorted(found, key=lambda info: info[0]):
            if is_allowed_destination(str(address[0]), port, self.allow_private):
                return str(address[0]), port
        raise ValueError("a destination that is not for others")


async def read_response(reader: asyncio.StreamReader) -> bytes:
    """A whole answer, as it came. Raises ValueError for one too large, IncompleteReadError, OSError."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        raise ValueError("headers without end") from None
    headers = _headers(head)
    length = headers.get(b"content-length", b"")
    if length.isdigit() and len(length) < 10:
        if int(length) > MAX_RESPONSE_BYTES:
            raise ValueError("an answer too large")
        return head + await reader.readexactly(int(length))
    if headers.get(b"transfer-encoding", b"").lower() == b"chunked":
        return head + await _read_chunks(reader)
    body = b""
    while piece := await reader.read(MAX_RESPONSE_BYTES):
        body += piece
        if len(body) > MAX_RESPONSE_BYTES:
            raise ValueError("an answer too large")
    return head + body


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    """A chunked body as it came, without trailers (RFC 9112 section 7.1)."""
    parts: list[bytes] = []
    total = 0
    while len(parts) < MAX_CHUNKS:
        line = await reader.readuntil(b"\r\n")
        size = int(line.partition(b";")[0], 16)
        total += len(line) + size
        if size < 0 or total > MAX_RESPONSE_BYTES:
            raise ValueError("an answer too large")
        parts.append(line + await reader.readexactly(size + 2))
        if size == 0:
            return b"".join(parts)
    raise ValueError("an answer of too many chunks")


def _headers(head: bytes) -> dict[bytes, bytes]:
    lines = [line.partition(b":") for line in head.split(b"\r\n")[1:]]
    return {name.strip().lower(): value.strip() for name, _, value in lines}


def unchunked(body: bytes) -> bytes | None:
    """The content of a chunked body (RFC 9112 section 7.1), None while it is not whole."""
    content, position = b"", 0
    while True:
        end = body.find(b"\r\n", position)
        if end < 0:
            return None
        try:
            size = int(body[position:end].partition(b";")[0], 16)
        except ValueError:
            return None
        if size <= 0:
            return content if size == 0 and body.endswith(b"\r\n\r\n") else None
        if end + 2 + size + 2 > len(body):
            return None
        content += body[end + 2 : end + 2 + size]
        position = end + 2 + size + 2


def may_pass(response: bytes) -> bool:
    """Whether an exit gives this answer back: a tracker's, or a redirection."""
    head, _, body = response.partition(b"\r\n\r\n")
    status = head.split(b" ", 2)
    if len(status) < 2 or not head.startswith(b"HTTP/1."):
        return False
    if status[1] in REDIRECTIONS:
        return len(body) < PART_BYTES
    headers = _headers(head)
    if headers.get(b"transfer-encoding", b"").lower() == b"chunked":
        body = unchunked(body) or b""
    if headers.get(b"content-encoding", b"").lower() in (b"gzip", b"x-gzip"):
        body = _gunzipped(body)
    return is_bencoded(body)


def _gunzipped(body: bytes) -> bytes:
    """Not more than an answer may have; nothing when it is not gzip."""
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(body)) as file:
            return file.read(MAX_RESPONSE_BYTES)
    except (OSError, EOFError, zlib.error):
        return b""
