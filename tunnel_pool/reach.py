"""When peers can be reached: libtorrent has its association, and there are circuits to spread them over."""

import time

from tunnel_pool.contract import Tunnels
from tunnel_pool.dispatch import Dispatcher

GATHER_S = 0.5  # so long a first circuit waits for the others: a peer stays with the circuit that it is met over
ANSWER_S = 0.05  # until libtorrent has read that it is associated; what it sends before is lost


class Reach:
    """Of a session, over circuits that lead out; asked again and again."""

    def __init__(self, tunnels: Tunnels, dispatcher: Dispatcher) -> None:
        self.first_s: float | None = None  # since when there is a circuit, None while there is none
        self._associated_s: float | None = None
        self._tunnels = tunnels
        self._dispatcher = dispatcher

    def is_ready(self) -> bool:
        """Whether to begin with what needs peers."""
        now_s = time.monotonic()
        self.first_s = _since(self.first_s, bool(self._tunnels.find_circuits(hops=self._dispatcher.hops)), now_s)
        self._associated_s = _since(self._associated_s, self._dispatcher.is_associated, now_s)
        if self.first_s is None or self._associated_s is None or now_s < self._associated_s + ANSWER_S:
            return False
        return self._tunnels.tunnels_ready(self._dispatcher.hops) >= 1 or now_s >= self.first_s + GATHER_S


def _since(before_s: float | None, holds: bool, now_s: float) -> float | None:
    if not holds:
        return None
    return now_s if before_s is None else before_s
