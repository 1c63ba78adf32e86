"""Chooses the circuit that carries a destination's datagrams. Its twin is packet_engine/src/sticky.rs. Pure."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from ipv8.messaging.anonymization.tunnel import CIRCUIT_STATE_READY, Circuit

MAX_DESTINATIONS = 65536


class StickyMap:
    """Keeps a destination at its circuit while that lives, since a peer knows us by its exit's address."""

    def __init__(
        self, group_of: Callable[[int], int] = lambda circuit_id: 0, max_destinations: int = MAX_DESTINATIONS
    ) -> None:
        """Circuits with the same `group_of` share a child."""
        self._group_of = group_of
        self._circuit_of: dict[bytes, int] = {}
        self._count: Counter[int] = Counter()
        self._group_count: Counter[int] = Counter()
        self._max = max_destinations

    def get(self, destination: bytes) -> int | None:
        return self._circuit_of.get(destination)

    def assign(self, destination: bytes, ready: Iterable[int]) -> int | None:
        """Choose the child, then its circuit, with the fewest destinations; None when none is ready."""
        self._drop(destination)
        circuit_id = min(
            ready,
            key=lambda circuit_id: (self._group_count[self._group_of(circuit_id)], self._count[circuit_id]),
            default=None,
        )
        if circuit_id is None:
            return None
        if len(self._circuit_of) >= self._max:
            self._drop(next(iter(self._circuit_of)))
        self._circuit_of[destination] = circuit_id
        self._count[circuit_id] += 1
        self._group_count[self._group_of(circuit_id)] += 1
        return circuit_id

    def circuit_for(
        self, destination: bytes, circuits: Mapping[int, Circuit], ready: Callable[[], Iterable[Circuit]]
    ) -> Circuit | None:
        """Return the destination's circuit; if it is not ready, assign one of `ready`. Return None if there is none."""
        circuit = circuits.get(self._circuit_of.get(destination, -1))
        if circuit is not None and circuit.state == CIRCUIT_STATE_READY:
            return circuit
        circuit_id = self.assign(destination, [circuit.circuit_id for circuit in ready()])
        return circuits[circuit_id] if circuit_id is not None else None

    def forget_circuit(self, circuit_id: int) -> list[bytes]:
        """Forget a dead circuit; return the destinations that it carried."""
        orphans = [destination for destination, owner in self._circuit_of.items() if owner == circuit_id]
        for destination in orphans:
            self._drop(destination)
        self._count.pop(circuit_id, None)
        return orphans

    def _drop(self, destination: bytes) -> None:
        circuit_id = self._circuit_of.pop(destination, None)
        if circuit_id is not None:
            self._count[circuit_id] -= 1
            self._group_count[self._group_of(circuit_id)] -= 1
