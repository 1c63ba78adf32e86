"""A token bucket in one number: until when it is used up (GCRA, ITU-T I.371); limits.rs has the like. Pure."""


class Bucket:
    """Fills at a rate that is told each time; unused, up to so many seconds' worth."""

    def __init__(self) -> None:
        self._used_until_s = 0.0

    def permits(self, now_s: float) -> bool:
        return self._used_until_s <= now_s

    def wait_s(self, now_s: float) -> float:
        """Return how long until it permits again."""
        return max(0.0, self._used_until_s - now_s)

    def take(self, per_s: float, burst_s: float, now_s: float) -> None:
        """One of so many a second."""
        self._used_until_s = max(self._used_until_s, now_s - burst_s) + 1 / per_s
