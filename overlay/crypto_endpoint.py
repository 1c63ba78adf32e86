"""py-ipv8's Python packet path with a short way for data cells.

A cell on the wire (py-ipv8 payload.py, CellPayload):

    0        22  23          27        28          29
    +--------+---+-----------+---------+-----------+---------------------+
    | prefix | 0 | circuit id| plain   | relay     | message (encrypted  |
    |        |   |           | text    | early     | once per hop)       |
    +--------+---+-----------+---------+-----------+---------------------+

A data message: id 1, destination, origin, payload; addresses as in
py-ipv8 serialization.py (type 1 IPv4, 2 domain name, 3 IPv6). py-ipv8 parses
such a cell three times; here it is parsed once. Every other cell takes
py-ipv8's own way.
"""

import socket
import struct
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from ipv8.messaging.anonymization.crypto import PythonCryptoEndpoint
from ipv8.messaging.anonymization.payload import NO_CRYPTO_PACKETS, CellPayload, DataPayload, ExtendPayload
from ipv8.messaging.interfaces.endpoint import Endpoint
from ipv8.messaging.interfaces.udp.endpoint import DomainAddress, UDPv4Address, UDPv6Address

PREFIX_BYTES = 22
MESSAGE_OFFSET = 29
ADDRESS_IPV4, ADDRESS_DOMAIN, ADDRESS_IPV6 = 1, 2, 3
DATA_MESSAGE = bytes([DataPayload.msg_id])


@lru_cache(maxsize=4096)
def pack_address(host: str, port: int) -> bytes:
    """An address as py-ipv8 puts it into a data message."""
    for kind, family in ((ADDRESS_IPV4, socket.AF_INET), (ADDRESS_IPV6, socket.AF_INET6)):
        try:
            return bytes([kind]) + socket.inet_pton(family, host) + struct.pack("!H", port)
        except OSError:
            continue
    name = host.encode()
    return struct.pack("!BH", ADDRESS_DOMAIN, len(name)) + name + struct.pack("!H", port)


def packed_address_end(message: bytes, offset: int) -> int:
    """Where the address at `offset` ends. Raises ValueError when it is cut short or of no known type."""
    kind = message[offset] if offset < len(message) else None
    if kind == ADDRESS_IPV4:
        end = offset + 7
    elif kind == ADDRESS_IPV6:
        end = offset + 19
    elif kind == ADDRESS_DOMAIN and offset + 3 <= len(message):
        end = offset + 5 + int.from_bytes(message[offset + 1 : offset + 3], "big")
    else:
        raise ValueError(f"address of type {kind}")
    if end > len(message):
        raise ValueError("address cut short")
    return end


@lru_cache(maxsize=4096)
def unpack_address(packed: bytes) -> UDPv4Address | UDPv6Address | DomainAddress:
    """The address in bytes that `packed_address_end` found. Raises ValueError for a name that is not UTF-8."""
    port = int.from_bytes(packed[-2:], "big")
    if packed[0] == ADDRESS_IPV4:
        return UDPv4Address(socket.inet_ntop(socket.AF_INET, packed[1:5]), port)
    if packed[0] == ADDRESS_IPV6:
        return UDPv6Address(socket.inet_ntop(socket.AF_INET6, packed[1:17]), port)
    return DomainAddress(packed[3:-2].decode(), port)


class DataCellEndpoint(PythonCryptoEndpoint):
    """Counts what it drops by reason; hands data messages to `on_data_message`, where that is set."""

    def __init__(self, endpoint: Endpoint, counters: Counter[str]) -> None:
        super().__init__(endpoint)
        self._counters = counters
        self.on_data_message: Callable[[tuple[str, int], int, bytes], None] | None = None

    def update_statistics(self, circuit_id: int | None = None) -> None:
        """Nothing to do: here the routes themselves count."""

    def dropped(self) -> Counter[str]:
        """Nothing more than what is in the counters."""
        return Counter()

    def on_packet(self, packet: tuple[tuple[str, int], bytes], warn_unknown: bool = True) -> None:
        datagram = packet[1]
        if len(datagram) <= PREFIX_BYTES or (
            datagram[PREFIX_BYTES] == CellPayload.msg_id and len(datagram) <= MESSAGE_OFFSET
        ):
            self._counters["cell_malformed"] += 1
            return
        try:
            super().on_packet(packet, warn_unknown)
        except (
            Exception
        ):  # what a stranger sent: ipv8_rust_tunnels raises RuntimeError where py-ipv8 expects ValueError
            self._counters["packet_failed"] += 1

    def process_cell(self, source_address: tuple[str, int], data: bytes) -> None:
        """As PythonCryptoEndpoint.process_cell, with the short way for data messages."""
        cell = CellPayload.from_bin(data)
        circuit_id = cell.circuit_id
        if circuit_id in self.relays:
            super().process_cell(source_address, data)
            return
        if not self.incoming_crypto(cell) or not cell.message:
            self._counters["cell_not_decrypted"] += 1
            return
        message_id = cell.message[0]
        if (message_id == ExtendPayload.msg_id and not cell.relay_early) or self.max_relay_early <= 0:
            self._counters["cell_relay_early_missing"] += 1
            return
        if cell.plaintext and message_id not in NO_CRYPTO_PACKETS:
            self._counters["cell_not_encrypted"] += 1
            return
        community = self.tunnel_community
        if community is None:
            return
        if message_id == DataPayload.msg_id and self.on_data_message is not None:
            self.on_data_message(source_address, circuit_id, cell.message)
        else:
            community.on_packet((source_address, cell.to_bin(self.prefix)))
        circuit = self.circuits.get(circuit_id)
        if circuit is not None:
            circuit.beat_heart()
            circuit.bytes_down += len(data)
