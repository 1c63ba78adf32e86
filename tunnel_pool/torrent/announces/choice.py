"""Chooses the circuit that a lane's questions take, and when it is replaced. Pure.

A circuit ends after a time, or when it has carried much (py-ipv8's max_time and max_traffic): trackers are told of
another one before.
"""

from collections.abc import Collection, Iterable
from typing import NamedTuple

FRESH_PART = 0.5  # of its life, in time or bytes, that a circuit may have behind it to be taken
WORN_PART = 0.8  # at which it is replaced


class Life(NamedTuple):
    """Says how long a circuit may live, in seconds and bytes."""

    max_s: float
    max_bytes: float


class Seen(NamedTuple):
    """Describes a ready circuit of the lane: its age, what it carried, and whether its exit makes HTTP requests."""

    circuit_id: int
    age_s: float
    carried_bytes: int
    makes_requests: bool

    def spent(self, life: Life) -> float:
        """Return how much of its life is over, as a part of it."""
        return max(self.age_s / life.max_s, self.carried_bytes / life.max_bytes)


def is_worn(circuit: Seen, life: Life) -> bool:
    return circuit.spent(life) >= WORN_PART


def choose(circuits: Iterable[Seen], life: Life, *, wants_requests: bool, failed: Collection[int] = ()) -> Seen | None:
    """Return the circuit to take; None where none is fresh, or where one whose exit makes requests is wanted.

    Those over which no node answered, `failed`, come last.
    """
    fresh = [circuit for circuit in circuits if circuit.spent(life) < FRESH_PART]
    able = [circuit for circuit in fresh if circuit.makes_requests or not wants_requests]
    return min(able, key=lambda circuit: (circuit.circuit_id in failed, circuit.spent(life)), default=None)
