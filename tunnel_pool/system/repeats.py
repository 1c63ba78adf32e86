"""Finds log lines that repeat each other: a few of them are written, and the others are counted. Pure."""

import re
from dataclasses import dataclass
from typing import NamedTuple

from tunnel_pool.overlay.ground.pacing import Newest

WINDOW_S = 60.0
LINES_OF_A_KIND = 5  # that are written in a window
MAX_KINDS = 1000
KIND_CHARACTERS = 300
_NUMBERS = re.compile(r"\b[0-9a-fA-F]{8,}\b|\d+")  # ids, hashes, counts, ports and times


class Kind(NamedTuple):
    """Names what lines that repeat each other have in common: all of their text but the numbers."""

    logger: str
    level: int
    text: str


@dataclass(slots=True)
class _Window:
    since_s: float
    lines: int = 0
    left_out: int = 0
    last: str = ""  # the text of the last line that was left out


class LeftOut(NamedTuple):
    """Lines of one kind that were not written."""

    kind: Kind
    lines: int
    last: str


class Repeats:
    """Counts the lines of each kind in windows of a minute, which begin with the first line."""

    def __init__(self) -> None:
        self._windows: Newest[Kind, _Window] = Newest(MAX_KINDS)

    def may_write(self, logger: str, level: int, text: str, now_s: float) -> bool:
        """Return whether a line is to be written; what was left out is counted."""
        kind = Kind(logger, level, _NUMBERS.sub("#", text[:KIND_CHARACTERS]))
        window = self._windows.get(kind)
        if window is None or now_s - window.since_s >= WINDOW_S:
            self._windows[kind] = window = _Window(now_s)
        window.lines += 1
        if window.lines <= LINES_OF_A_KIND:
            return True
        window.left_out += 1
        window.last = text
        return False

    def take_ended(self, now_s: float) -> list[LeftOut]:
        """Return what was left out in the windows that have ended, the oldest first, and forget these."""
        ended = []
        while self._windows and now_s - self._windows[kind := next(iter(self._windows))].since_s >= WINDOW_S:
            window = self._windows.pop(kind)
            if window.left_out:
                ended.append(LeftOut(kind, window.left_out, window.last))
        return ended
