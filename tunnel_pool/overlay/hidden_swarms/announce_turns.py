"""Takes turns at announcing keys in the DHT: the new ones, then those that were announced longest ago. Pure."""

import heapq
import itertools
from collections.abc import Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class AnnounceTurns(Generic[Key]):
    """Keeps each key once, with the time from which on it may have its turn; the time is an argument."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Key]] = []
        self._keys: set[Key] = set()
        self._order = itertools.count()

    def add(self, key: Key, due_s: float = 0.0) -> bool:
        """Add a key, which comes before all others unless `due_s` is given; return False if it is there already."""
        if key in self._keys:
            return False
        self._keys.add(key)
        heapq.heappush(self._heap, (due_s, next(self._order), key))
        return True

    def next_s(self) -> float | None:
        """Return when somebody has the next turn, None if nobody is there."""
        return self._heap[0][0] if self._heap else None

    def take(self) -> Key:
        """Return whose turn it is, and forget it."""
        _, _, key = heapq.heappop(self._heap)
        self._keys.remove(key)
        return key
