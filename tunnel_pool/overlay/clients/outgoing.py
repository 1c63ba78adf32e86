"""Over which circuit a client's datagram leaves, for the main process' dispatcher and for a child's associations."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from ipv8.messaging.anonymization.tunnel import Circuit

from tunnel_pool.overlay.clients.sticky import StickyMap
from tunnel_pool.overlay.ground.config import NOWHERE
from tunnel_pool.overlay.ground.end_to_end import end_to_end_circuit, known_as, number_of_end
from tunnel_pool.overlay.ground.lanes import Lane
from tunnel_pool.overlay.ground.pacing import Newest
from tunnel_pool.overlay.ground.streams import reaches_ipv6
from tunnel_pool.socks5.address import AddressType, decode_address, encode_address

MAX_ENDS = 1024
_NOWHERE = encode_address(*NOWHERE)


class Circuits(Protocol):
    """The part of tunnel_pool.contract.Tunnels that is asked here."""

    circuits: dict[int, Circuit]

    def circuits_for_new_peers(self, hops: int, group: int = 0) -> Sequence[Circuit]: ...

    def send_datagram(self, circuit_id: int, address: bytes, data: bytes) -> None: ...


class Outgoing(NamedTuple):
    """A circuit, and where the datagram goes at its end, as RFC 1928 section 5 encodes it.

    NOWHERE stands for the other end of an end-to-end circuit.
    """

    circuit: Circuit
    address: bytes


class OutgoingCircuits:
    """Chooses circuits of one lane; a destination keeps its circuit while that lives."""

    def __init__(self, tunnels: Circuits, lane: Lane, group_of: Callable[[int], int] = lambda circuit_id: 0) -> None:
        """`group_of` maps a circuit id to a number that all circuits of one child share."""
        self._tunnels = tunnels
        self._lane = lane
        self._sticky = StickyMap(group_of)
        self._ends: Newest[int, int] = Newest(MAX_ENDS)  # circuits by what their other ends are known as

    def choose(self, address: bytes) -> Outgoing | None:
        """Return where a datagram to this encoded address goes; None while there is no circuit for it.

        Raises Socks5Error for what is no address.
        """
        circuits: Mapping[int, Circuit] = self._tunnels.circuits
        number = number_of_end(*decode_address(address)[1:])
        if number is not None:
            # Never to an exit: the address means nothing there.
            linked = self._end(circuits, number)
            return Outgoing(linked, _NOWHERE) if linked is not None else None
        circuit = self._sticky.circuit_for(address, circuits, lambda: self._able(address))
        return Outgoing(circuit, address) if circuit is not None else None

    def _end(self, circuits: Mapping[int, Circuit], number: int) -> Circuit | None:
        known = circuits.get(self._ends.get(number, 0))
        if known is not None and known_as(known) == number:
            return known
        found = end_to_end_circuit(circuits.values(), number, self._lane)
        if found is not None:
            self._ends[number] = found.circuit_id
        return found

    def _able(self, address: bytes) -> Sequence[Circuit]:
        """Return the circuits for a new destination: of IPv6, those whose exit reaches it, if any does."""
        circuits = self._tunnels.circuits_for_new_peers(*self._lane)
        is_ipv6 = address[0] == AddressType.IPV6
        return [circuit for circuit in circuits if is_ipv6 and reaches_ipv6(circuit)] or circuits

    def send(self, outgoing: Outgoing, payload: bytes) -> None:
        """Send a datagram; the tunnels drop and count what a circuit can't carry yet."""
        self._tunnels.send_datagram(outgoing.circuit.circuit_id, outgoing.address, payload)

    def pin(self, address: bytes, circuit_id: int) -> None:
        """Send what goes to this encoded address over this circuit from now on, while that lives."""
        self._sticky.assign(address, [circuit_id])

    def circuit_of(self, address: bytes) -> int | None:
        """Return the id of the circuit that datagrams to this encoded address take."""
        return self._sticky.get(address)

    def forget_circuit(self, circuit_id: int) -> list[bytes]:
        """Forget a dead circuit; return the destinations, encoded, that it carried."""
        return self._sticky.forget_circuit(circuit_id)
