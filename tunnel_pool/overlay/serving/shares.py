"""Shares out what an exit does for others at a time: so much for a circuit, for a previous hop, and for all. Pure.

A new circuit costs nothing, so that a bound by circuit alone is none.
"""

import ipaddress
from collections import Counter
from typing import NamedTuple

HOST_BITS = 64  # of IPv6: one subscriber has them all (RFC 6177); packet_engine/src/address.rs counts the same


class Asker(NamedTuple):
    """Says for whom something is done."""

    circuit_id: int
    hop: str  # the previous hop's IP address


class Shares:
    """Counts what is under way."""

    def __init__(self, of_circuit: int, of_hop: int, in_all: int) -> None:
        self._of_circuit, self._of_hop, self._in_all = of_circuit, of_hop, in_all
        self._under_way: Counter[int | str] = Counter()
        self.all = 0

    def take(self, asker: Asker) -> bool:
        """Count one more thing, if there is room for it; `give_back` follows once."""
        circuit_id, hop = asker.circuit_id, _subscriber(asker.hop)
        if (
            self.all >= self._in_all
            or self._under_way[circuit_id] >= self._of_circuit
            or self._under_way[hop] >= self._of_hop
        ):
            return False
        self.all += 1
        self._under_way.update((circuit_id, hop))
        return True

    def give_back(self, asker: Asker) -> None:
        self.all -= 1
        for key in (asker.circuit_id, _subscriber(asker.hop)):
            self._under_way[key] -= 1
            if not self._under_way[key]:
                del self._under_way[key]


def _subscriber(host: str) -> str:
    address = ipaddress.ip_address(host)
    if address.version == 4:
        return host
    if (mapped := address.ipv4_mapped) is not None:
        return str(mapped)
    return str(ipaddress.IPv6Address(int(address) >> HOST_BITS << HOST_BITS))
