"""Decides which torrents may be seen to be one user's: those of one isolation group share a libtorrent session. Pure.

A libtorrent session has one id in BitTorrent's DHT, and all that it sends goes over the circuits of its lane. So
torrents in different groups have sessions, circuits, tracker circuits and look-ups of their own.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import TypeVar

from tunnel_pool.overlay.ground.lanes import Lane

Key = TypeVar("Key", Lane, int)

PLAIN = 0
MOST_LANES = 32  # the most lanes: a session and its circuits cost memory and keep-alives (bench isolation)


class Isolation(StrEnum):
    """Lists the choices of `--isolate`: a group for each torrent, one for each set of labels, or one for all."""

    TORRENT = "torrent"
    LABEL = "label"
    NONE = "none"


class Isolator:
    """Gives each torrent its lane: `enter` it, and `leave` it when it is gone.

    There are `most` isolated lanes at a time. Torrents that come later share the lane of their hop count that has
    the fewest. A group's number is not given twice.
    """

    def __init__(self, isolation: Isolation, most: int = MOST_LANES) -> None:
        self.isolation = isolation
        self.shared = 0  # how many torrents came too late for a lane of their own
        self._most = most
        self._last_group = 0
        self._lanes: dict[tuple[int, str], Lane] = {}  # by hop count and isolation group
        self._members: dict[Lane, set[str]] = {}

    def enter(self, infohash: str, hops: int, labels: Iterable[str] = ()) -> Lane:
        """Return the lane of a torrent, which is in it from now on."""
        if hops == PLAIN or self.isolation is Isolation.NONE:
            return Lane(hops)
        name = hops, self._name(infohash, labels)
        lane = self._lanes.get(name)
        if lane is None:
            lane = self._lanes[name] = self._lane_for_newcomer(hops)
        self._members.setdefault(lane, set()).add(infohash)
        return lane

    def is_in_place(self, lane: Lane, infohash: str, labels: Iterable[str]) -> bool:
        """Return whether a torrent with these labels would be put in the lane that it is in."""
        if lane.hops == PLAIN or self.isolation is not Isolation.LABEL:
            return True
        return self._lanes.get((lane.hops, self._name(infohash, labels))) == lane

    def leave(self, lane: Lane, infohash: str) -> bool:
        """Take a torrent out of its lane; return whether the lane has none any longer, and can be closed."""
        members = self._members.get(lane)
        if members is None:
            return False
        members.discard(infohash)
        if self.isolation is Isolation.TORRENT:
            self._lanes.pop((lane.hops, infohash), None)
        if members:
            return False
        del self._members[lane]
        self._lanes = {name: other for name, other in self._lanes.items() if other != lane}
        return True

    def _name(self, infohash: str, labels: Iterable[str]) -> str:
        return infohash if self.isolation is Isolation.TORRENT else "\n".join(sorted(set(labels)))

    def _lane_for_newcomer(self, hops: int) -> Lane:
        of_these_hops = [lane for lane in self._members if lane.hops == hops]
        if of_these_hops and len(self._members) >= self._most:
            self.shared += 1
            return min(of_these_hops, key=lambda lane: (len(self._members[lane]), lane))
        self._last_group += 1
        return Lane(hops, self._last_group)


def share_limit(limit: int, rates: Mapping[Key, int]) -> dict[Key, int]:
    """Split `limit` among lanes or torrents by their present `rates`; all are bytes a second, and 0 is no limit.

    Each may use one and a half times its rate, and an equal part of a tenth of the limit, so that it can grow.
    Those that want more than what is left for each get equal parts of the rest.
    """
    if not limit or not rates:
        return dict.fromkeys(rates, limit)
    shares: dict[Key, int] = {}
    left = limit
    for place, (key, rate) in enumerate(sorted(rates.items(), key=lambda item: (item[1], item[0]))):
        equal = left // (len(rates) - place)
        is_last = place == len(rates) - 1
        wanted = rate + rate // 2 + limit // (10 * len(rates))
        shares[key] = max(1, equal if is_last else min(equal, wanted))
        left = max(0, left - shares[key])
    return shares
