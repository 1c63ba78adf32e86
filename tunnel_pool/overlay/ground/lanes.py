"""Lanes: circuits of one hop count and one isolation group serve the same clients.

Clients that are isolated from each other share no circuit, so that nobody at a circuit's end sees that they
are one user's. Group 0 is that of everybody who does not ask for another; py-ipv8 knows no other.
"""

from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from ipv8.messaging.anonymization.tunnel import (
    CIRCUIT_STATE_READY,
    CIRCUIT_TYPE_DATA,
    CIRCUIT_TYPE_RP_DOWNLOADER,
    DESTROY_REASON_UNNEEDED,
    Circuit,
)

MAX_GROUP = (1 << 24) - 1
# All groups share these (at least CIRCUITS_OF_A_GROUP each): relays limit their circuits, and groups may be many.
CIRCUITS_OF_ALL_GROUPS = 64
CIRCUITS_OF_A_GROUP = 2  # the fewest that a group has, as one dies at times


class Lane(NamedTuple):
    """The circuits of one hop count (`hops`, as the clients asked for it) and one isolation group."""

    hops: int
    group: int = 0

    def pack(self) -> int:
        """Return the number of 32 bits that the packet engine knows the lane by."""
        return self.group << 8 | self.hops

    @classmethod
    def unpack(cls, number: int) -> "Lane":
        return cls(number & 0xFF, number >> 8)


def group_of(circuit: Circuit) -> int:
    """Return the isolation group of a circuit; py-ipv8's own have none, which is group 0."""
    return int(getattr(circuit, "group", 0))


def set_group(circuit: Circuit, group: int) -> None:
    circuit.group = group


def detour_of(circuit: Circuit) -> int:
    """Return how many hops a circuit to an exit has more than its clients asked for (paths/way_out.py)."""
    return int(getattr(circuit, "detour", 0))


def set_detour(circuit: Circuit, hops: int) -> None:
    circuit.detour = hops


def is_announced(circuit: Circuit) -> bool:
    """Return whether others are told to find us by this circuit's outside address."""
    return bool(getattr(circuit, "announced", False))


def set_announced(circuit: Circuit) -> None:
    circuit.announced = True


def asked_hops(circuit: Circuit) -> int:
    """Return how many hops `create_circuit` was asked for."""
    return int(circuit.goal_hops) - detour_of(circuit)


def lane_of(circuit: Circuit) -> Lane:
    """Return which clients a circuit serves: a downloader's end-to-end circuit has one hop more than they asked for."""
    return Lane(asked_hops(circuit) - (circuit.ctype == CIRCUIT_TYPE_RP_DOWNLOADER), group_of(circuit))


class GroupedCircuits:
    """Adds isolation groups to py-ipv8's circuits; it comes before a TunnelCommunity among the bases.

    A call without a group means group 0.
    """

    circuits: dict[int, Circuit]
    circuits_needed: dict[int, int]
    settings: Any
    do_circuits: Callable[[], None]
    remove_circuit: Any

    def __init__(self, *arguments: Any) -> None:
        # How many circuits each lane could use; of group 0, circuits_needed says it.
        self.groups_needed: dict[Lane, int] = {}
        super().__init__(*arguments)

    def wanted_circuits(self) -> dict[Lane, int]:
        """Return how many circuits are to be kept of each lane; the more groups there are, the fewer each has."""
        wanted = {Lane(hops): count for hops, count in self.circuits_needed.items()}
        for lane, count in self.groups_needed.items():
            share = max(CIRCUITS_OF_ALL_GROUPS, count) // len(self.groups_needed)
            wanted[lane] = min(count, max(CIRCUITS_OF_A_GROUP, share))
        return wanted

    def find_circuits(
        self,
        ctype: str | None = CIRCUIT_TYPE_DATA,
        state: str | None = CIRCUIT_STATE_READY,
        exit_flags: Collection[int] | None = None,
        hops: int | None = None,
        group: int | None = 0,
    ) -> list[Circuit]:
        """Find circuits as py-ipv8 does, by the hops that were asked for; those of all groups when `group` is None."""
        # Of many groups, each asks several times a second: what tells most circuits apart is looked at first.
        return [
            circuit
            for circuit in self.circuits.values()
            if (group is None or group_of(circuit) == group)
            and (ctype is None or circuit.ctype == ctype)
            and (state is None or circuit.state == state)
            and (exit_flags is None or set(exit_flags) <= set(circuit.exit_flags))
            and (hops is None or asked_hops(circuit) == hops)
        ]

    def build_tunnels(self, hops: int, group: int = 0) -> None:
        if not group:
            super().build_tunnels(hops)  # type: ignore[misc]
        elif hops > 0:
            self.want_circuits(Lane(hops, group), self.settings.max_circuits)
            self.do_circuits()

    def want_circuits(self, lane: Lane, count: int) -> None:
        """Keep so many circuits from now on; they are built with the next `do_circuits`."""
        if lane.group:
            self.groups_needed[lane] = count
        else:
            self.circuits_needed[lane.hops] = count

    def end_tunnels(self, hops: int, group: int = 0) -> None:
        """Keep no circuits of this lane any longer, and remove those that are there."""
        lane = Lane(hops, group)
        self.groups_needed.pop(lane, None)
        if not group:
            self.circuits_needed.pop(hops, None)
        for circuit in [circuit for circuit in self.circuits.values() if lane_of(circuit) == lane]:
            self.remove_circuit(circuit.circuit_id, "its clients are gone", destroy=DESTROY_REASON_UNNEEDED)

    def tunnels_ready(self, hops: int, group: int = 0) -> float:
        wanted = self.wanted_circuits().get(Lane(hops, group), 0)
        return len(self.find_circuits(hops=hops, group=group)) / wanted if wanted else 1.0
