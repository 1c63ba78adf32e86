"""For which seeders a node is an introduction point, and over which circuits it reaches them. Pure."""

from collections.abc import Iterator
from typing import NamedTuple

MAX_INTRODUCED = 256  # the most circuits of seeders that this node introduces
MAX_CONTENDERS = 3  # the most circuits that may each claim to lead to the same seeder


class IntroducedSeeder(NamedTuple):
    """The seeder of a hidden swarm that a circuit says it leads to."""

    seeder_key: bytes
    info_hash: bytes


class IntroducedSeeders:
    """Keeps several circuits for a seeder: EstablishIntro proves nothing, as whoever has read its key can send it.

    So the first circuit does not shut out the others: up to MAX_CONTENDERS circuits may claim to lead to one
    seeder, and requests for the seeder may go to any of them. The seeder alone can answer.
    """

    def __init__(self) -> None:
        self._circuits: dict[IntroducedSeeder, list[int]] = {}
        self._seeders: dict[int, IntroducedSeeder] = {}

    def add(self, circuit_id: int, seeder: IntroducedSeeder) -> bool:
        """Add a circuit that claims to lead to this seeder; return False if there are too many, or it has a seeder."""
        circuits = self._circuits.get(seeder, [])
        if circuit_id in self._seeders or len(circuits) >= MAX_CONTENDERS or len(self._seeders) >= MAX_INTRODUCED:
            return False
        self._circuits[seeder] = [*circuits, circuit_id]
        self._seeders[circuit_id] = seeder
        return True

    def remove(self, circuit_id: int) -> IntroducedSeeder | None:
        """Forget a circuit; return the seeder that it led to, if there was one."""
        seeder = self._seeders.pop(circuit_id, None)
        if seeder is not None:
            self._circuits[seeder].remove(circuit_id)
            if not self._circuits[seeder]:
                del self._circuits[seeder]
        return seeder

    def circuits_of(self, seeder: IntroducedSeeder) -> tuple[int, ...]:
        """Return the circuits that say they lead to this seeder, the oldest first."""
        return tuple(self._circuits.get(seeder, ()))

    def seeder_of(self, circuit_id: int) -> IntroducedSeeder | None:
        return self._seeders.get(circuit_id)

    def circuits_of_key(self, seeder_key: bytes) -> Iterator[tuple[int, IntroducedSeeder]]:
        """Yield the circuits that name this key, of whichever swarm, the oldest first."""
        return (known for known in self._seeders.items() if known[1].seeder_key == seeder_key)

    def __contains__(self, seeder: IntroducedSeeder) -> bool:
        return seeder in self._circuits
