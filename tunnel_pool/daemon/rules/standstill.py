"""Decides when a download that stands still is helped, and how. Pure."""

from dataclasses import dataclass
from enum import Enum

from tunnel_pool.overlay.ground.pacing import doubled_s

FIRST_S = 30.0
MOST_S = 3600.0  # the longest time between two attempts
ANEW_EVERY = 4  # of so many attempts, one opens the download anew


class Step(Enum):
    """Names what is tried to get a download to move."""

    ASK_AGAIN = "its peers, its trackers and the DHT are asked again"
    OPEN_ANEW = "libtorrent is given the torrent anew"


@dataclass(slots=True)
class Standstill:
    """Measures how long a download has stood still, and counts how often it was helped since."""

    since_s: float
    got: tuple[int, int] = (0, 0)
    attempts: int = 0
    said: str = ""  # why nothing comes, as it is shown
    _next_s: float = 0.0

    def moved(self, now_s: float) -> None:
        """Note that the download needs no help now, because it moves or need not."""
        self.since_s, self.attempts, self._next_s = now_s, 0, now_s + FIRST_S

    def look(self, now_s: float, got: tuple[int, int]) -> Step | None:
        """Return what to try now, None for nothing.

        `got` tells how much there is, and came: any change is a move. Attempts are 30 s apart, then twice as
        long each time, up to an hour; every fourth opens the torrent anew.
        """
        if got != self.got:
            self.got = got
            self.moved(now_s)
        if now_s < self._next_s:
            return None
        self.attempts += 1
        self._next_s = now_s + doubled_s(FIRST_S, self.attempts, MOST_S)
        return Step.OPEN_ANEW if self.attempts % ANEW_EVERY == 0 else Step.ASK_AGAIN

    def sentence(self, now_s: float, peers: int, is_reachable: bool) -> str:
        """Say why nothing comes and what was tried; empty before the first attempt."""
        if not self.attempts:
            return ""
        why = "no circuit is up" if not is_reachable else f"{peers} peers send nothing" if peers else "no peer is found"
        return f"nothing has come for {now_s - self.since_s:.0f} s: {why} (asked again: {self.attempts})"
