"""Decides which child gets a client's new stream. Pure."""

import random
from collections import Counter, deque
from collections.abc import Iterable

from ipv8.messaging.anonymization.tunnel import Circuit

from tunnel_pool.overlay.ground.config import slot_of
from tunnel_pool.overlay.ground.lanes import Lane
from tunnel_pool.overlay.ground.streams import streams_of

UNTOLD_S = 1.0  # how long it takes at most until the children's pictures show a new stream


class StreamPlacement:
    """Chooses the children of new streams so that none works for all while others rest.

    Each circuit of a lane gets about as many streams as the next; where that leaves a choice, as for clients that are
    isolated from each other and have a stream or two each, the child with the fewest streams of all lanes is chosen.
    """

    def __init__(self) -> None:
        self._given: deque[tuple[float, Lane, int]] = deque()  # (when, lane, slot) of those of the last UNTOLD_S

    def choose(self, lane: Lane, able: Iterable[Circuit], circuits: Iterable[Circuit], now_s: float) -> int:
        """Return a slot that has one of the lane's `able` circuits; `circuits` are those of all lanes.

        Raises IndexError when no circuit is able.
        """
        while self._given and self._given[0][0] < now_s - UNTOLD_S:
            self._given.popleft()
        of_child = Counter(slot for _, _, slot in self._given)
        of_lane = Counter(slot for _, given_lane, slot in self._given if given_lane == lane)
        able_circuits = Counter[int]()
        for circuit in circuits:
            of_child[slot_of(circuit.circuit_id)] += streams_of(circuit).open
        for circuit in able:
            of_lane[slot_of(circuit.circuit_id)] += streams_of(circuit).open
            able_circuits[slot_of(circuit.circuit_id)] += 1
        slots = list(able_circuits)
        random.shuffle(slots)
        slot = sorted(slots, key=lambda slot: (of_lane[slot] // able_circuits[slot], of_child[slot]))[0]
        self._given.append((now_s, lane, slot))
        return slot
