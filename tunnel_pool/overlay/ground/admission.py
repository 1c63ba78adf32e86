"""Decides how many of others' circuits a node takes part in. Pure: by what is asked, what there is, and the time."""

from dataclasses import dataclass

from tunnel_pool.overlay.ground.pacing import TokenBucket
from tunnel_pool.rpc.drop_reasons import DropReason

MAX_SOURCES = 4096
NEIGHBOUR_FACTOR = 2  # how many times the rate of another source a neighbour may have
BURST_S = 2.0  # a burst may have as much as the rate allows in this time


@dataclass(frozen=True, slots=True)
class Admission:
    """Says how much of others' circuits one TunnelCommunity takes part in; 0 is no limit."""

    circuits: int = 1000
    per_neighbour: int = 0  # circuits joined for one IP address
    per_minute: int = 0
    handshakes_per_s: int = 200  # CREATE and EXTEND that are looked at at all
    handshakes_per_source_per_s: int = 20
    closed: bool = False  # whether no circuit is joined any more, as what it carries could not go on

    def share(self, children: int) -> "Admission":
        """Return one child's share of each limit, rounded up; random circuit ids spread circuits over the children."""

        def part(whole: int) -> int:
            return -(-whole // children)

        return Admission(
            part(self.circuits),
            part(self.per_neighbour),
            part(self.per_minute),
            part(self.handshakes_per_s),
            part(self.handshakes_per_source_per_s),
            self.closed,
        )


NO_MORE_THAN_USUAL = Admission()


class Joins:
    """Counts the circuits that were joined in the last minute, as a bucket that empties steadily."""

    def __init__(self) -> None:
        self._level = 0.0
        self._seen_s = 0.0

    def refusal(self, admission: Admission, joined: int, of_neighbour: int, now_s: float) -> str | None:
        """Return why one more is too many; one that is not is counted."""
        if admission.closed:
            return DropReason.CREATE_CLOSED
        if admission.circuits and joined >= admission.circuits:
            return DropReason.CREATE_TOO_MANY
        if admission.per_neighbour and of_neighbour >= admission.per_neighbour:
            return DropReason.CREATE_TOO_MANY_OF_NEIGHBOUR
        if admission.per_minute:
            drained = admission.per_minute / 60 * max(0.0, now_s - self._seen_s)
            self._level, self._seen_s = max(0.0, self._level - drained), now_s
            if self._level + 1 > admission.per_minute:
                return DropReason.CREATE_TOO_MANY_A_MINUTE
            self._level += 1
        return None


class Handshakes:
    """Limits how many CREATE and EXTEND are looked at; the twin of packet_engine/src/handshakes.rs."""

    def __init__(self) -> None:
        self.per_s = self.per_source_per_s = 0  # any number
        self._strangers = TokenBucket()
        self._neighbours = TokenBucket()
        self._sources: dict[str, TokenBucket] = {}
        self._neighbour_sources: dict[str, TokenBucket] = {}

    def refusal(self, source: str, is_neighbour: bool, now_s: float) -> str | None:
        """Return why one more is refused; one that is not is counted. Half of the whole is kept for neighbours."""
        half = self.per_s / 2
        if is_neighbour and self.per_s and self._neighbours.permits(now_s):
            # Of one neighbour, too, there is a bound: a relay's circuits are many people's, so it is a higher one.
            rate = self.per_source_per_s * NEIGHBOUR_FACTOR
            bucket = _bucket_of(self._neighbour_sources, source, now_s)
            if not rate or bucket.permits(now_s):
                if rate:
                    bucket.take(rate, BURST_S, now_s)
                self._neighbours.take(half, BURST_S, now_s)
                return None
        if self.per_source_per_s:
            bucket = _bucket_of(self._sources, source, now_s)
            if not bucket.permits(now_s):
                return DropReason.HANDSHAKES_OF_SOURCE
            bucket.take(self.per_source_per_s, BURST_S, now_s)
        if self.per_s:
            if not self._strangers.permits(now_s):
                return DropReason.HANDSHAKES_TOO_MANY
            self._strangers.take(half, BURST_S, now_s)
        return None


def _bucket_of(sources: dict[str, TokenBucket], source: str, now_s: float) -> TokenBucket:
    if len(sources) >= MAX_SOURCES and source not in sources:
        for known in [known for known, bucket in sources.items() if bucket.permits(now_s)]:
            del sources[known]
        if len(sources) >= MAX_SOURCES:
            sources.clear()
    return sources.setdefault(source, TokenBucket())
