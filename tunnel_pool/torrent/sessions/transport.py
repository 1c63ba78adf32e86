"""By what a session's torrents speak with peers: TCP, as streams, where an exit carries them, or else uTP. Pure.

uTP halves its speed at each packet that is lost on the whole way; a stream does not. So a session that has streams
begins its connections by TCP alone, for libtorrent would try uTP first. Peers that TCP does not reach get their turn
when a torrent finds nobody.
"""

from typing import NamedTuple

LONELY_S = 15.0  # after so long without a peer, uTP is tried
UTP_S = 10.0  # for so long


class Transport(NamedTuple):
    """Says by what outgoing connections to peers are made."""

    tcp: bool
    utp: bool


class Ways(NamedTuple):
    """Says what circuits a lane has: out of exits and to the other ends of hidden swarms, with and without streams.

    Of the ends without streams, only those count that this node's circuits lead to: one that came to us begins its
    connections itself.
    """

    to_exits: bool = False
    to_silent_exits: bool = False
    to_ends: bool = False
    to_silent_ends: bool = False


UTP_ALONE = Transport(tcp=False, utp=True)


class TransportChoice:
    """Chooses again and again, by what a session's lane has."""

    def __init__(self) -> None:
        self._lonely_since_s: float | None = None

    def choose(self, now_s: float, ways: Ways, *, is_lonely: bool) -> Transport:
        """Return the choice for now; `is_lonely` says whether a torrent that wants peers has none."""
        if not ways.to_exits:
            self._lonely_since_s = None
            return Transport(tcp=ways.to_ends, utp=not ways.to_ends or ways.to_silent_exits)
        if not is_lonely:
            self._lonely_since_s = None
        elif self._lonely_since_s is None:
            self._lonely_since_s = now_s
        lonely_s = 0.0 if self._lonely_since_s is None else now_s - self._lonely_since_s
        return Transport(tcp=True, utp=ways.to_silent_ends or lonely_s % (LONELY_S + UTP_S) >= LONELY_S)
