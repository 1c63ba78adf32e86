"""A downloader's questions to seeders: which one to ask for a rendezvous next, and which have not answered. Pure.

Pure: the time is an argument.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

from ipv8.messaging.anonymization.tunnel import IntroductionPoint

from tunnel_pool.overlay.ground.pacing import Recent


class Asked(NamedTuple):
    """A question that waits for its answer; `over` has the circuits, by id, that it may have taken."""

    since_s: float
    over: frozenset[int]


class Questions:
    """Asks the seeders of each swarm, by info hash: one question at a time to each, by its introduction points in turn.

    A seeder's points have its key, and the DHT names one for a day, whether it is still there or not.
    """

    def __init__(self, timeout_s: float) -> None:
        """`timeout_s`: so long an answer is waited for."""
        self._timeout_s = timeout_s
        self._seeders = Recent[bytes](timeout_s)
        self._open: dict[bytes, Asked] = {}
        self._points: dict[bytes, dict[IntroductionPoint, float]] = {}  # by swarm, when each point was asked last

    def in_turn(self, info_hash: bytes, points: Iterable[IntroductionPoint]) -> list[IntroductionPoint]:
        """Return the points never asked, then the others, longest unasked first; forget all that are not given."""
        points = list(points)
        asked_s = {at: when for at, when in self._points.get(info_hash, {}).items() if at in points}
        self._points[info_hash] = asked_s
        return sorted(points, key=lambda point: asked_s.get(point, -math.inf))

    def may_ask(self, seeder_key: bytes, now_s: float) -> bool:
        return not self._seeders.has(seeder_key, now_s)

    def asked(self, info_hash: bytes, point: IntroductionPoint, over: Iterable[int], now_s: float) -> None:
        self._seeders.add(point.seeder_pk, now_s)
        self._points.setdefault(info_hash, {})[point] = now_s
        self._open.setdefault(info_hash, Asked(now_s, frozenset(over)))

    def answered(self, info_hash: bytes) -> Asked | None:
        """Stop waiting for the swarm's answer, which came or is given up; return the question, if there was one."""
        return self._open.pop(info_hash, None)

    def is_unanswered(self, info_hash: bytes, now_s: float) -> bool:
        """Return whether a seeder was asked, and had time to answer."""
        asked = self._open.get(info_hash)
        return asked is not None and now_s - asked.since_s >= self._timeout_s

    def forget(self, info_hash: bytes) -> None:
        """Forget whom this swarm has asked; no seeder is asked sooner for it."""
        self._open.pop(info_hash, None)
        self._points.pop(info_hash, None)
