"""A sliding window over nonce counters (RFC 6479). Its twin is packet_engine/src/replay.rs. Pure."""

WINDOW = 127 * 64
"""How far a counter may lag behind the newest one, as in the native engine."""


EARLY = 32
"""Up to this counter, two different texts may come under one: ipv8-rust-tunnels
begins anew when an exit becomes a relay."""

MAX_EARLY_TAGS = 128


class Received:
    """Remembers which counters one direction of a hop's keys has received.

    A replayed cell is the same to the last bit, so early cells are told apart
    by their tags, and all others by their counters.
    """

    def __init__(self) -> None:
        self._window = ReplayWindow()
        self._early_tags: set[bytes] = set()

    def is_new(self, counter: int, tag: bytes) -> bool:
        """Ask before decrypting; `accept` only what was authentic."""
        if counter <= EARLY and len(self._early_tags) < MAX_EARLY_TAGS:
            return tag not in self._early_tags
        return self._window.is_new(counter)

    def accept(self, counter: int, tag: bytes) -> None:
        if counter <= EARLY and len(self._early_tags) < MAX_EARLY_TAGS:
            self._early_tags.add(tag)
        self._window.accept(counter)


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
        elif age <= WINDOW:
            self._seen |= 1 << age
