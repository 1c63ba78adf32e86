"""Has a child ask what libtorrent would ask past the tunnels: HTTP trackers, and where named DHT nodes are."""

import random
import time
from collections import Counter

from ipv8.messaging.anonymization.tunnel import CIRCUIT_STATE_CLOSING, Circuit
from ipv8.peer import Peer

from tunnel_pool.overlay.ground.config import slot_of
from tunnel_pool.overlay.ground.lanes import Lane, lane_of
from tunnel_pool.overlay.ground.pacing import Recent
from tunnel_pool.overlay.requests.http import (
    CIRCUIT_TYPE_HTTP,
    PEER_FLAG_EXIT_HTTP,
    TIMEOUT_S,
    HttpError,
    NoHttpExitError,
)
from tunnel_pool.pool.pool import ProcessPool
from tunnel_pool.rpc import control_pb2 as pb
from tunnel_pool.rpc.errors import CallError, RemoteError

CALL_TIMEOUT_S = 3 * TIMEOUT_S  # a circuit may have to be built first
SUSPECT_S = 30.0


class PooledExitRequests:
    """Sends HTTP requests and asks for DHT nodes by way of a child, as overlay.requests does in one process."""

    pool: ProcessPool
    circuits: dict[int, Circuit]
    candidates: dict[Peer, list[int]]

    def __init__(self) -> None:
        self._failed = Recent[int](SUSPECT_S)  # slots

    async def perform_http_request(
        self,
        destination: tuple[str, int],
        request: bytes,
        hops: int = 1,
        group: int = 0,
        circuit_id: int | None = None,
    ) -> bytes:
        """Send an HTTP request from a child (tunnel_pool.contract). Raises HttpError."""
        if circuit_id not in self.circuits:
            circuit_id = None
        slot = self._slot_for_http(Lane(hops, group)) if circuit_id is None else slot_of(circuit_id)
        if slot is None:
            raise NoHttpExitError("no exit that makes HTTP requests is known")
        message = pb.HttpRequest(
            hops=hops,
            group=group,
            host=destination[0],
            port=destination[1],
            request=request,
            circuit_id=circuit_id or 0,
        )
        try:
            reply = await self.pool.call(slot, "http_request", message, CALL_TIMEOUT_S)
        except (CallError, KeyError) as error:
            self._failed.add(slot, time.monotonic())
            if isinstance(error, RemoteError) and error.code == pb.ERROR_NO_CANDIDATES:
                raise NoHttpExitError(str(error)) from None
            raise HttpError(str(error)) from None
        return bytes(reply.response)

    async def find_exit_port(self, circuit_id: int) -> int | None:
        """Ask a circuit's exit for its port, in the child that has the circuit (tunnel_pool.contract)."""
        if circuit_id not in self.circuits:
            return None
        message = pb.FindExitPort(circuit_id=circuit_id)
        try:
            reply = await self.pool.call(slot_of(circuit_id), "find_exit_port", message, CALL_TIMEOUT_S)
        except (CallError, KeyError):
            return None
        return reply.port or None

    async def find_dht_node(self, name: str, port: int, hops: int) -> tuple[str, int] | None:
        """Find a DHT node by its name, in a child (tunnel_pool.contract)."""
        slots = self.pool.running()
        if not slots:
            return None
        message = pb.FindDhtNode(hops=hops, name=name, port=port)
        try:
            reply = await self.pool.call(random.choice(slots), "find_dht_node", message, CALL_TIMEOUT_S)
        except (CallError, KeyError):
            return None
        return (reply.address.host, reply.address.port) if reply.HasField("address") else None

    def _slot_for_http(self, lane: Lane) -> int | None:
        """Return a child with such a circuit, else one that knows an exit for it; who has just failed comes last.

        Where no child knows one, any may find one by way of a relay that tells of exits.
        """
        able = [slot for slot in self.pool.running() if self._knows_http_exit(slot)] or self.pool.running()
        have = Counter(
            slot_of(circuit.circuit_id)
            for circuit in self.circuits.values()
            if circuit.ctype == CIRCUIT_TYPE_HTTP
            and lane_of(circuit) == lane
            and circuit.state != CIRCUIT_STATE_CLOSING
        )
        now_s = time.monotonic()

        def cost(slot: int) -> tuple[bool, bool, int]:
            return self._failed.has(slot, now_s), not have[slot], slot

        return min(able, key=cost, default=None)

    def _knows_http_exit(self, slot: int) -> bool:
        candidates = self.pool.pictures[slot].candidates.values()
        return any(PEER_FLAG_EXIT_HTTP in candidate.flags for candidate in candidates)
