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


UTP_ALONE = Transport(tcp=False, utp=True)


class TransportChoice:
    """Chooses again and again, by what a session's lane has."""

    def __init__(self) -> None:
        self._lonely_since_s: float | None = None

    def choose(self, now_s: float, *, to_exits: bool, to_ends: bool, is_lonely: bool) -> Transport:
        """Return the choice for now.

        `to_exits` and `to_ends` say whether circuits out, and to the other ends of hidden swarms, carry streams;
        `is_lonely`, whether a torrent that wants peers has none.
        """
        if not to_exits:
            self._lonely_since_s = None
            return Transport(tcp=to_ends, utp=True)
        if not is_lonely:
            self._lonely_since_s = None
        elif self._lonely_since_s is None:
            self._lonely_since_s = now_s
        lonely_s = 0.0 if self._lonely_since_s is None else now_s - self._lonely_since_s
        return Transport(tcp=True, utp=lonely_s % (LONELY_S + UTP_S) >= LONELY_S)
