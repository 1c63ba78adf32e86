"""When to try again what failed, and what was tried of late. Pure: the time is an argument."""

from collections.abc import Hashable
from typing import Generic, TypeVar

FIRST_DELAY_S = 0.5
MAX_DELAY_S = 30.0

Key = TypeVar("Key", bound=Hashable)


class Backoff:
    """Delays new tries; the delay doubles with each failure in a row, and starts anew with a success."""

    def __init__(self) -> None:
        self._failures = 0
        self._not_before_s = 0.0

    def is_due(self, now_s: float) -> bool:
        return now_s >= self._not_before_s

    def failed(self, now_s: float) -> None:
        """Note a failure; those before the next try is due count as one, as they come in batches."""
        if self.is_due(now_s):
            self._not_before_s = now_s + min(FIRST_DELAY_S * 2.0 ** min(self._failures, 16), MAX_DELAY_S)
            self._failures += 1

    def succeeded(self) -> None:
        self._failures = 0
        self._not_before_s = 0.0


class Recent(Generic[Key]):
    """Remembers for some seconds that something happened to a key."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._until_s: dict[Key, float] = {}

    def add(self, key: Key, now_s: float) -> None:
        self._until_s = {known: until_s for known, until_s in self._until_s.items() if until_s > now_s}
        self._until_s[key] = now_s + self._seconds

    def clear(self, key: Key) -> None:
        """Forget it at once."""
        self._until_s.pop(key, None)

    def has(self, key: Key, now_s: float) -> bool:
        return self._until_s.get(key, now_s) > now_s
