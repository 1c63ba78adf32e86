"""When to try again what failed. Pure: the time is an argument."""

FIRST_DELAY_S = 0.5
MAX_DELAY_S = 30.0
SUSPECT_S = 60.0  # by then, churn has asked whether it lives


class Backoff:
    """The delay doubles with each failure in a row, and starts anew with a success."""

    def __init__(self) -> None:
        self._failures = 0
        self._not_before_s = 0.0

    def is_due(self, now_s: float) -> bool:
        return now_s >= self._not_before_s

    def failed(self, now_s: float) -> None:
        """Failures before the next try is due count as one: they come in batches."""
        if self.is_due(now_s):
            self._not_before_s = now_s + min(FIRST_DELAY_S * 2.0 ** min(self._failures, 16), MAX_DELAY_S)
            self._failures += 1

    def succeeded(self) -> None:
        self._failures = 0
        self._not_before_s = 0.0


class Suspects:
    """Peers that did not answer of late; what is chosen next is chosen among others, while there are any."""

    def __init__(self) -> None:
        self._until_s: dict[bytes, float] = {}

    def add(self, mid: bytes, now_s: float) -> None:
        self._until_s = {known: until_s for known, until_s in self._until_s.items() if until_s > now_s}
        self._until_s[mid] = now_s + SUSPECT_S

    def clear(self, mid: bytes) -> None:
        """It has answered."""
        self._until_s.pop(mid, None)

    def has(self, mid: bytes, now_s: float) -> bool:
        return self._until_s.get(mid, 0.0) > now_s
