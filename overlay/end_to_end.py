"""Circuits that are linked with another node's at a rendezvous point: what they are, and how clients address them."""

import socket
import struct
from collections.abc import Mapping

from ipv8.messaging.anonymization.tunnel import (
    CIRCUIT_ID_PORT,
    CIRCUIT_STATE_READY,
    CIRCUIT_TYPE_RP_DOWNLOADER,
    CIRCUIT_TYPE_RP_SEEDER,
    Circuit,
)

END_TO_END = (CIRCUIT_TYPE_RP_SEEDER, CIRCUIT_TYPE_RP_DOWNLOADER)


def session_hops(circuit: Circuit) -> int:
    """The hop count of the clients that a circuit serves: a downloader's end has one hop more."""
    return int(circuit.goal_hops - (circuit.ctype == CIRCUIT_TYPE_RP_DOWNLOADER))


def end_to_end_address(circuit_id: int) -> tuple[str, int]:
    """Where clients find the other end of a circuit (py-ipv8's `circuit_id_to_ip`)."""
    return socket.inet_ntoa(struct.pack("!I", circuit_id)), CIRCUIT_ID_PORT


def end_to_end_circuit_id(host: str, port: int) -> int | None:
    """The circuit that such an address stands for, None for all other addresses."""
    try:
        return int.from_bytes(socket.inet_aton(host), "big") if port == CIRCUIT_ID_PORT else None
    except OSError:
        return None


def end_to_end_circuit(circuits: Mapping[int, Circuit], circuit_id: int, hops: int) -> Circuit | None:
    """The end-to-end circuit with this id, if it serves clients of this hop count."""
    circuit = circuits.get(circuit_id)
    serves = circuit is not None and circuit.ctype in END_TO_END and session_hops(circuit) == hops
    return circuit if serves else None


def is_linked(circuit: Circuit) -> bool:
    """Whether an end-to-end circuit carries clients' datagrams: only the other end reads them."""
    return bool(
        circuit.ctype in END_TO_END
        and circuit.state == CIRCUIT_STATE_READY
        and circuit.hs_session_keys is not None
        and (circuit.e2e or circuit.ctype == CIRCUIT_TYPE_RP_SEEDER)
    )
