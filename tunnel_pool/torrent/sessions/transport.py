"""By what a session's torrents speak with peers: TCP, as streams, where an exit carries them, or else uTP. Pure.

uTP halves its speed at each packet that is lost on the whole way; a stream does not. So a session that has streams
begins its connections by TCP alone, for libtorrent would try uTP first, and without encryption, which few exits let
pass by TCP. Peers that are not reached so get their turn when a torrent finds nobody: soon, and then less and less
often, as other torrents' new peers would be met by uTP, too, and who is met by uTP keeps to it.
"""

from typing import NamedTuple

LONELY_S = (4.0, 15.0, 30.0, 60.0)  # without a peer, until uTP and encryption are tried; the last again and again
TRIED_S = 10.0  # for so long


class Transport(NamedTuple):
    """Says by what outgoing connections to peers are made."""

    tcp: bool
    utp: bool
    encrypted: bool = False  # whether encryption is tried first (BitTorrent's message stream encryption)


class Ways(NamedTuple):
    """Says what circuits a lane has: out of exits and to the other ends of hidden swarms, with and without streams.

    Of the ends without streams, only those count that this node's circuits lead to: one that came to us begins its
    connections itself.
    """

    to_exits: bool = False
    to_silent_exits: bool = False
    to_ends: bool = False
    to_silent_ends: bool = False


UTP_ALONE = Transport(tcp=False, utp=True, encrypted=True)


class TransportChoice:
    """Chooses again and again, by what a session's lane has."""

    def __init__(self) -> None:
        self._lonely_since_s: float | None = None

    def choose(self, now_s: float, ways: Ways, *, is_lonely: bool) -> Transport:
        """Return the choice for now; `is_lonely` says whether a torrent that wants peers has none."""
        if not ways.to_exits:
            self._lonely_since_s = None
            if not ways.to_ends:
                return UTP_ALONE
            return Transport(tcp=True, utp=ways.to_silent_exits)
        if not is_lonely:
            self._lonely_since_s = None
        elif self._lonely_since_s is None:
            self._lonely_since_s = now_s
        lonely_s = 0.0 if self._lonely_since_s is None else now_s - self._lonely_since_s
        tries = _is_tried(lonely_s)
        return Transport(tcp=True, utp=ways.to_silent_ends or tries, encrypted=tries)


def _is_tried(lonely_s: float) -> bool:
    """Return whether a torrent that has had no peer for so long tries uTP and encryption now."""
    for wait_s in LONELY_S:
        if lonely_s < wait_s + TRIED_S:
            return lonely_s >= wait_s
        lonely_s -= wait_s + TRIED_S
    return lonely_s % (LONELY_S[-1] + TRIED_S) >= LONELY_S[-1]
