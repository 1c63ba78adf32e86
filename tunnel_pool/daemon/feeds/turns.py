"""Decides which feeds may be worked at now. Pure: the time is an argument.

A server that takes its time would hold up the feeds of others: those that were slow the last time share a part of the
places.
"""

AT_A_TIME = 4  # feeds: each has circuits of its own
MOST_SLOW = 2  # of these
SLOW_S = 30.0


class Turns:
    def __init__(self) -> None:
        self._since_s: dict[int, float] = {}  # feeds that are worked at, by number
        self._slow: set[int] = set()

    def may_begin(self, number: int) -> bool:
        """Return whether a feed that is not worked at may be, now."""
        is_full = len(self._since_s) >= AT_A_TIME
        return not is_full and not (number in self._slow and len(self._slow & self._since_s.keys()) >= MOST_SLOW)

    def begins(self, number: int, now_s: float) -> None:
        self._since_s[number] = now_s

    def ends(self, number: int, now_s: float) -> None:
        if now_s - self._since_s.pop(number) > SLOW_S:
            self._slow.add(number)
        else:
            self._slow.discard(number)
