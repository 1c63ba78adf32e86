"""Asks an exit by which port of its own a circuit's datagrams leave, so that others can be told where to find us.

    33 question:  circuit id (4) | identifier (4)
    34 answer:    circuit id (4) | identifier (4) | port (2)

Exits of this program alone know the question; who does not, ignores it. So it goes to exits that say that they carry
streams. The exit opens its socket for the answer. Behind an address translation the port may be another one outside:
what DHT nodes see goes before (torrent/announces/outside.py).
"""

import asyncio

from ipv8.messaging.anonymization.community import TunnelCommunity
from ipv8.messaging.anonymization.payload import CellablePayload
from ipv8.messaging.anonymization.tunnel import CIRCUIT_STATE_READY, PEER_FLAG_EXIT_BT, Circuit
from ipv8.messaging.lazy_payload import vp_compile
from ipv8.requestcache import RandomNumberCacheWithName, RequestCache

from tunnel_pool.overlay.ground.streams import tries_streams
from tunnel_pool.rpc.drop_reasons import DropReason
from tunnel_pool.steering.layout import PAYLOAD_AT

TIMEOUT_S = 1.0
TIMES = 3  # so often it is asked: a cell may be lost


@vp_compile
class PortQuestionPayload(CellablePayload):
    """A question for the port of a circuit's exit socket."""

    msg_id = 33
    format_list = ["I", "I"]  # noqa: RUF012
    names = ["circuit_id", "identifier"]  # noqa: RUF012


@vp_compile
class PortAnswerPayload(CellablePayload):
    """The port, at the exit's IPv4 address."""

    msg_id = 34
    format_list = ["I", "I", "H"]  # noqa: RUF012
    names = ["circuit_id", "identifier", "port"]  # noqa: RUF012


class PortQuestionCache(RandomNumberCacheWithName):
    """A question of ours that is on its way."""

    name = "exit-port"

    def __init__(self, request_cache: RequestCache, circuit: Circuit) -> None:
        super().__init__(request_cache, self.name)
        self.circuit = circuit
        self.future: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()

    @property
    def timeout_delay(self) -> float:
        return TIMEOUT_S

    def on_timeout(self) -> None:
        if not self.future.done():
            self.future.set_result(None)


class ExitPorts:
    """Asks exits, and answers as one, as a part of a tunnel community (overlay/community.py)."""

    def __init__(self, community: TunnelCommunity) -> None:
        """Let questions and answers come in."""
        self._community = community
        community.add_cell_handler(PortQuestionPayload, self._on_question)
        community.add_cell_handler(PortAnswerPayload, self._on_answer)
        community.cells_over_our_circuits.add(PortAnswerPayload.msg_id)

    async def find(self, circuit_id: int) -> int | None:
        """Return the port; None where the circuit is gone, or its exit does not say it."""
        community = self._community
        for _ in range(TIMES):
            circuit: Circuit | None = community.circuits.get(circuit_id)
            if circuit is None or circuit.state != CIRCUIT_STATE_READY or not tries_streams(circuit):
                break
            cache = PortQuestionCache(community.request_cache, circuit)
            if community.request_cache.add(cache) is None:
                break
            community.send_cell(circuit.hop.address, PortQuestionPayload(circuit_id, cache.number))
            if (port := await cache.future) is not None:
                return port
        return None

    async def _on_question(self, source_address: tuple[str, int], data: bytes, circuit_id: int | None) -> None:
        """Answer the question of a circuit that ends here."""
        payload, _ = self._community.serializer.unpack_serializable(PortQuestionPayload, data, offset=PAYLOAD_AT)
        offered = PEER_FLAG_EXIT_BT in self._community.settings.peer_flags
        if circuit_id is None or circuit_id not in self._community.exit_sockets or not offered:
            self._community.counters[DropReason.EXIT_PORT_NOT_OFFERED] += 1
        elif port := await self._community.exit_sockets[circuit_id].port():
            self._community.send_cell(source_address, PortAnswerPayload(circuit_id, payload.identifier, port))

    def _on_answer(self, source_address: tuple[str, int], data: bytes, circuit_id: int | None) -> None:
        """Take an answer that came over the circuit that was asked about."""
        payload, _ = self._community.serializer.unpack_serializable(PortAnswerPayload, data, offset=PAYLOAD_AT)
        cache = self._community.request_cache.get(PortQuestionCache, payload.identifier)
        if cache is None or cache.circuit.circuit_id != circuit_id or not payload.port:
            self._community.counters[DropReason.EXIT_PORT_UNASKED] += 1
            return
        self._community.request_cache.pop(PortQuestionCache, payload.identifier)
        if not cache.future.done():
            cache.future.set_result(payload.port)
