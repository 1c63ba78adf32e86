"""Measures how fast a torrent's bytes go, both ways. Pure."""

from collections import deque

# libtorrent takes a limited torrent's bytes in bursts, seconds apart; its own speeds fade over half a minute.
WINDOW_S = 5.0

Counts = tuple[int, int]  # bytes down and up


class Speeds:
    """Measures bytes a second, down and up, over the last WINDOW_S."""

    def __init__(self) -> None:
        self.down = self.up = 0
        self._seen: deque[tuple[float, Counts]] = deque()  # when, and the counts of then
        self._last: Counts = (0, 0)

    def is_idle(self, counts: Counts) -> bool:
        """Return whether nothing comes or goes, and nothing did since it was last measured."""
        return not self.down and not self.up and counts == self._last

    def stop(self, counts: Counts) -> None:
        self.down = self.up = 0
        self._seen.clear()
        self._last = counts

    def measure(self, counts: Counts, now_s: float, since_s: float) -> None:
        """Take the counts of now; all that is new to them has moved within the last `since_s`."""
        if counts[0] < self._last[0] or counts[1] < self._last[1]:  # a session that it has come to counts from 0
            self.stop((0, 0))
        if not self._seen or self._seen[-1][0] < now_s - WINDOW_S:
            self._seen = deque([(now_s - since_s, self._last)])
        self._seen.append((now_s, counts))
        while self._seen[1][0] <= now_s - WINDOW_S:
            self._seen.popleft()
        (then_s, (down, up)), self._last = self._seen[0], counts
        self.down = round((counts[0] - down) / (now_s - then_s))
        self.up = round((counts[1] - up) / (now_s - then_s))
