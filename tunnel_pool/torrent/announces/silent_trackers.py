"""Tells an exit that does not answer requests from trackers that don't. Pure.

An exit hands no answer on that is no tracker's (404, HTML), so that a tracker that is gone looks like an exit that is.
"""

from dataclasses import dataclass, field

from tunnel_pool.overlay.ground.pacing import Newest
from tunnel_pool.torrent.announces.outside import Address

MAX_SILENT = 1024
MANY_SILENT = 5  # trackers without an answer over a circuit over which others had answered


@dataclass(slots=True)
class _Heard:
    """Holds what was heard over one circuit."""

    has_answered: bool = False  # whether any tracker has answered over it
    silent: set[Address] = field(default_factory=set)  # trackers that gave no answer since then
    refuses: bool = False


class SilentTrackers:
    """Judges the circuits that requests take by how these end."""

    def __init__(self) -> None:
        self._circuits: dict[int, _Heard] = {}
        self._silent_over = Newest[Address, int](MAX_SILENT)  # the first circuit that a tracker was silent over

    def ended(self, tracker: Address, circuit_id: int, *, is_answered: bool) -> None:
        """Hear how a request ended. A tracker that was silent over another circuit, too, is silent by itself."""
        heard = self._circuits.setdefault(circuit_id, _Heard())
        if is_answered:
            self._silent_over.pop(tracker, None)
            heard.has_answered, heard.silent = True, set()
        elif self._silent_over.setdefault(tracker, circuit_id) == circuit_id:
            heard.silent.add(tracker)
            heard.refuses = heard.refuses or len(heard.silent) >= (MANY_SILENT if heard.has_answered else 1)

    def refuses(self, circuit_id: int) -> bool:
        """Return whether the exit of a circuit does not answer requests, so that the next ones take another."""
        return circuit_id in self._circuits and self._circuits[circuit_id].refuses

    def forget_circuit(self, circuit_id: int) -> None:
        """A tracker that was silent over the circuit stays so: it is not the next circuit's fault."""
        self._circuits.pop(circuit_id, None)
