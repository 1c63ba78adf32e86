"""Between the SOCKS5 server and the tunnels: which circuit carries which peer's datagrams."""

from collections import Counter
from collections.abc import Callable, Iterable

from ipv8.messaging.anonymization.tunnel import CIRCUIT_STATE_READY, CIRCUIT_TYPE_DATA, Circuit

from overlay.community import NOWHERE
from overlay.config import slot_of
from socks5.address import Socks5Error, decode_address, encode_address
from socks5.server import Association
from tunnel_pool.contract import Address, Tunnels

MAX_DESTINATIONS = 65536


class StickyMap:
    """Destination to circuit: kept while the circuit lives, since a peer knows us by its exit's address."""

    def __init__(
        self, group_of: Callable[[int], int] = lambda circuit_id: 0, max_destinations: int = MAX_DESTINATIONS
    ) -> None:
        """Circuits with the same `group_of` share a child."""
        self._group_of = group_of
        self._circuit_of: dict[bytes, int] = {}
        self._count: Counter[int] = Counter()
        self._group_count: Counter[int] = Counter()
        self._max = max_destinations

    def get(self, destination: bytes) -> int | None:
        return self._circuit_of.get(destination)

    def assign(self, destination: bytes, ready: Iterable[int]) -> int | None:
        """Choose the child, then its circuit, with the fewest destinations; None when none is ready."""
        self._drop(destination)
        circuit_id = min(
            ready,
            key=lambda circuit_id: (self._group_count[self._group_of(circuit_id)], self._count[circuit_id]),
            default=None,
        )
        if circuit_id is None:
            return None
        if len(self._circuit_of) >= self._max:
            self._drop(next(iter(self._circuit_of)))
        self._circuit_of[destination] = circuit_id
        self._count[circuit_id] += 1
        self._group_count[self._group_of(circuit_id)] += 1
        return circuit_id

    def forget_circuit(self, circuit_id: int) -> list[bytes]:
        """The circuit is dead; returns the destinations that it carried."""
        orphans = [destination for destination, owner in self._circuit_of.items() if owner == circuit_id]
        for destination in orphans:
            self._drop(destination)
        self._count.pop(circuit_id, None)
        return orphans

    def _drop(self, destination: bytes) -> None:
        circuit_id = self._circuit_of.pop(destination, None)
        if circuit_id is not None:
            self._count[circuit_id] -= 1
            self._group_count[self._group_of(circuit_id)] -= 1


class Dispatcher:
    """Carries the datagrams of one hop count; a socks5.server.DatagramConsumer.

    What no ready circuit can take is dropped and counted, never sent otherwise.
    """

    def __init__(
        self, tunnels: Tunnels, hops: int, on_orphans: Callable[[list[Address]], None] = lambda orphans: None
    ) -> None:
        """`on_orphans` hears which destinations lost their circuit."""
        self.hops = hops
        self.drops: Counter[str] = Counter()
        self._tunnels = tunnels
        self._sticky = StickyMap(slot_of)
        self._associations: list[Association] = []
        self._on_orphans = on_orphans

    def association_opened(self, association: Association) -> None:
        self._associations.append(association)

    def association_closed(self, association: Association) -> None:
        self._associations.remove(association)

    def datagram_received(self, association: Association, address: bytes, payload: bytes) -> None:
        try:
            destination = decode_address(address)
        except Socks5Error:
            self.drops["socks5_malformed"] += 1
            return
        circuit_id = self._sticky.get(address)
        circuit = self._tunnels.circuits.get(circuit_id) if circuit_id is not None else None
        if circuit is None or circuit.state != CIRCUIT_STATE_READY:
            circuit = self._assign(address)
            if circuit is None:
                self.drops["no_circuit"] += 1
                return
        self._tunnels.send_data(circuit.hop.address, circuit.circuit_id, destination[1:], NOWHERE, payload)

    def raw_data_received(self, origin: Address, data: bytes) -> None:
        """A datagram from outside, for the newest client (libtorrent has one association at a time)."""
        if not self._associations:
            self.drops["no_association"] += 1
            return
        try:
            address = encode_address(origin[0], origin[1])
        except ValueError:  # a name that an exit made up
            self.drops["origin_malformed"] += 1
            return
        self._associations[-1].send(address, data)

    def circuit_removed(self, circuit: Circuit) -> None:
        orphans = self._sticky.forget_circuit(circuit.circuit_id)
        if orphans:
            self._on_orphans([decode_address(orphan)[1:] for orphan in orphans])

    def _assign(self, address: bytes) -> Circuit | None:
        ready = [circuit.circuit_id for circuit in self._tunnels.find_circuits(hops=self.hops)]
        circuit_id = self._sticky.assign(address, ready)
        return self._tunnels.circuits[circuit_id] if circuit_id is not None else None


def connect(tunnels: Tunnels, dispatchers: Iterable[Dispatcher]) -> None:
    """Let the tunnels' datagrams and removals reach the dispatcher of their hop count."""
    by_hops = {dispatcher.hops: dispatcher for dispatcher in dispatchers}

    def on_raw_data(circuit: Circuit, origin: Address, data: bytes) -> None:
        dispatcher = by_hops.get(circuit.goal_hops)
        if dispatcher is not None:
            dispatcher.raw_data_received(origin, data)

    def on_circuit_removed(circuit: Circuit, reason: str) -> None:
        dispatcher = by_hops.get(circuit.goal_hops)
        if dispatcher is not None and circuit.ctype == CIRCUIT_TYPE_DATA:
            dispatcher.circuit_removed(circuit)

    tunnels.on_raw_data = on_raw_data
    tunnels.on_circuit_removed = on_circuit_removed
