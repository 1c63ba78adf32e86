"""A sliding window over nonce counters (RFC 6479). Its twin is packet_engine/src/replay.rs."""

WINDOW = 127 * 64
"""How far a counter may lag behind the newest one, as in the native engine."""


class ReplayWindow:
    """Accepts each counter once, in any order within the window."""

    def __init__(self) -> None:
        self._newest = 0
        self._seen = 0  # bit n: whether the counter n before the newest was accepted

    def is_new(self, counter: int) -> bool:
        """Ask before decrypting; `accept` only what was authentic."""
        age = self._newest - counter
        return age < 0 or (age <= WINDOW and not self._seen >> age & 1)

    def accept(self, counter: int) -> None:
        age = self._newest - counter
        if age < 0:
            self._seen = (self._seen << min(-age, WINDOW + 1) | 1) & ((1 << WINDOW + 1) - 1)
            self._newest = counter
        else:
            self._seen |= 1 << age
