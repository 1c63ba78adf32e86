"""Circuits that are linked with another node's at a rendezvous point: what they are, and how clients address them."""

import secrets
import struct
from collections.abc import Mapping
from socket import inet_aton, inet_ntoa

from ipv8.messaging.anonymization.tunnel import (
    CIRCUIT_ID_PORT,
    CIRCUIT_STATE_READY,
    CIRCUIT_TYPE_RP_DOWNLOADER,
    CIRCUIT_TYPE_RP_SEEDER,
    Circuit,
)

from tunnel_pool.overlay.clients.lanes import Lane, lane_of
from tunnel_pool.overlay.config import SLOT_SHIFT

# The address of a circuit's other end is the circuit's id, with all bits below the slot XORed with this mask.
# libtorrent tells each peer the peer's own address (`yourip`, BEP 10). From the plain id, the peer could find out
# which relay has the circuit. Each process chooses its own mask; a child takes that of the main process.
MASK_BITS = SLOT_SHIFT
_mask = secrets.randbits(MASK_BITS)

END_TO_END = (CIRCUIT_TYPE_RP_SEEDER, CIRCUIT_TYPE_RP_DOWNLOADER)


def use_mask(mask: int) -> None:
    """Take this mask from now on; before there are circuits."""
    global _mask  # noqa: PLW0603 - one for all communities of a process
    _mask = mask & ((1 << MASK_BITS) - 1)


def mask_in_use() -> int:
    return _mask


def end_to_end_address(circuit_id: int) -> tuple[str, int]:
    """Return where clients find the other end of a circuit (py-ipv8's `circuit_id_to_ip`)."""
    return inet_ntoa(struct.pack("!I", circuit_id ^ _mask)), CIRCUIT_ID_PORT


def end_to_end_circuit_id(host: str, port: int) -> int | None:
    """Return the circuit that such an address stands for, None for all other addresses."""
    try:
        return int.from_bytes(inet_aton(host), "big") ^ _mask if port == CIRCUIT_ID_PORT else None
    except OSError:
        return None


def end_to_end_circuit(circuits: Mapping[int, Circuit], circuit_id: int, lane: Lane) -> Circuit | None:
    """Return the end-to-end circuit with this id, if it serves clients of this lane."""
    circuit = circuits.get(circuit_id)
    serves = circuit is not None and circuit.ctype in END_TO_END and lane_of(circuit) == lane
    return circuit if serves else None


def is_linked(circuit: Circuit) -> bool:
    """Return whether an end-to-end circuit carries clients' datagrams: only the other end reads them."""
    return bool(
        circuit.ctype in END_TO_END
        and circuit.state == CIRCUIT_STATE_READY
        and circuit.hs_session_keys is not None
        and (circuit.e2e or circuit.ctype == CIRCUIT_TYPE_RP_SEEDER)
    )


class EndToEndAddresses:
    """Has py-ipv8's names for end-to-end addresses; it comes first among the bases of a class."""

    def circuit_id_to_ip(self, circuit_id: int) -> str:
        return end_to_end_address(circuit_id)[0]

    def ip_to_circuit_id(self, ip_str: str) -> int:
        circuit_id = end_to_end_circuit_id(ip_str, CIRCUIT_ID_PORT)
        if circuit_id is None:
            raise ValueError(f"{ip_str!r} is no IPv4 address")
        return circuit_id
