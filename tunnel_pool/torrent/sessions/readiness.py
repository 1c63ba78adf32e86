"""Tells when peers can be reached: libtorrent has its association, and there are circuits to spread them over. Pure.

Pure: the time is an argument.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from tunnel_pool.overlay.ground.lanes import Lane
from tunnel_pool.overlay.ground.streams import may_come_to_speak

GATHER_S = 0.5  # how long a first circuit waits for others: a peer stays with the circuit it is met over
STREAMS_S = 2.0  # how long circuits have to find out whether their exits speak streams: who is met by uTP keeps to it
STEADY_S = 10.0
ANSWER_S = 0.05  # libtorrent reads that it is associated within this time; what it sends before is lost


class Circuits(Protocol):
    """The part of tunnel_pool.contract.Tunnels that is asked here."""

    def circuits_for_new_peers(self, hops: int, group: int = 0) -> Sequence[Any]: ...

    def tunnels_ready(self, hops: int, group: int = 0) -> float: ...


class Associated(Protocol):
    """The part of the Dispatcher that is asked here."""

    @property
    def is_associated(self) -> bool: ...

    @property
    def lane(self) -> Lane: ...


class Readiness:
    """Says whether a session's peers can be reached over circuits that lead out; it is asked again and again."""

    def __init__(self, tunnels: Circuits, dispatcher: Associated) -> None:
        self.first_s: float | None = None  # since when there is a circuit; None while there is none
        self.ready_s: float | None = None  # since when peers can be reached; None while they can't
        self._associated_s: float | None = None  # an association that is lost later, libtorrent opens again
        self._tunnels = tunnels
        self._dispatcher = dispatcher

    def is_steady(self, now_s: float) -> bool:
        """Return whether peers can be reached, and could for some time: torrents that had to stop go on by then."""
        return self.ready_s is not None and now_s >= self.ready_s + STEADY_S

    def is_ready(self, now_s: float) -> bool:
        """Return whether torrents that need peers can be started."""
        if not self._is_ready(now_s):
            self.ready_s = None
            return False
        self.ready_s = now_s if self.ready_s is None else self.ready_s
        return True

    def _is_ready(self, now_s: float) -> bool:
        if self._associated_s is None and self._dispatcher.is_associated:
            self._associated_s = now_s
        circuits = self._tunnels.circuits_for_new_peers(*self._dispatcher.lane)
        if not circuits:
            self.first_s = None
        elif self.first_s is None:
            self.first_s = now_s
        if self.first_s is None or self._associated_s is None or now_s < self._associated_s + ANSWER_S:
            return False
        if now_s < self.first_s + STREAMS_S and any(map(may_come_to_speak, circuits)):
            return False
        return now_s >= self.first_s + GATHER_S or self._tunnels.tunnels_ready(*self._dispatcher.lane) >= 1
