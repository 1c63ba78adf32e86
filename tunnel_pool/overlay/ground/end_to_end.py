"""Circuits that are linked with another node's at a rendezvous point: what they are, and how clients address them.

The other end of such a circuit has an address that stands for it: an IPv4 address with py-ipv8's CIRCUIT_ID_PORT. So
has a stranger who calls at an exit (packet_engine/src/streams/guests.rs). libtorrent tells each peer this address
(`yourip`, BEP 10). py-ipv8 takes the circuit's id for it; a peer could then find out which relay has the circuit.

Here the address of each circuit is drawn at random, among those that lead to the circuit's child. Which do is a secret
of each lane, so that nothing is in common between what peers in two lanes are told, and no peer learns the child.
"""

import hmac
import secrets
from collections.abc import Iterable
from functools import lru_cache
from socket import inet_aton, inet_ntoa

from ipv8.messaging.anonymization.tunnel import (
    CIRCUIT_ID_PORT,
    CIRCUIT_STATE_READY,
    CIRCUIT_TYPE_RP_DOWNLOADER,
    CIRCUIT_TYPE_RP_SEEDER,
    Circuit,
)

from tunnel_pool.overlay.ground.config import slot_of
from tunnel_pool.overlay.ground.lanes import Lane, lane_of
from tunnel_pool.socks5.steering import EndSteering

SECRET_BYTES = 32
_STEERING = b"steering"  # what is derived of the secret; packet_engine/src/ends.rs derives the same
# No address that libtorrent takes for a special one: of this network, loopback, private, multicast or reserved.
FIRST_BYTES = frozenset(range(1, 224)) - {10, 100, 127, 169, 172, 192, 198, 203}

_secret = secrets.token_bytes(SECRET_BYTES)  # of each main process; a child takes that of its main process

END_TO_END = (CIRCUIT_TYPE_RP_SEEDER, CIRCUIT_TYPE_RP_DOWNLOADER)


def use_secret(secret: bytes) -> None:
    """Take this secret from now on, before there are circuits, if it has SECRET_BYTES."""
    global _secret  # noqa: PLW0603 - one for all communities of a process
    if len(secret) == SECRET_BYTES:
        _secret = secret
    steering_of.cache_clear()


def secret_in_use() -> bytes:
    return _secret


@lru_cache(maxsize=4096)
def steering_of(lane: Lane) -> EndSteering:
    """Return how addresses lead to children for clients of this lane."""
    derived = hmac.digest(_secret, _STEERING + lane.pack().to_bytes(4, "big"), "sha256")
    return EndSteering(int.from_bytes(derived[:4], "big") | 1, int.from_bytes(derived[4:8], "big") | 1)


def drawn_number(lane: Lane, slot: int) -> int:
    """Return the number of a random address that leads to the child of this slot."""
    steering = steering_of(lane)
    while True:
        number = steering.number_for(slot, secrets.randbits(24))
        if number >> 24 in FIRST_BYTES:
            return number


def known_as(circuit: Circuit) -> int:
    """Return the number of the address that stands for a circuit's other end, drawn when it is first asked for."""
    lane = lane_of(circuit)
    drawn: tuple[Lane, int] | None = getattr(circuit, "known_as", None)
    if drawn is None or drawn[0] != lane:
        drawn = circuit.known_as = lane, drawn_number(lane, slot_of(circuit.circuit_id))
    return drawn[1]


def set_known_as(circuit: Circuit, number: int) -> None:
    """Note the address that the circuit's child has drawn."""
    circuit.known_as = lane_of(circuit), number


def address_of_number(number: int) -> tuple[str, int]:
    """Return the address that clients connect to for what is known by this number."""
    return inet_ntoa(number.to_bytes(4, "big")), CIRCUIT_ID_PORT


def end_to_end_address(circuit: Circuit) -> tuple[str, int]:
    """Return where clients find the other end of a circuit."""
    return address_of_number(known_as(circuit))


def number_of_end(host: str, port: int) -> int | None:
    """Return what an address that stands for an end or a guest is known by, None for all other addresses."""
    try:
        return int.from_bytes(inet_aton(host), "big") if port == CIRCUIT_ID_PORT else None
    except OSError:
        return None


def end_to_end_circuit(circuits: Iterable[Circuit], number: int, lane: Lane) -> Circuit | None:
    """Return the end-to-end circuit that is known by this number to clients of this lane."""
    candidates = (circuit for circuit in circuits if circuit.ctype in END_TO_END and lane_of(circuit) == lane)
    return next((circuit for circuit in candidates if known_as(circuit) == number), None)


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

    circuits: dict[int, Circuit]

    def circuit_id_to_ip(self, circuit_id: int) -> str:
        """Raises KeyError for what is no circuit of ours."""
        return end_to_end_address(self.circuits[circuit_id])[0]

    def ip_to_circuit_id(self, ip_str: str) -> int:
        """Raises ValueError for an address that stands for no circuit."""
        number = number_of_end(ip_str, CIRCUIT_ID_PORT)
        for circuit in self.circuits.values():
            if circuit.ctype in END_TO_END and known_as(circuit) == number:
                return int(circuit.circuit_id)
        raise ValueError(f"{ip_str!r} stands for no circuit")
