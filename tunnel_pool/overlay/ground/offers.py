"""Over which of our circuits each hidden swarm that we seed is offered at an introduction point. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass, field

MOST_TOGETHER = 32  # the most swarms of a circuit, as many as an introduction point takes (introduced.py)
OWN_CIRCUITS = 16  # until there are so many circuits, each swarm gets one of its own


@dataclass
class _Circuit:
    swarms: dict[bytes, bool] = field(default_factory=dict)  # whether the introduction point has said yes, by info hash
    left: int = 0  # how many more the introduction point names that we seed no longer
    is_full: bool = False

    def has_room(self, together: int) -> bool:
        return not self.is_full and len(self.swarms) + self.left < together


class Offers:
    """Says which circuit a swarm is to be offered over, and which requests may come over it.

    Each swarm has a key of its own (py-ipv8's `seeder_sk`). Swarms that share a circuit have their introduction point
    in common, which sees that they are one user's: so circuits are shared only where there are many already. Nothing
    on the wire takes an offer back but the end of its circuit.
    """

    def __init__(self, together: int = MOST_TOGETHER) -> None:
        """`together`: the most swarms that share a circuit; 1 if none shall."""
        self._together = together
        self._circuits: dict[int, _Circuit] = {}
        self._of: dict[bytes, list[int]] = {}

    def circuit_for_one_more(self, circuits: Iterable[int]) -> int | None:
        """Return which of these circuits is to offer one more swarm, the emptiest; None if a new one is to be built."""
        if len(self._circuits) < OWN_CIRCUITS:
            return None
        with_room = [at for at in circuits if at in self._circuits and self._circuits[at].has_room(self._together)]
        return min(with_room, key=lambda at: (len(self._circuits[at].swarms), at), default=None)

    def offer(self, info_hash: bytes, circuit_id: int) -> None:
        """Note that a swarm is being offered over a circuit, which may still be built."""
        self._circuits.setdefault(circuit_id, _Circuit()).swarms[info_hash] = False
        self._of.setdefault(info_hash, []).append(circuit_id)

    def accepted(self, info_hash: bytes, circuit_id: int) -> None:
        """Note that the circuit's introduction point says that it names us."""
        if self.serves(circuit_id, info_hash):
            self._circuits[circuit_id].swarms[info_hash] = True

    def refused(self, info_hash: bytes, circuit_id: int) -> bool:
        """Note that no answer came; return whether the circuit is of no use, as it offers no other swarm.

        The introduction point takes no more of one circuit, or an answer got lost: this circuit gets no other swarm.
        """
        if not self.serves(circuit_id, info_hash):
            return False
        circuit = self._circuits[circuit_id]
        circuit.is_full = True
        self._forget(info_hash, circuit_id)
        return not circuit.swarms

    def leave(self, info_hash: bytes) -> list[int]:
        """Forget a swarm; return the circuits to end: those that offer more swarms that are left than others."""
        of_swarm = self.circuits_of(info_hash)
        for circuit_id in of_swarm:
            self._forget(info_hash, circuit_id)
            self._circuits[circuit_id].left += 1
        return [at for at in of_swarm if self._circuits[at].left > len(self._circuits[at].swarms)]

    def lost(self, circuit_id: int) -> None:
        """Forget a circuit that has ended; its swarms are to be offered anew."""
        circuit = self._circuits.pop(circuit_id, _Circuit())
        for info_hash in circuit.swarms:
            self._drop(info_hash, circuit_id)

    def serves(self, circuit_id: int, info_hash: bytes) -> bool:
        """Return whether requests for this swarm may come over this circuit."""
        return circuit_id in self._of.get(info_hash, ())

    def circuits_of(self, info_hash: bytes) -> tuple[int, ...]:
        """Return the circuits that a swarm is offered over, or will be."""
        return tuple(self._of.get(info_hash, ()))

    def swarms_of(self, circuit_id: int) -> tuple[bytes, ...]:
        """Return the swarms that a circuit offers, or will."""
        return tuple(self._circuits[circuit_id].swarms) if circuit_id in self._circuits else ()

    def has(self, info_hash: bytes) -> bool:
        return info_hash in self._of

    def is_accepted(self, info_hash: bytes) -> bool:
        """Return whether an introduction point names us as a seeder of this swarm."""
        return any(self._circuits[at].swarms[info_hash] for at in self._of.get(info_hash, ()))

    def _forget(self, info_hash: bytes, circuit_id: int) -> None:
        del self._circuits[circuit_id].swarms[info_hash]
        self._drop(info_hash, circuit_id)

    def _drop(self, info_hash: bytes, circuit_id: int) -> None:
        self._of[info_hash].remove(circuit_id)
        if not self._of[info_hash]:
            del self._of[info_hash]
