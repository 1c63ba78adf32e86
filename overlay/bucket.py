"""A token bucket in one number: until when it is used up (GCRA, ITU-T I.371); limits.rs has the like. Pure."""


class Bucket:
    """A token bucket: it fills at a rate that is told each time, up to so many seconds' worth when unused."""

    def __init__(self) -> None:
        self._used_until_s = 0.0

    def permits(self, now_s: float) -> bool:
        return self._used_until_s <= now_s

    def wait_s(self, now_s: float) -> float:
        """Return how long until it permits again."""
        return max(0.0, self._used_until_s - now_s)

    def spend(self, per_s: float, at_once: float, now_s: float) -> bool:
        """Take one of so many a second, of which so many may come at once, if it permits; return whether it did."""
        if not self.permits(now_s):
            return False
        self.take(per_s, at_once / per_s, now_s)
        return True

    def take(self, per_s: float, burst_s: float, now_s: float) -> None:
        """Take one of so many a second."""
        self._used_until_s = max(self._used_until_s, now_s - burst_s) + 1 / per_s
