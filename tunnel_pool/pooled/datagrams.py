"""Datagrams over circuits that children have: by the data stream, or read by the children themselves."""

from collections import Counter
from collections.abc import Callable

from ipv8.messaging.anonymization.tunnel import Circuit

from tunnel_pool.overlay.ground.addresses import unpack_encoded
from tunnel_pool.overlay.ground.config import slot_of
from tunnel_pool.overlay.ground.lanes import Lane, set_announced
from tunnel_pool.pool.pool import ProcessPool
from tunnel_pool.pooled.steered_associations import SteeredCarrier
from tunnel_pool.pooled.stream_placement import StreamPlacement
from tunnel_pool.rpc import control_pb2 as pb
from tunnel_pool.rpc.drop_reasons import DropReason
from tunnel_pool.socks5.address import Socks5Error, encode_address
from tunnel_pool.socks5.carrier import OnLost


class PooledDatagrams:
    """Sends and receives clients' datagrams, as overlay.community does in one process."""

    pool: ProcessPool
    circuits: dict[int, Circuit]
    slots_with_circuits: Callable[[Lane], set[int]]

    def __init__(self) -> None:
        self.on_datagram: Callable[[Circuit, bytes, bytes], None] = self._hand_on_raw_data
        self.on_raw_data: Callable[[Circuit, tuple[str, int], bytes], None] = lambda circuit, origin, data: None
        self.watchers: list[Callable[[], None]] = []  # called when children or their circuits have changed
        self.placement = StreamPlacement()
        self.drops: Counter[str] = Counter()

    def send_data(
        self,
        target: tuple[str, int],
        circuit_id: int,
        dest_address: tuple[str, int],
        source_address: tuple[str, int],
        data: bytes,
    ) -> None:
        """Send as `send_datagram` does: target and source are the child's business."""
        try:
            self.send_datagram(circuit_id, encode_address(*dest_address), data)
        except ValueError:
            self.drops[DropReason.DATAGRAM_MALFORMED] += 1

    def send_datagram(self, circuit_id: int, address: bytes, data: bytes) -> None:
        """Hand the datagram to the child that has the circuit."""
        if circuit_id not in self.circuits:
            self.drops[DropReason.UNKNOWN_CIRCUIT] += 1
            return
        try:
            self.pool.send_datagram(slot_of(circuit_id), circuit_id, address, data)
        except ValueError:
            self.drops[DropReason.DATAGRAM_MALFORMED] += 1

    def announce_over(self, circuit_id: int, then: Callable[[], object]) -> None:
        """Hand what strangers send over this circuit to `on_datagram` (tunnel_pool.contract)."""
        circuit = self.circuits.get(circuit_id)
        if circuit is not None and slot_of(circuit_id) in self.pool.working():
            set_announced(circuit)
            told = self.pool.tell(slot_of(circuit_id), "announce", pb.Announce(circuit_id=circuit_id))
            told.add_done_callback(lambda told: None if told.cancelled() or told.exception() else then())

    def datagram_received(self, slot: int, circuit_id: int, address: bytes, payload: bytes) -> None:
        circuit = self.circuits.get(circuit_id)
        if circuit is None:
            self.drops[DropReason.UNKNOWN_CIRCUIT] += 1
        else:
            self.on_datagram(circuit, address, payload)

    def _hand_on_raw_data(self, circuit: Circuit, address: bytes, data: bytes) -> None:
        try:
            origin = unpack_encoded(address)
        except Socks5Error:
            self.drops[DropReason.DATAGRAM_MALFORMED] += 1
        else:
            self.on_raw_data(circuit, origin, data)

    def carrier(self, lane: Lane, on_lost: OnLost, *, announced: bool = False) -> SteeredCarrier:
        """Return what has the children read clients' datagrams (tunnel_pool.contract)."""
        return SteeredCarrier(self, lane, on_lost, announced)
