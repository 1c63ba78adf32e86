"""py-ipv8's Python packet path with a short way for data cells.

A cell on the wire (py-ipv8 payload.py, CellPayload):

    0        22  23          27        28          29
    +--------+---+-----------+---------+-----------+---------------------+
    | prefix | 0 | circuit id| plain   | relay     | message (encrypted  |
    |        |   |           | text    | early     | once per hop)       |
    +--------+---+-----------+---------+-----------+---------------------+

A data message: id 1, destination, origin, payload; addresses as in
overlay/ground/addresses.py. py-ipv8 parses such a cell three times; here it is
parsed once. Every other cell takes py-ipv8's own way.
"""

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from ipv8.messaging.anonymization.crypto import PythonCryptoEndpoint
from ipv8.messaging.anonymization.payload import (
    NO_CRYPTO_PACKETS,
    CellPayload,
    CreatedPayload,
    CreatePayload,
    DataPayload,
    ExtendPayload,
)
from ipv8.messaging.anonymization.tunnel import FORWARD, Circuit, Hop
from ipv8.messaging.interfaces.endpoint import Endpoint

from tunnel_pool.overlay.ground.admission import Handshakes
from tunnel_pool.overlay.wire.replay import Received
from tunnel_pool.rpc.drop_reasons import DropReason
from tunnel_pool.steering.layout import (
    CELL_MESSAGE_AT,
    COUNTER_BYTES,
    FRESH_COUNTER,
    MESSAGE_ID_AT,
    PREFIX_BYTES,
    TAG_BYTES,
)

DATA_MESSAGE = bytes([DataPayload.msg_id])
MIN_WINDOWS = 256


class ReplayedError(Exception):
    """Says that a cell came a second time."""


class DataCellEndpoint(PythonCryptoEndpoint):
    """Counts what it drops by reason; hands data messages to `on_data_message`, where that is set."""

    def __init__(self, endpoint: Endpoint, counters: Counter[str]) -> None:
        super().__init__(endpoint)
        self._counters = counters
        self._windows: dict[tuple[int, int], tuple[Any, Received]] = {}
        self._windows_kept = MIN_WINDOWS
        self.handshakes = Handshakes()  # CREATE and EXTEND
        self.answers = Handshakes()  # CREATED, by the same limits
        self.on_data_message: Callable[[tuple[str, int], int, bytes], None] | None = None

    def update_statistics(self, circuit_id: int | None = None) -> None:
        """Do nothing: on this engine the routes themselves count."""

    def dropped(self) -> Counter[str]:
        """Return an empty Counter: on this engine the community's counters have it all."""
        return Counter()

    def on_packet(self, packet: tuple[tuple[str, int], bytes], warn_unknown: bool = True) -> None:
        datagram = packet[1]
        if len(datagram) <= PREFIX_BYTES or (
            datagram[MESSAGE_ID_AT] == CellPayload.msg_id and len(datagram) <= CELL_MESSAGE_AT
        ):
            self._counters[DropReason.CELL_MALFORMED] += 1
            return
        try:
            super().on_packet(packet, warn_unknown)
        except Exception:  # what a stranger sent: ipv8_rust_tunnels raises RuntimeError for a key that is none
            self._counters[DropReason.PACKET_FAILED] += 1

    def encrypt_cell(self, cell: CellPayload, direction: int, *hops: Hop) -> None:
        """Encrypt as py-ipv8 does, but never with the first counter, which is not ours to use.

        A node that joins a circuit seals its list of candidates with the
        originator's key and first counter (py-ipv8 community.py, on_create), and
        py-ipv8's originator its first cell, too: whoever sees both learns what
        they say. We leave out one counter.
        """
        if direction == FORWARD and not cell.plaintext:
            for hop in hops:
                if hop.keys is not None and hop.keys.salt_explicit_forward == FRESH_COUNTER:
                    hop.keys.encrypt_str(b"", FORWARD)
        super().encrypt_cell(cell, direction, *hops)

    def decrypt_cell(self, cell: CellPayload, direction: int, *hops: Hop) -> None:
        """Decrypt as py-ipv8 does; refuse a layer whose counter was seen before.

        Raises CryptoException, ReplayedError.
        """
        for hop in () if cell.plaintext else hops:
            received = self._received_under(hop.keys, direction)
            counter = int.from_bytes(cell.message[:COUNTER_BYTES], "big")
            tag = cell.message[-TAG_BYTES:]
            if not received.is_new(counter, tag):
                raise ReplayedError
            super().decrypt_cell(cell, direction, hop)
            received.accept(counter, tag)

    def _is_neighbour(self, host: str) -> bool:
        """Return whether circuits that are relayed or end here come from this address."""
        return any(route.hop.address[0] == host for route in (*self.exit_sockets.values(), *self.relays.values()))

    def _received_under(self, keys: Any, direction: int) -> Received:
        """Return what was received under a key; records of keys without a route are thrown away now and then."""
        known = self._windows.get((id(keys), direction))
        if known is None:
            if len(self._windows) >= 2 * self._windows_kept:
                self._forget_windows()
            # Keeps the keys alive, so that their id is not another's.
            known = self._windows[(id(keys), direction)] = (keys, Received())
        return known[1]

    def _forget_windows(self) -> None:
        routes = [*self.relays.values(), *self.exit_sockets.values()]
        in_use = {id(route.hop.keys) for route in routes}
        for circuit in self.circuits.values():
            in_use |= {id(hop.keys) for hop in circuit.hops} | {id(circuit.hs_session_keys)}
        self._windows = {key: known for key, known in self._windows.items() if key[0] in in_use}
        self._windows_kept = max(MIN_WINDOWS, len(self._windows))

    def relay_cell(self, cell: CellPayload) -> None:
        """Relay as py-ipv8 does, and count what is dropped by its reason."""
        route = self.relays[cell.circuit_id]
        if cell.plaintext:
            self._counters[DropReason.CELL_NOT_ENCRYPTED] += 1
        elif cell.relay_early and route.relay_early_count >= self.max_relay_early:
            self._counters[DropReason.CELL_RELAY_EARLY_TOO_MANY] += 1
        else:
            sent_before = route.bytes_up
            super().relay_cell(cell)
            if route.bytes_up == sent_before:
                self._counters[DropReason.CELL_NOT_DECRYPTED] += 1

    def _relay(self, cell: CellPayload, received_bytes: int) -> None:
        """Hand a cell on; py-ipv8 takes any for a sign of life, before it is known whether it is the neighbour's."""
        next_relay = self.relays[cell.circuit_id]
        this_relay = self.relays.get(next_relay.circuit_id)
        before = next_relay.bytes_up
        self.relay_cell(cell)
        if this_relay is not None and next_relay.bytes_up > before:
            this_relay.beat_heart()
            this_relay.bytes_down += received_bytes

    def _handshakes_of(self, message_id: int, circuit: Circuit | None) -> Handshakes | None:
        """Return the limits that a message is under; a CREATED that we wait for ourselves is under none."""
        if message_id in (CreatePayload.msg_id, ExtendPayload.msg_id):
            return self.handshakes
        is_awaited = circuit is not None and not circuit.hops
        return self.answers if message_id == CreatedPayload.msg_id and not is_awaited else None

    def process_cell(self, source_address: tuple[str, int], data: bytes) -> None:
        try:
            self._process_cell(source_address, data)
        except ReplayedError:
            self._counters[DropReason.CELL_REPLAYED] += 1

    def _process_cell(self, source_address: tuple[str, int], data: bytes) -> None:
        """Process a cell as PythonCryptoEndpoint.process_cell does, with the short way for data messages."""
        cell = CellPayload.from_bin(data)
        circuit_id = cell.circuit_id
        if circuit_id in self.relays:
            self._relay(cell, len(data))
            return
        circuit = self.circuits.get(circuit_id)
        has_no_keys = circuit is not None and not circuit.hops and not cell.plaintext
        if has_no_keys or not self.incoming_crypto(cell) or not cell.message:
            self._counters[DropReason.CELL_NOT_DECRYPTED] += 1
            return
        message_id = cell.message[0]
        if (message_id == ExtendPayload.msg_id and not cell.relay_early) or self.max_relay_early <= 0:
            self._counters[DropReason.CELL_RELAY_EARLY_MISSING] += 1
            return
        if cell.plaintext and message_id not in NO_CRYPTO_PACKETS:
            self._counters[DropReason.CELL_NOT_ENCRYPTED] += 1
            return
        community = self.tunnel_community
        if community is None:
            return
        if limit := self._handshakes_of(message_id, circuit):
            host = source_address[0]
            if refusal := limit.refusal(host, self._is_neighbour(host), time.monotonic()):
                self._counters[refusal] += 1
                return
        if message_id == DataPayload.msg_id and self.on_data_message is not None:
            self.on_data_message(source_address, circuit_id, cell.message)
        else:
            community.on_packet((source_address, cell.to_bin(self.prefix)))
        if circuit is not None:
            circuit.beat_heart()
            circuit.bytes_down += len(data)
