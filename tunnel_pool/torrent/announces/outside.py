"""Under which address and port a circuit's exit is seen from outside: DHT nodes say it, and several must agree. Pure.

A DHT node says in its answers where the question came from (BEP 42, `ip`). Whoever runs some nodes could name a port
that is not ours. So each network has one vote, and an address needs MIN_VOTES and more than half of them.
"""

import ipaddress
from collections import Counter
from collections.abc import Callable, Iterable

from tunnel_pool.overlay.ground.networks import network_of
from tunnel_pool.overlay.ground.pacing import Newest
from tunnel_pool.overlay.requests.dht_pings import answers, ping
from tunnel_pool.socks5.address import AddressType, decode_address

Address = tuple[str, int]

MIN_VOTES = 3
ASKED_AT_ONCE = 8
MAX_NODES = 128
MAX_ASKED = 64
TRANSACTION_BYTES = 8
NODE_ID_BYTES = 20
_SEEN_START = b"d2:ip6:"
_SEEN_BYTES = 6


class Nodes:
    """Remembers DHT nodes that answered of late, by encoded IPv4 address."""

    def __init__(self) -> None:
        self._known = Newest[bytes, None](MAX_NODES)

    def add(self, address: bytes) -> None:
        if address[0] == AddressType.IPV4:
            self._known[address] = None

    def newest(self) -> Iterable[bytes]:
        return reversed(self._known)


class Outside:
    """Finds out where one circuit is seen. Call `ask`, send what it returns, and hand in what comes back."""

    def __init__(self, random_bytes: Callable[[int], bytes]) -> None:
        self._random_bytes = random_bytes
        self._node_id = random_bytes(NODE_ID_BYTES)
        self._asked = Newest[bytes, bytes](MAX_ASKED)  # encoded address, by transaction
        self._votes: dict[str, Address] = {}  # by the voter's network
        self.is_answered = False  # whether any node has answered, with a vote or without

    def ask(self, nodes: Nodes) -> list[tuple[bytes, bytes]]:
        """Return questions, each with the encoded address that it goes to; those who have no vote come first."""
        voters = set(self._votes)
        by_vote = sorted(nodes.newest(), key=lambda address: network_of(decode_address(address).host) in voters)
        questions = []
        for address in by_vote[:ASKED_AT_ONCE]:
            transaction = self._random_bytes(TRANSACTION_BYTES)
            self._asked[transaction] = address
            questions.append((address, ping(transaction, self._node_id)))
        return questions

    def answered(self, origin: bytes, payload: bytes) -> bool:
        """Return whether a datagram is an answer to a question of ours; count its vote."""
        transaction = next((known for known in self._asked if answers(payload, known)), None)
        if transaction is None or self._asked[transaction] != origin:
            return False
        del self._asked[transaction]
        self.is_answered = True
        if payload.startswith(_SEEN_START):
            seen = payload[len(_SEEN_START) : len(_SEEN_START) + _SEEN_BYTES]
            host, port = str(ipaddress.IPv4Address(seen[:4])), int.from_bytes(seen[4:], "big")
            if port:
                self._votes[network_of(decode_address(origin).host)] = host, port
        return True

    def agreed(self) -> Address | None:
        """Return where the circuit is seen; None while too few say so."""
        if not self._votes:
            return None
        address, votes = Counter(self._votes.values()).most_common(1)[0]
        return address if votes >= MIN_VOTES and 2 * votes > len(self._votes) else None
