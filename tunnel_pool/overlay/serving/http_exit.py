"""Requests that an exit makes for others: to trackers alone, and nothing but what a tracker answers goes back."""

import asyncio
import re
import time

from ipv8.messaging.anonymization.community import TunnelCommunity

from tunnel_pool.overlay.ground.destinations import is_address, is_allowed_destination
from tunnel_pool.overlay.requests.http import PART_BYTES, PEER_FLAG_EXIT_HTTP, HttpRequestPayload, HttpResponsePayload
from tunnel_pool.overlay.serving.circuit_names import TooManyNamesError, is_refused_name
from tunnel_pool.overlay.serving.exit_socket import PolicedExitSocket
from tunnel_pool.overlay.serving.shares import Shares
from tunnel_pool.rpc.drop_reasons import DropReason
from tunnel_pool.steering.layout import PAYLOAD_AT

EXIT_TIMEOUT_S = 10.0
PIECES_AT_ONCE, PAUSE_S = 8, 0.02  # where a limit holds, many at once would not find room in the circuit's queue
MAX_REQUESTS_OF_CIRCUIT, MAX_REQUESTS_OF_HOP, MAX_REQUESTS = 5, 40, 100
# One request line, headers of one line each, no body: what a tracker is asked, and nothing else on this connection.
# Other headers could say that somebody else asks (X-Forwarded-For), or who is logged in.
_HEADERS = rb"(?:host|user-agent|accept|accept-encoding|accept-language|connection|cache-control|pragma)"
_GET_REQUEST = re.compile(
    rb"GET [\x21-\x7e]+ HTTP/1\.[01]\r\n(?:" + _HEADERS + rb":[\t\x20-\x7e]*\r\n)*\r\n", re.IGNORECASE
)


class RefusedError(Exception):
    """Says that an exit does not make this request, or give its answer back, by the name it is counted under."""


class HttpExit:
    """Makes requests for others, as a part of a tunnel community whose `peer_flags` offer it."""

    def __init__(self, community: TunnelCommunity) -> None:
        """Let the requests come in over circuits that end at the community."""
        self._community = community
        self._requests = Shares(MAX_REQUESTS_OF_CIRCUIT, MAX_REQUESTS_OF_HOP, MAX_REQUESTS)
        self._judging = asyncio.Lock()
        community.add_cell_handler(HttpRequestPayload, self._on_request)

    async def _on_request(self, source_address: tuple[str, int], data: bytes, circuit_id: int | None) -> None:
        """Make a request for a circuit that ends here, if we offer that; what is wrong is not answered."""
        payload, _ = self._community.serializer.unpack_serializable(HttpRequestPayload, data, offset=PAYLOAD_AT)
        offered = PEER_FLAG_EXIT_HTTP in self._community.settings.peer_flags
        if circuit_id is None or circuit_id not in self._community.exit_sockets or not offered:
            self._community.counters[DropReason.HTTP_NOT_OFFERED] += 1
            return
        exit_socket = self._community.exit_sockets[circuit_id]
        asker = exit_socket.asker
        if not self._requests.take(asker):
            self._community.counters[DropReason.HTTP_TOO_MANY_REQUESTS] += 1
            return
        try:
            async with asyncio.timeout(EXIT_TIMEOUT_S):
                response = await self.fetch(exit_socket, payload.target, payload.request)
            await self._answer(source_address, payload, circuit_id, response)
        except RefusedError as refused:
            self._community.counters[str(refused)] += 1
        except (OSError, TimeoutError):
            self._community.counters[DropReason.HTTP_FAILED] += 1
        finally:
            self._requests.give_back(asker)

    async def _answer(self, to: tuple[str, int], asked: HttpRequestPayload, circuit_id: int, response: bytes) -> None:
        pieces = [response[start : start + PART_BYTES] for start in range(0, len(response), PART_BYTES)]
        for number, piece in enumerate(pieces):
            if number and number % PIECES_AT_ONCE == 0:
                await asyncio.sleep(PAUSE_S)
            answer = HttpResponsePayload(circuit_id, asked.identifier, number, len(pieces), piece)
            self._community.send_cell(to, answer)

    async def fetch(self, exit_socket: PolicedExitSocket, target: tuple[str, int], request: bytes) -> bytes:
        """Return what the server answers. Raises RefusedError, OSError."""
        # It brings h11, which only exits need.
        from tunnel_pool.overlay.requests.http_reading import read_response

        if not _GET_REQUEST.fullmatch(request):
            raise RefusedError(DropReason.HTTP_REQUEST_REFUSED)
        asked = request.split(b" ", 2)[1]
        if b"info_hash=" in asked and b"port=" in asked:
            exit_socket.announced()
        address = await self._destination(exit_socket, *target)
        if why := exit_socket.asked.refusal(self._community.exit_rules, address, time.monotonic()):
            raise RefusedError(why)
        reader, writer = await self._community.exit_source.connect(*address)
        exit_socket.asked.answered(address, time.monotonic())
        try:
            writer.write(request)
            await writer.drain()
            answer = await read_response(reader)
        except ValueError:
            raise RefusedError(DropReason.HTTP_ANSWER_REFUSED) from None
        finally:
            writer.close()
        async with self._judging:  # one answer at a time, as each takes milliseconds
            if not await asyncio.to_thread(answer.may_pass):
                raise RefusedError(DropReason.HTTP_ANSWER_REFUSED)
        return answer.raw()

    async def _destination(self, exit_socket: PolicedExitSocket, host: str, port: int) -> tuple[str, int]:
        """Return an address that we may connect to. Raises RefusedError, OSError."""
        if is_address(host):
            found = [host] if self._community.exit_source.reaches(host) else []
        else:
            found = await self._look_up(exit_socket, host)
        why: str = DropReason.EXIT_DESTINATION_REFUSED
        for ip in found:
            if is_allowed_destination(ip, port, self._community.allow_private):
                if (refusal := self._community.exit_rules.destination_refusal(ip, port)) is None:
                    return ip, port
                why = refusal
        raise RefusedError(why)

    async def _look_up(self, exit_socket: PolicedExitSocket, name: str) -> list[str]:
        if is_refused_name(name, self._community.allow_private, self._community.exit_source.device):
            raise RefusedError(DropReason.EXIT_NAME_REFUSED)
        now_s = time.monotonic()
        if not exit_socket.names.is_known(name) and not exit_socket.asked.may_look_up(
            self._community.exit_rules, now_s
        ):
            raise RefusedError(DropReason.EXIT_NEW_DESTINATIONS_TOO_FAST)
        try:
            addresses: list[str] = self._community.exit_source.reached(await exit_socket.names.look_up(name))
        except TooManyNamesError:
            raise RefusedError(DropReason.EXIT_TOO_MANY_NAMES) from None
        except UnicodeError:  # it is not a name
            raise RefusedError(DropReason.EXIT_NAME_REFUSED) from None
        return addresses
