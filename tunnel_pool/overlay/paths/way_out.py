"""Decides when circuits to exits make a detour: a hop more than was asked for, where there is no other way out. Pure.

A client may know no exit, or its provider may drop what goes to all that it knows. Relays tell which exits they know,
in CREATED and EXTENDED (py-ipv8 community.py, join_circuit). Such an exit has a key and nothing else, and is reached
through the relay that told of it. So that no relay names the end of a circuit whose client it knows, the first hop of a
circuit that was to have two hops is not asked: this circuit gets three.
"""

from collections.abc import Callable, Sequence

from ipv8.messaging.anonymization.tunnel import PEER_FLAG_EXIT_BT

from tunnel_pool.overlay.ground.config import MAX_HOPS
from tunnel_pool.overlay.ground.pacing import Recent
from tunnel_pool.overlay.ground.streams import PEER_FLAG_EXIT_STREAMS

DETOUR_AFTER_S = 3.0  # how long exits have to be met, or to answer
PROBE_S = 60.0  # how often the short way is tried while there is a detour
MAX_TOLD = 8  # how many exits one relay may name
TOLD_NONE_S = 300.0  # how long a node that told of no exit is asked for none
# What is taken for granted of them: streams are asked for, and not waited for where nobody answers.
TOLD_FLAGS = [PEER_FLAG_EXIT_BT, PEER_FLAG_EXIT_STREAMS]


class WayOut:
    """Knows whether exits can be reached by the hops that were asked for."""

    def __init__(self) -> None:
        self._met_s: float | None = None  # when the first node was met
        self._asked_s: float | None = None  # since when exits have been asked directly, and none has answered
        self._probed_s = 0.0  # when exits were asked directly for the last time, to find out whether they answer
        self._is_known = False
        self._told_none = Recent[bytes](TOLD_NONE_S)  # keys of nodes that know no exit, or are too old to tell

    def met(self, now_s: float) -> bool:
        """Note that a node is known, and return whether it is the first."""
        is_first = self._met_s is None
        if is_first:
            self._met_s = now_s
        return is_first

    def asked(self, now_s: float) -> None:
        """Note that an exit is asked to be the only hop of a circuit."""
        if self._asked_s is None:
            self._asked_s = self._probed_s = now_s

    def answered(self) -> None:
        """Note that an exit is the only hop of a circuit."""
        self._asked_s, self._is_known = None, False

    def is_blocked(self, now_s: float) -> bool:
        """Return whether exits were asked directly, and none has answered for a while."""
        return self._asked_s is not None and now_s - self._asked_s >= DETOUR_AFTER_S

    def told_none(self, key: bytes, now_s: float) -> None:
        """Note that a circuit ended at this node, as it told of no exit."""
        self._told_none.add(key, now_s)

    def may_tell(self, key: bytes, now_s: float) -> bool:
        return not self._told_none.has(key, now_s)

    def is_news(self) -> bool:
        """Return whether this is asked for the first time since an exit answered."""
        was_known, self._is_known = self._is_known, True
        return not was_known

    def detour(self, hops: int, now_s: float, *, exits_known: bool) -> int | None:
        """Return how many hops more a circuit to an exit gets; None when there is nothing to do but wait."""
        if not exits_known:
            if self._met_s is None or now_s - self._met_s < DETOUR_AFTER_S:
                return None
            return 1 if hops < MAX_HOPS else 0
        if hops == 1 and self.is_blocked(now_s):
            if now_s - self._probed_s < PROBE_S:
                return 1
            self._probed_s = now_s
        return 0


def may_name_the_exit(path_hops: int, asked_hops: int) -> bool:
    """Return whether the last of so many hops may name the exit of a circuit that was to have `asked_hops`."""
    return path_hops > 1 or asked_hops == 1


def in_order_of_trust(known: Sequence[bytes], told: Sequence[bytes], is_silent: Callable[[bytes], bool]) -> list[bytes]:
    """Return exits by key: those that we know, those that the last hop tells of, those that did not answer us."""
    every = list(dict.fromkeys([*known, *told]))
    return sorted(every, key=is_silent)
