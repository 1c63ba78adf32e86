"""For which seeders a node is an introduction point, and over which circuits it reaches them. Pure."""

from collections.abc import Iterator
from typing import NamedTuple

MAX_INTRODUCED = 256  # the most circuits of seeders that this node introduces
MAX_OF_A_CIRCUIT = 32  # the most seeders that one circuit may lead to
MAX_BESIDE_THE_FIRST = 768  # of all circuits together: few circuits with many seeders can't shut out those with one
MAX_CONTENDERS = 3  # the most circuits that may each claim to lead to the same seeder


class IntroducedSeeder(NamedTuple):
    """The seeder of a hidden swarm that a circuit says it leads to."""

    seeder_key: bytes
    info_hash: bytes


class IntroducedSeeders:
    """Keeps several circuits for a seeder: EstablishIntro proves nothing, as whoever has read its key can send it.

    So the first circuit does not shut out the others: up to MAX_CONTENDERS circuits may claim to lead to one
    seeder, and requests for the seeder may go to any of them. The seeder alone can answer.

    A circuit may lead to several seeders: who seeds many torrents has a key for each of them (offers.py).
    """

    def __init__(self) -> None:
        self._circuits: dict[IntroducedSeeder, list[int]] = {}
        self._seeders: dict[int, list[IntroducedSeeder]] = {}

    def add(self, circuit_id: int, seeder: IntroducedSeeder) -> bool:
        """Add a circuit that claims to lead to this seeder; return False if it does already, or there are too many."""
        circuits, seeders = self._circuits.get(seeder, []), self._seeders.get(circuit_id, [])
        if seeders:
            beside_the_first = sum(map(len, self._seeders.values())) - len(self._seeders)
            has_room = len(seeders) < MAX_OF_A_CIRCUIT and beside_the_first < MAX_BESIDE_THE_FIRST
        else:
            has_room = len(self._seeders) < MAX_INTRODUCED
        if not has_room or circuit_id in circuits or len(circuits) >= MAX_CONTENDERS:
            return False
        self._circuits[seeder] = [*circuits, circuit_id]
        self._seeders[circuit_id] = [*seeders, seeder]
        return True

    def remove(self, circuit_id: int) -> list[IntroducedSeeder]:
        """Forget a circuit; return the seeders that it led to."""
        seeders = self._seeders.pop(circuit_id, [])
        for seeder in seeders:
            self._circuits[seeder].remove(circuit_id)
            if not self._circuits[seeder]:
                del self._circuits[seeder]
        return seeders

    def circuits_of(self, seeder: IntroducedSeeder) -> tuple[int, ...]:
        """Return the circuits that say they lead to this seeder, the oldest first."""
        return tuple(self._circuits.get(seeder, ()))

    def seeders_of(self, circuit_id: int) -> tuple[IntroducedSeeder, ...]:
        """Return the seeders that a circuit says it leads to, in the order in which it said so."""
        return tuple(self._seeders.get(circuit_id, ()))

    def circuits_of_key(self, seeder_key: bytes) -> Iterator[tuple[int, IntroducedSeeder]]:
        """Yield the circuits that name this key, of whichever swarm, the oldest first."""
        for circuit_id, seeders in self._seeders.items():
            for seeder in seeders:
                if seeder.seeder_key == seeder_key:
                    yield circuit_id, seeder

    def __contains__(self, seeder: IntroducedSeeder) -> bool:
        return seeder in self._circuits
