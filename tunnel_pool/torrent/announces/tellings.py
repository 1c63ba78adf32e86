"""What trackers were told of where torrents are found, so that it is taken back before they are told another. Pure.

Trackers that know peers by address and port (opentracker) would hand out both, and a peer that tries the one where
nobody is takes no other of that address for long.
"""

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from tunnel_pool.overlay.ground.pacing import Newest
from tunnel_pool.torrent.announces.account import Account

MAX_TOLD = 1 << 16
Tracker = tuple[str, str, int, str]
"""A tracker's scheme, host and port, and by HTTP the path and query of its URL: two may differ in a passkey alone."""


class Found(NamedTuple):
    """Says where torrents are found: at the exit of a circuit, by a port; None where nobody knows it."""

    circuit_id: int
    port: int | None


class Where(Protocol):
    """Names what is asked of who knows where a session's torrents are found."""

    @property
    def port(self) -> int | None:
        """Return by which port of the present circuit's exit, None while that is not known."""

    @property
    def circuit_id(self) -> int | None:
        """Return the circuit that questions take now, None where there is none."""

    def is_ready(self, circuit_id: int) -> bool:
        """Return whether a circuit can be sent over."""

    def is_steady(self) -> bool:
        """Return whether peers can be reached over the lane, and could for some time."""

    def account_of(self, infohash: bytes) -> Account | None:
        """Return the account of the torrent that is announced by this hash; None leaves everything as it is."""


class Telling(NamedTuple):
    """Says what a tracker was told last, and by which announce."""

    found: Found
    announce: bytes
    is_heard: bool = False  # whether the tracker has answered to this announce, or one before it


class Tellings:
    """Remembers the last announce of each torrent to each tracker."""

    def __init__(self) -> None:
        self._last = Newest[tuple[bytes, Tracker], Telling](MAX_TOLD)

    def told(self, infohash: bytes, tracker: Tracker, now: Telling) -> Telling | None:
        """Note an announce; return the one before it where that named another place, so that it is to be taken back."""
        before = self._last.get((infohash, tracker))
        self._last[infohash, tracker] = now._replace(is_heard=before is not None and before.is_heard)
        return before if before is not None and before.found != now.found else None

    def last(self, infohash: bytes, tracker: Tracker) -> Telling | None:
        """Return what a tracker was told last."""
        return self._last.get((infohash, tracker))

    def answered(self, infohash: bytes, tracker: Tracker) -> None:
        """Note that a tracker has heard of a torrent."""
        if (last := self._last.get((infohash, tracker))) is not None and not last.is_heard:
            self._last[infohash, tracker] = last._replace(is_heard=True)

    def stopped(self, infohash: bytes, tracker: Tracker) -> Found | None:
        """Forget a torrent that stops; return where it was found, which is where it has to say so."""
        before = self._last.pop((infohash, tracker), None)
        return before.found if before is not None else None

    def are_right(self, infohashes: Iterable[bytes], tracker: Tracker, found: Found) -> bool:
        """Return whether a tracker was told this of a torrent, by any of its hashes."""
        last = (self._last.get((infohash, tracker)) for infohash in infohashes)
        return any(telling is not None and telling.found == found for telling in last)
