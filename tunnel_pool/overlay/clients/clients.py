"""Choice of the SOCKS5 association that gets an incoming datagram. Pure. Its twin is packet_engine/src/clients.rs.

A client may have any number of associations, and several clients of a lane may have one each. An answer goes to the
association that sent the question. Any other datagram goes to the lane's usual association, or else to its newest.
"""

from collections.abc import Sequence

from tunnel_pool.overlay.ground.lanes import Lane

MAX_ASKED = 65536
_NAME = 3  # the kind of an encoded address that is a domain name (RFC 1928 section 5)


class Clients:
    """Remembers whose datagrams left last, by circuit and destination."""

    def __init__(self) -> None:
        self._asked: dict[tuple[int, bytes], int] = {}
        self._usual: dict[Lane, int] = {}

    def asked(self, circuit_id: int, destination: bytes, association_id: int) -> None:
        """Remember the association that sent a datagram over a circuit to an encoded address (RFC 1928 section 5).

        The address that a domain name will answer from is not known, so only its port is remembered.
        """
        key = (circuit_id, destination[-2:] if destination[0] == _NAME else destination)
        if len(self._asked) >= MAX_ASKED and key not in self._asked:
            del self._asked[next(iter(self._asked))]
        self._asked[key] = association_id

    def set_usual(self, lane: Lane, association_id: int) -> None:
        """Let this association get what nobody of its lane asked for."""
        self._usual[lane] = association_id

    def forget_circuit(self, circuit_id: int) -> None:
        for key in [key for key in self._asked if key[0] == circuit_id]:
            del self._asked[key]

    def for_answer(self, lane: Lane, associations: Sequence[int], circuit_id: int, origin: bytes) -> int | None:
        """Return which of a lane's associations, the newest last, gets what comes from an address over a circuit."""
        if len(associations) <= 1:
            return associations[0] if associations else None
        asked = self._asked.get((circuit_id, origin)), self._asked.get((circuit_id, origin[-2:]))
        known = (known for known in (*asked, self._usual.get(lane)) if known in associations)
        return next(known, associations[-1])
