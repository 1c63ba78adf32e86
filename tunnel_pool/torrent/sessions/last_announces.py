"""Knows which announces wait for a tracker's answer when a session or a torrent ends. Pure: the time is an argument.

libtorrent says of each announce that it is sent, and of each that it has an answer or failed. Of a torrent that was
removed meanwhile it says the first alone (2.1.1): such an announce counts as over once its time-out has passed.
"""

from collections import Counter
from collections.abc import Hashable
from typing import NamedTuple

MARGIN_S = 0.3


class Announce(NamedTuple):
    """An announce of one torrent to one tracker."""

    torrent: Hashable
    url: str


class LastAnnounces:
    """The announces of a libtorrent session that wait for an answer."""

    def __init__(self, timeout_s: float) -> None:
        """`timeout_s`: how long a tracker has to answer `stopped` (libtorrent's stop_tracker_timeout)."""
        self._timeout_s = timeout_s
        self._out: Counter[Announce] = Counter()  # one for each socket and each hash of a hybrid torrent
        self._until_s: dict[Announce, float] = {}

    def sent(self, announce: Announce, now_s: float) -> None:
        self._expire(now_s)
        self._out[announce] += 1
        self._until_s.pop(announce, None)
        self._until_s[announce] = now_s + self._timeout_s + MARGIN_S

    def answered(self, announce: Announce) -> None:
        """Note an answer or a failure; it may be that of an announce before the last."""
        if self._out[announce] > 1:
            self._out[announce] -= 1
        else:
            self._forget(announce)

    def are_out(self, now_s: float) -> bool:
        """Return whether any announce still waits for its answer."""
        self._expire(now_s)
        return bool(self._until_s)

    def is_out(self, torrent: Hashable, now_s: float) -> bool:
        """Return whether an announce of this torrent still waits for its answer."""
        return self.are_out(now_s) and any(known.torrent == torrent for known in self._until_s)

    def _expire(self, now_s: float) -> None:
        while self._until_s and self._until_s[oldest := next(iter(self._until_s))] <= now_s:
            self._forget(oldest)

    def _forget(self, announce: Announce) -> None:
        self._out.pop(announce, None)
        self._until_s.pop(announce, None)
