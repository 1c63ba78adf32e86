"""Decides which strangers reach a circuit that ends here: none until it has asked to be found. Pure.

It asks trackers and DHT nodes, and so many datagrams of strangers a second come in from then on. The native engine's
twin is packet_engine/src/strangers.rs.
"""

from tunnel_pool.overlay.ground.exit_rules import ExitRules
from tunnel_pool.overlay.ground.pacing import TokenBucket
from tunnel_pool.rpc.drop_reasons import DropReason

# A destination is remembered for so long or twice that, as NATs do (RFC 4787, REQ-5): peers keep a connection alive
# every two minutes. Of a circuit with more than MAX_REMEMBERED, the older ones are forgotten sooner.
REMEMBERED_S = 150.0
MAX_REMEMBERED = 4096
ANSWERS_PER_S = 10  # of introduction points that were asked over a circuit: they may answer from another address
ANNOUNCE_ACTION = b"\x00\x00\x00\x01"  # BEP 15: the third word of a request
ANNOUNCE_BYTES = 98
ANNOUNCE_PEER = b"1:q13:announce_peer"  # BEP 5; the keys of a dictionary are in order


def is_announce(payload: bytes) -> bool:
    """Return whether a datagram tells a tracker or a DHT node where its sender is found."""
    if payload.startswith(b"d") and payload.endswith(b"e"):
        return ANNOUNCE_PEER in payload
    return len(payload) >= ANNOUNCE_BYTES and payload[8:12] == ANNOUNCE_ACTION


class StrangersLetIn:
    """Counts the datagrams of strangers that came in at all circuits."""

    def __init__(self) -> None:
        self.datagrams = 0
        self.bytes = 0

    def let_in(self, size: int) -> None:
        self.datagrams += 1
        self.bytes += size


class Strangers:
    """Knows where one circuit has sent to of late, by IP address: an answer may come from another port."""

    def __init__(self) -> None:
        self._announced = False
        self._recent: set[str] = set()
        self._before: set[str] = set()
        self._turned_s = 0.0
        self._rate = TokenBucket()
        self._asks_introduction_points = False
        self._answers = TokenBucket()

    def sent(self, host: str, payload: bytes, now_s: float) -> None:
        """Note a datagram that left."""
        self._announced = self._announced or is_announce(payload)
        if now_s - self._turned_s >= REMEMBERED_S or len(self._recent) >= MAX_REMEMBERED:
            self._before, self._recent, self._turned_s = self._recent, set(), now_s
        self._recent.add(host)

    def announced(self) -> None:
        """Let strangers in from now on: the circuit has asked to be found in another way."""
        self._announced = True

    def asks_introduction_points(self) -> None:
        """Note that an introduction point is asked over the circuit."""
        self._asks_introduction_points = True

    def lets_answer_in(self, now_s: float) -> bool:
        """Return whether a message may come in that could be an introduction point's answer, wherever it is from."""
        return self._asks_introduction_points and self._answers.spend(ANSWERS_PER_S, ANSWERS_PER_S, now_s)

    def is_stranger(self, host: str) -> bool:
        return host not in self._recent and host not in self._before

    def refusal(self, rules: ExitRules, now_s: float) -> str | None:
        """Return why a stranger's datagram may not come in; one that may is counted."""
        per_s = rules.inbound_per_s
        if not self._announced or per_s is None:
            return DropReason.EXIT_STRANGER
        if per_s and not self._rate.spend(per_s, per_s, now_s):
            return DropReason.EXIT_STRANGERS_TOO_FAST
        return None
