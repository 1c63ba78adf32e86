"""The circuits of hidden swarms, by isolation group: those that are asked over, and those of introduction points."""

import random
import secrets
from typing import Any

from ipv8.messaging.anonymization.hidden_services import HiddenTunnelCommunity
from ipv8.messaging.anonymization.payload import PeersRequestPayload
from ipv8.messaging.anonymization.tunnel import (
    CIRCUIT_STATE_CLOSING,
    Circuit,
    IntroductionPoint,
    Swarm,
)

from tunnel_pool.overlay.ground.end_to_end import EndToEndAddresses, end_to_end_circuit, is_linked, number_of_end
from tunnel_pool.overlay.ground.lanes import GroupedCircuits, Lane

# Our own type: it asks exits and introduction points, and carries no client's datagrams.
CIRCUIT_TYPE_LOOKUP = "LOOKUP"


class SwarmCircuits(GroupedCircuits, EndToEndAddresses, HiddenTunnelCommunity):
    """Chooses circuits for swarms where py-ipv8 knows hop counts alone."""

    def __init__(self, settings: Any) -> None:
        super().__init__(settings)
        self._groups: dict[bytes, int] = {}  # the group of each swarm whose group is not 0
        self._asking_group = 0  # the group whose peers-request is being sent

    def set_group_of_swarm(self, info_hash: bytes, group: int) -> None:
        if group:
            self._groups[info_hash] = group
        else:
            self._groups.pop(info_hash, None)

    def group_of_swarm(self, info_hash: bytes | None) -> int:
        return self._groups.get(info_hash, 0) if info_hash is not None else 0

    def lane_of_swarm(self, swarm: Swarm) -> Lane:
        return Lane(swarm.hops, self.group_of_swarm(swarm.info_hash))

    def circuits_of(self, ctype: str, lane: Lane) -> list[Circuit]:
        """Return the lane's circuits of a type that are ready or being built."""
        found = self.find_circuits(ctype, state=None, hops=lane.hops, group=lane.group)
        return [circuit for circuit in found if circuit.state != CIRCUIT_STATE_CLOSING]

    def circuits_of_swarm(self, ctype: str, info_hash: bytes) -> list[Circuit]:
        """Return the swarm's circuits of a type that are ready or being built."""
        found = self.find_circuits(ctype, state=None, group=None)
        return [c for c in found if c.state != CIRCUIT_STATE_CLOSING and c.info_hash == info_hash]

    def lookup_circuits(self, lane: Lane) -> list[Circuit]:
        return self.find_circuits(CIRCUIT_TYPE_LOOKUP, hops=lane.hops, group=lane.group)

    def select_circuit(self, destination: tuple[str, int] | None, hops: int) -> Circuit | None:
        """Return the circuit behind an end-to-end address, else one to ask over."""
        number = number_of_end(*destination) if destination is not None else None
        lane = Lane(hops, self._asking_group)
        circuit = end_to_end_circuit(self.circuits.values(), number, lane) if number is not None else None
        if circuit is not None and is_linked(circuit):
            return circuit
        return self.circuit_to_ask_over(lane)

    def circuit_to_ask_over(self, lane: Lane) -> Circuit | None:
        circuits = self.lookup_circuits(lane) or self.find_circuits(hops=lane.hops, group=lane.group)
        return random.choice(circuits) if circuits else None

    def select_circuit_for_infohash(self, info_hash: bytes) -> Circuit | None:
        swarm = self.swarms.get(info_hash)
        return self.circuit_to_ask_over(self.lane_of_swarm(swarm)) if swarm is not None else None

    def send_peers_request(self, info_hash: bytes, target: IntroductionPoint | None, hops: int) -> Any:
        """Ask over a circuit of the swarm's group; py-ipv8 calls `select_circuit`, which goes by hop count alone."""
        self._asking_group = self.group_of_swarm(info_hash)
        try:
            return super().send_peers_request(info_hash, target, hops)
        finally:
            self._asking_group = 0

    def tunnel_data(self, circuit: Any, destination: tuple[str, int], payload: Any) -> None:
        """Send a message to somebody beyond the circuit, as py-ipv8 does, and do not name the circuit in it.

        py-ipv8 puts the id that our first hop knows into a peers-request, which the exit and the introduction point
        read. Whoever asks all relays for a circuit of that id then learns which of them has one.
        """
        if isinstance(payload, PeersRequestPayload):
            payload.circuit_id = secrets.randbits(32)
        super().tunnel_data(circuit, destination, payload)
