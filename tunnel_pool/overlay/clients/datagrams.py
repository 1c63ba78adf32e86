"""Data messages on the Python engine's way: sent over our circuits, and taken apart when they come in."""

from collections import Counter
from collections.abc import Callable
from typing import Any

from ipv8.messaging.anonymization.community import TunnelCommunity
from ipv8.messaging.anonymization.payload import CellPayload
from ipv8.messaging.anonymization.tunnel import CIRCUIT_STATE_READY, CIRCUIT_TYPE_DATA, Circuit

from tunnel_pool.overlay.ground.addresses import (
    encode_packed,
    pack_address,
    pack_encoded,
    packed_address_end,
    unpack_address,
    unpack_encoded,
)
from tunnel_pool.overlay.ground.config import NOWHERE
from tunnel_pool.overlay.ground.end_to_end import END_TO_END, end_to_end_address, is_linked, number_of_end
from tunnel_pool.overlay.wire.crypto_endpoint import DATA_MESSAGE
from tunnel_pool.rpc.drop_reasons import DropReason
from tunnel_pool.socks5.address import Socks5Error, encode_address
from tunnel_pool.steering.layout import AFTER_CIRCUIT_ID, MESSAGE_ID_AT, PAYLOAD_AT

_NO_ORIGIN = pack_address(*NOWHERE)  # of what leaves an exit


class Datagrams(TunnelCommunity):
    """Carries datagrams over circuits that can carry them; the others drop and count what they are given.

    `on_datagram` is called with the circuit, the origin in SOCKS5's encoding, and the payload; a caller may replace it.
    """

    counters: Counter[str]
    on_answer: Callable[[Circuit, tuple[str, int], bytes], None]  # to what we asked for over a circuit of our own
    exit_data: Callable[[int, tuple[str, int], tuple[str, int], bytes], None]
    message_from_outside: Callable[[Circuit, tuple[str, int], bytes], None]

    def __init__(self, settings: Any) -> None:
        self.on_datagram: Callable[[Circuit, bytes, bytes], None] = self._hand_on_raw_data
        super().__init__(settings)

    def send_data(
        self,
        target: tuple[str, int],
        circuit_id: int,
        dest_address: tuple[str, int],
        source_address: tuple[str, int],
        data: bytes,
    ) -> None:
        """Send a datagram over a circuit, or back over one that we exit.

        py-ipv8 would send it in the clear over a circuit that is unknown or has
        no hop yet, and let it out too early over one that misses hops.
        """
        circuit = self.circuits.get(circuit_id)
        if circuit is None and circuit_id not in self.exit_sockets:
            self.counters[DropReason.UNKNOWN_CIRCUIT] += 1
        elif circuit is not None and not may_carry(circuit):
            self.counters[DropReason.CIRCUIT_NOT_READY] += 1
        else:
            self._send_message(target, circuit_id, pack_address(*dest_address) + pack_address(*source_address) + data)

    def send_datagram(self, circuit_id: int, address: bytes, data: bytes) -> None:
        """Send a datagram out of the circuit's exit (tunnel_pool.contract)."""
        circuit = self.circuits.get(circuit_id)
        if circuit is None:
            self.counters[DropReason.UNKNOWN_CIRCUIT] += 1
        elif not may_carry(circuit):
            self.counters[DropReason.CIRCUIT_NOT_READY] += 1
        else:
            try:
                self._send_message(circuit.hop.address, circuit_id, pack_encoded(address) + _NO_ORIGIN + data)
            except Socks5Error:
                self.counters[DropReason.DATAGRAM_MALFORMED] += 1

    def _send_message(self, target: tuple[str, int], circuit_id: int, body: bytes) -> None:
        self.crypto_endpoint.send_cell(target, CellPayload(circuit_id, DATA_MESSAGE + body))

    def on_data(self, source: tuple[str, int], data: bytes, circuit_id: int | None) -> None:
        """Take a data message that came by py-ipv8's way: prefix (22), id, circuit id (4), the rest of the message."""
        if circuit_id is not None:
            self.on_data_message(source, circuit_id, data[MESSAGE_ID_AT:PAYLOAD_AT] + data[AFTER_CIRCUIT_ID:])

    def on_data_message(self, source: tuple[str, int], circuit_id: int, message: bytes) -> None:
        """Take a decrypted data message: for us over our circuit, or to leave from our exit (py-ipv8's on_data)."""
        try:
            origin_at = packed_address_end(message, 1)
            data_at = packed_address_end(message, origin_at)
            destination = unpack_address(message[1:origin_at])
            origin = unpack_address(message[origin_at:data_at])
        except ValueError:
            self.counters[DropReason.CELL_DATA_MALFORMED] += 1
            return
        data = message[data_at:]
        circuit = self.circuits.get(circuit_id)
        if circuit is not None and source != circuit.hop.address:
            self.counters[DropReason.CIRCUIT_FOREIGN_SOURCE] += 1
        elif circuit is not None and not may_carry(circuit):
            self.counters[DropReason.CIRCUIT_NOT_READY] += 1
        elif circuit is not None and circuit.ctype in END_TO_END:
            self.on_datagram(circuit, encode_address(*end_to_end_address(circuit)), data)
        elif circuit is not None:
            if data.startswith(self._prefix):
                self.message_from_outside(circuit, origin, data)
            elif number_of_end(origin[0], origin[1]) is not None:
                # The exit claims that the datagram comes from the other end of an end-to-end circuit of ours.
                self.counters[DropReason.CIRCUIT_FOREIGN_SOURCE] += 1
            elif circuit.ctype == CIRCUIT_TYPE_DATA:
                self._hand_in(circuit, message[origin_at:data_at], data)
            else:
                self.on_answer(circuit, origin, data)
        elif destination != NOWHERE:
            self.exit_data(circuit_id, source, destination, data)
        else:
            self.counters[DropReason.EXIT_DESTINATION_REFUSED] += 1

    def _hand_in(self, circuit: Circuit, origin: bytes, data: bytes) -> None:
        try:
            address = encode_packed(origin)
        except ValueError:  # an exit made up a name
            self.counters[DropReason.ORIGIN_MALFORMED] += 1
        else:
            self.on_datagram(circuit, address, data)

    def _hand_on_raw_data(self, circuit: Circuit, address: bytes, data: bytes) -> None:
        self.on_raw_data(circuit, unpack_encoded(address), data)


def may_carry(circuit: Circuit) -> bool:
    """Return whether a circuit can carry datagrams: all its hops are there and, if it is end-to-end, it is linked."""
    return bool(circuit.state == CIRCUIT_STATE_READY and (circuit.ctype not in END_TO_END or is_linked(circuit)))
