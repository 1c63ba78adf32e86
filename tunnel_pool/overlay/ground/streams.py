"""Streams over circuits, as they are seen: who may speak them, and what a circuit has of them (docs/WIRE.md). Pure."""

from collections.abc import Iterable
from typing import NamedTuple

from ipv8.messaging.anonymization.tunnel import CIRCUIT_STATE_READY, CIRCUIT_TYPE_DATA, CIRCUIT_TYPE_RP_SEEDER, Circuit

from tunnel_pool.overlay.ground.config import slot_of
from tunnel_pool.overlay.ground.end_to_end import (
    END_TO_END,
    address_of_number,
    known_as,
    number_of_end,
    steering_of,
)
from tunnel_pool.overlay.ground.lanes import Lane, lane_of
from tunnel_pool.rpc.sync import NO_STREAMS, StreamsState
from tunnel_pool.socks5.address import Socks5Address

# Of ours; nodes that don't know them keep them, and do nothing with them.
PEER_FLAG_EXIT_STREAMS = 8192
PEER_FLAG_EXIT_IPV6 = 4096  # it reaches IPv6 destinations


class Guest(NamedTuple):
    """Says who has opened a stream over a circuit of ours, and waits for a client to connect to him."""

    circuit: Circuit
    known_as: int  # the number of the address that stands for him
    infohash: bytes | None = None  # what he asks for, if he has called by TCP at the circuit's exit (20 bytes)

    @property
    def address(self) -> tuple[str, int]:
        """Return where clients find him."""
        return address_of_number(self.known_as)


def streams_of(route: object) -> StreamsState:
    """Return what a circuit, its mirror, or the end of another's circuit here has of streams."""
    return StreamsState(*getattr(route, "streams", NO_STREAMS))


def may_lead(circuit: Circuit) -> bool:
    """Return whether a circuit carries what clients send: out of an exit, or to another end that it is linked with."""
    is_linked = circuit.e2e or circuit.ctype == CIRCUIT_TYPE_RP_SEEDER
    is_one = circuit.ctype == CIRCUIT_TYPE_DATA or (circuit.ctype in END_TO_END and is_linked)
    return bool(is_one and circuit.state == CIRCUIT_STATE_READY)


def speaks_streams(circuit: Circuit, lane: Lane) -> bool:
    """Return whether a circuit carries streams of a lane."""
    return lane_of(circuit) == lane and may_lead(circuit) and streams_of(circuit).are_spoken


def may_come_to_speak(circuit: Circuit) -> bool:
    """Return whether a circuit's exit says that it speaks streams, and has not yet been heard to do so."""
    return circuit.ctype == CIRCUIT_TYPE_DATA and tries_streams(circuit) and not streams_of(circuit).are_spoken


def that_reach(circuits: Iterable[Circuit], lane: Lane, address: Socks5Address) -> list[Circuit]:
    """Return the circuits of a lane that can carry a stream to an address.

    One that stands for no circuit may be a guest's: the child of this slot knows.
    """
    end = number_of_end(address.host, address.port)
    speaking = [circuit for circuit in circuits if speaks_streams(circuit, lane)]
    to_exits = [circuit for circuit in speaking if circuit.ctype == CIRCUIT_TYPE_DATA]
    if end is None:
        return to_exits
    linked = [circuit for circuit in speaking if circuit.ctype in END_TO_END and known_as(circuit) == end]
    slot = steering_of(lane).slot_of(end)
    return linked or [circuit for circuit in to_exits if slot_of(circuit.circuit_id) == slot]


def has_flag(circuit: Circuit, flag: int) -> bool:
    """Return whether a circuit ends, or is to end, at an exit that sets this peer flag."""
    missing = circuit.goal_hops - len(circuit.hops)
    hop = circuit.hops[-1] if missing <= 0 and circuit.hops else circuit.unverified_hop if missing == 1 else None
    return hop is not None and flag in (hop.flags or ())


def reaches_ipv6(circuit: Circuit) -> bool:
    """Return whether a circuit's exit says that it reaches IPv6 destinations."""
    return circuit.ctype == CIRCUIT_TYPE_DATA and has_flag(circuit, PEER_FLAG_EXIT_IPV6)


def tries_streams(circuit: Circuit) -> bool:
    """Return whether to find out if the other end of a circuit speaks streams.

    An exit says so by its peer flags; the other end of an end-to-end circuit is asked in any case.
    """
    if circuit.ctype in END_TO_END:
        return True
    is_complete = circuit.ctype == CIRCUIT_TYPE_DATA and len(circuit.hops) >= circuit.goal_hops > 0
    return is_complete and PEER_FLAG_EXIT_STREAMS in (circuit.hops[-1].flags or ())
