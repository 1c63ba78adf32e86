"""Paces what is done: delays after failures, what happened of late, the newest entries, a token bucket. Pure."""

from collections.abc import Hashable
from typing import Generic, TypeVar

FIRST_DELAY_S = 0.5
MAX_DELAY_S = 30.0

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


def doubled_s(first_s: float, times: int, most_s: float) -> float:
    """Return a delay in seconds that has doubled so often, up to a limit."""
    return min(first_s * 2.0 ** min(times, 16), most_s)


class Backoff:
    """Delays new tries; the delay doubles with each failure in a row, and starts anew with a success."""

    def __init__(self, most_s: float = MAX_DELAY_S) -> None:
        """`most_s`: the longest delay."""
        self._most_s = most_s
        self._failures = 0
        self._not_before_s = 0.0

    def is_due(self, now_s: float) -> bool:
        return now_s >= self._not_before_s

    def failed(self, now_s: float) -> None:
        """Note a failure; those before the next try is due count as one, as they come in batches."""
        if self.is_due(now_s):
            self._not_before_s = now_s + doubled_s(FIRST_DELAY_S, self._failures, self._most_s)
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
        self._until_s.pop(key, None)
        while self._until_s and self._until_s[oldest := next(iter(self._until_s))] <= now_s:
            del self._until_s[oldest]
        self._until_s[key] = now_s + self._seconds

    def clear(self, key: Key) -> None:
        """Forget it at once."""
        self._until_s.pop(key, None)

    def has(self, key: Key, now_s: float) -> bool:
        return self._until_s.get(key, now_s) > now_s


class Newest(dict[Key, Value]):
    """Holds the newest entries, the oldest first: what is set is the newest, and of too many the oldest goes."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def __setitem__(self, key: Key, value: Value) -> None:
        self.pop(key, None)
        super().__setitem__(key, value)
        if len(self) > self._most:
            del self[next(iter(self))]


class TokenBucket:
    """A token bucket in one number: until when it is used up (GCRA, ITU-T I.371); limits.rs has the like.

    Each call gives the rate at which the bucket fills, and how much an unused bucket holds.
    """

    def __init__(self) -> None:
        self._used_until_s = 0.0

    def permits(self, now_s: float) -> bool:
        return self._used_until_s <= now_s

    def wait_s(self, now_s: float) -> float:
        """Return how long until it permits again."""
        return max(0.0, self._used_until_s - now_s)

    def spend(self, per_s: float, at_once: float, now_s: float) -> bool:
        """Take one token if the bucket permits, and return whether it did: `per_s` a second, bursts of `at_once`."""
        if not self.permits(now_s):
            return False
        self.take(per_s, at_once / per_s, now_s)
        return True

    def take(self, per_s: float, burst_s: float, now_s: float) -> None:
        """Take one token, filled at `per_s` a second; an unused bucket holds `burst_s` seconds' worth."""
        self._used_until_s = max(self._used_until_s, now_s - burst_s) + 1 / per_s
