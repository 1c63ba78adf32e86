"""Finds circuits that have fallen silent: they are in use, and nothing comes back any more. Pure.

py-ipv8 removes a circuit 20 to 25 s after the last cell came (community.py, do_remove). That suits idle circuits. One
that brought much until just now, or over which something is sent, is asked by a ping whether its end is there, after
`SILENT_S`, and is given up when that is not answered.
"""

from collections.abc import Iterable
from typing import NamedTuple

SILENT_S = 2.0
PING_AGAIN_S = 1.5  # a ping may be lost
ANSWER_S = 4.0  # since the first ping; the longest way takes a second or two
BUSY_BYTES = 8192  # what a circuit has brought of late when it brings much
LATE_S = 1.0  # what came so long ago counts half: looks may be so close that hardly anything comes between two


class Carried(NamedTuple):
    """Says what a ready circuit carried, and when the last cell came over it, in seconds since the epoch."""

    circuit_id: int
    sent_bytes: int
    received_bytes: int
    heard_s: float


class Found(NamedTuple):
    """Names the circuits to ping, and those to give up."""

    to_ping: list[int]
    dead: list[int]
    silent: list[int]  # those to ping that fell silent by themselves just now, and were not only asked with others


class _Silence:
    """Remembers what became of a circuit since the last cell came."""

    def __init__(self, last: Carried, now_s: float, late_bytes: float = 0.0) -> None:
        self.last = last
        self.began_s = now_s
        self.late_bytes = late_bytes  # what had come of late then
        # Since when it is in use, and has brought nothing; 0: it is not.
        self.used_s = now_s if late_bytes >= BUSY_BYTES else 0.0
        self.asked_s = 0.0  # when it was pinged first since
        self.pinged_s = 0.0


class Liveness:
    """Looks at circuits again and again."""

    def __init__(self) -> None:
        self._silences: dict[int, _Silence] = {}

    def ask(self, circuit_id: int, now_s: float) -> None:
        """Have a circuit asked the next time, used or not."""
        if (silence := self._silences.get(circuit_id)) is not None and not silence.asked_s:
            silence.asked_s = now_s

    def look(self, circuits: Iterable[Carried], now_s: float) -> Found:
        """Return what is to be done about these circuits, which are all that there are."""
        before, self._silences = self._silences, {}
        found = Found([], [], [])
        for carried in circuits:
            silence = self._silences[carried.circuit_id] = _going_on(before.get(carried.circuit_id), carried, now_s)
            if silence.used_s and now_s - silence.used_s >= SILENT_S and not silence.asked_s:
                silence.asked_s = now_s
                found.silent.append(carried.circuit_id)
            if not silence.asked_s:
                continue
            if now_s - silence.asked_s >= ANSWER_S:
                found.dead.append(carried.circuit_id)
            elif now_s - silence.pinged_s >= PING_AGAIN_S:
                silence.pinged_s = now_s
                found.to_ping.append(carried.circuit_id)
        return found


def _going_on(before: _Silence | None, carried: Carried, now_s: float) -> _Silence:
    if before is None:
        return _Silence(carried, now_s)
    if carried.heard_s > before.last.heard_s:
        came_bytes = carried.received_bytes - before.last.received_bytes
        # Who was asked, and has answered, is asked no more for what came before.
        left = 0.0 if before.asked_s else 0.5 ** ((now_s - before.began_s) / LATE_S)
        return _Silence(carried, now_s, came_bytes + left * before.late_bytes)
    if carried.sent_bytes > before.last.sent_bytes and not before.used_s:
        before.used_s = now_s
    return before
