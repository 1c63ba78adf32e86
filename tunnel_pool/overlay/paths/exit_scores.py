"""Scores how well exits have served of late: those which answer are chosen more often. Pure: the time is an argument.

Only circuits of one hop count: nobody stands between there. On longer ones a relay could drop what goes to some exits,
and lead us to its own. A score goes half of the way to 1 when a circuit has brought something, and half of the way to 0
when an exit that was asked did not answer, or fell silent; with time it goes back to that of a newcomer.
"""

import json
from collections.abc import Mapping
from typing import NamedTuple

from tunnel_pool.overlay.ground.pacing import Newest

NEWCOMER = 0.5
LEAST = 0.05  # an exit that is back must get the chance to show it
HALF_LIFE_S = 6 * 3600.0
MAX_EXITS = 256
TOGETHER_S = 60.0  # a failure counts when another exit answers within this time: else it is we who are not connected
FORGOTTEN = 0.02  # a score as near as this to a newcomer's says nothing
KEY_BYTES = 20


class _Score(NamedTuple):
    value: float
    at_s: float

    def by(self, now_s: float) -> float:
        left = 0.5 ** (max(0.0, now_s - self.at_s) / HALF_LIFE_S)
        return float(NEWCOMER + (self.value - NEWCOMER) * left)


class ExitScores:
    """Knows exits by their mid (20 bytes). Times are in seconds since the epoch, as scores are kept over restarts."""

    def __init__(self) -> None:
        self.changes = 0
        self._scores = Newest[bytes, _Score](MAX_EXITS)
        self._failed: dict[bytes, float] = {}  # exits that failed, and when, until another one answers

    def weight(self, mid: bytes, now_s: float) -> float:
        """Return how often an exit is to be chosen, compared with others: from LEAST to 1."""
        score = self._scores.get(mid)
        return NEWCOMER if score is None else max(LEAST, score.by(now_s))

    def heard(self, mid: bytes, answered: bool, now_s: float) -> None:
        """Note that an exit has brought something over a circuit, or did not answer."""
        if not answered:
            self._failed = {known: at_s for known, at_s in self._failed.items() if now_s - at_s < TOGETHER_S}
            self._failed[mid] = now_s
            return
        self._failed.pop(mid, None)
        self._count_failures(now_s)
        self._move(mid, 1.0, now_s)

    def _count_failures(self, now_s: float) -> None:
        failed, self._failed = self._failed, {}
        for mid, at_s in failed.items():
            if now_s - at_s < TOGETHER_S:
                self._move(mid, 0.0, now_s)

    def _move(self, mid: bytes, towards: float, now_s: float) -> None:
        before = self._scores.get(mid)
        value = NEWCOMER if before is None else before.by(now_s)
        after = (value + towards) / 2
        self._scores[mid] = _Score(after, now_s)
        self.changes += abs(after - value) > FORGOTTEN / 2

    def known(self, now_s: float) -> dict[bytes, float]:
        """Return the scores that say something, by mid."""
        scores = {mid: score.by(now_s) for mid, score in self._scores.items()}
        return {mid: score for mid, score in scores.items() if abs(score - NEWCOMER) > FORGOTTEN}

    def take(self, scores: Mapping[bytes, float], now_s: float) -> None:
        """Have these scores, which another process or an earlier run knew, in the place of ours."""
        for mid, score in scores.items():
            if len(mid) == KEY_BYTES:
                self._scores[mid] = _Score(min(1.0, max(0.0, score)), now_s)

    def encode(self) -> bytes:
        """Return the scores for `restore`: JSON, each with its time."""
        rows = [[mid.hex(), round(score.value, 3), round(score.at_s)] for mid, score in self._scores.items()]
        return json.dumps({"exits": rows}).encode()

    def restore(self, data: bytes, now_s: float) -> None:
        """Take the scores of an earlier run. Raises ValueError when they can't be read."""
        try:
            for mid, score, at_s in json.loads(data)["exits"]:
                if len(key := bytes.fromhex(mid)) == KEY_BYTES and 0 <= score <= 1:
                    self._scores[key] = _Score(float(score), min(float(at_s), now_s))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"no scores of exits: {error}") from None
