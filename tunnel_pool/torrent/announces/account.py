"""A torrent's account with its trackers: what they know it by, and what it has moved in all. Pure.

libtorrent counts from zero whenever a torrent is started, and chooses another key when it is added to a session: after
a change of hops, and at each start of the program. A private tracker (BEP 27), which sums up what a key has moved,
would lose what came before.
"""

from collections.abc import Callable
from typing import NamedTuple


class Totals(NamedTuple):
    """Counts payload bytes."""

    uploaded: int
    downloaded: int

    def __add__(self, more: object) -> "Totals":
        assert isinstance(more, Totals)
        return Totals(self.uploaded + more.uploaded, self.downloaded + more.downloaded)


class Account(NamedTuple):
    """Holds a torrent's key (BEP 3, BEP 15); `tell` returns what it has moved, as a tracker is told it now."""

    key: int
    tell: Callable[[], Totals]
