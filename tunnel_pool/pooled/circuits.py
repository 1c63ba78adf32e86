"""Circuits over a pool: which child builds the next one, how many there are, and what is left of a dead one."""

import asyncio
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection
from typing import Any

from ipv8.messaging.anonymization.tunnel import (
    CIRCUIT_STATE_CLOSING,
    CIRCUIT_TYPE_DATA,
    PEER_FLAG_EXIT_BT,
    PEER_FLAG_RELAY,
    Circuit,
)
from ipv8.peer import Peer

from tunnel_pool.overlay.community import LocalTunnelSettings
from tunnel_pool.overlay.ground.config import SLOT_SHIFT, slot_of
from tunnel_pool.overlay.ground.lanes import GroupedCircuits, Lane, asked_hops, set_group
from tunnel_pool.overlay.ground.messages import peer_message
from tunnel_pool.overlay.ground.pacing import Backoff
from tunnel_pool.overlay.paths.way_out import WayOut
from tunnel_pool.pool.policy import ChildState, Load, least_loaded, share_out
from tunnel_pool.pool.pool import ProcessPool
from tunnel_pool.pooled.shared_port import SharedPort
from tunnel_pool.rpc import control_pb2 as pb
from tunnel_pool.rpc.errors import CallError
from tunnel_pool.steering.cells import BUCKETS, random_id

BUILD_INTERVAL_S = 0.5
EXPECTED_S = 3.0  # how long a child that starts, or looks for peers, has its share of circuits reserved
SOON_STATES = frozenset({ChildState.WAITING, ChildState.STARTING, ChildState.RUNNING})

logger = logging.getLogger(__name__)


class PooledCircuits(GroupedCircuits):
    """The part of py-ipv8's TunnelCommunity that builds and removes circuits; `circuits` are mirrors."""

    pool: ProcessPool
    settings: LocalTunnelSettings
    my_peer: Peer
    on_circuit_removed: Callable[[Circuit, str], None]
    port: SharedPort | None
    _children_changed: Callable[[], None]
    register_anonymous_task: Callable[..., "asyncio.Future[Any]"]

    def __init__(self) -> None:
        self.circuits: dict[int, Circuit] = {}
        self.circuits_needed: dict[int, int] = defaultdict(int)
        self.groups_needed: dict[Lane, int] = {}
        self._backoffs: defaultdict[int, Backoff] = defaultdict(Backoff)
        self._builder: asyncio.TimerHandle | None = None
        self.way_out = WayOut()

    def slots_with_circuits(self, lane: Lane) -> set[int]:
        """Return the slots whose children may carry clients' datagrams: they have ready circuits of this lane."""
        return {slot_of(circuit.circuit_id) for circuit in self.circuits_for_new_peers(*lane)}

    def circuits_for_new_peers(self, hops: int, group: int = 0) -> list[Circuit]:
        """Return the ready circuits that new peers may use: those in children that are not being drained."""
        running = set(self.pool.running())
        return [
            circuit for circuit in self.find_circuits(hops=hops, group=group) if slot_of(circuit.circuit_id) in running
        ]

    def create_circuit(
        self,
        goal_hops: int,
        ctype: str = CIRCUIT_TYPE_DATA,
        exit_flags: Collection[int] | None = None,
        required_exit: Peer | None = None,
        info_hash: bytes | None = None,
        *,
        group: int = 0,
    ) -> Circuit | None:
        """Ask the least loaded child for a circuit; None when no child knows the peers for it."""
        if required_exit is not None and required_exit.mid == self.my_peer.mid:
            return None
        if exit_flags is not None:
            flags = set(exit_flags)
        else:
            flags = {PEER_FLAG_EXIT_BT} if ctype == CIRCUIT_TYPE_DATA else set()
        slot = self._slot_for_circuit(flags, required_exit, goal_hops)
        if slot is None:
            return None
        return self._create_in(
            slot,
            Lane(goal_hops, group),
            ctype=ctype,
            exit_flags=exit_flags,
            required_exit=required_exit,
            info_hash=info_hash,
        )

    def _create_in(
        self,
        slot: int,
        lane: Lane,
        *,
        ctype: str = CIRCUIT_TYPE_DATA,
        exit_flags: Collection[int] | None = None,
        required_exit: Peer | None = None,
        info_hash: bytes | None = None,
    ) -> Circuit:
        circuit_id = self._unused_circuit_id(slot)
        circuit = Circuit(circuit_id, lane.hops, ctype, required_exit, info_hash)
        set_group(circuit, lane.group)
        self.circuits[circuit_id] = circuit
        message = pb.BuildCircuit(
            circuit_id=circuit_id,
            goal_hops=lane.hops,
            group=lane.group,
            ctype=ctype,
            has_exit_flags=exit_flags is not None,
            exit_flags=exit_flags or (),
            infohash=info_hash or b"",
        )
        if required_exit is not None:
            message.required_exit.CopyFrom(peer_message(required_exit))
        self.pool.call(slot, "circuit", message).add_done_callback(
            lambda future: self._on_circuit_answered(circuit, future)
        )
        return circuit

    def remove_circuit(
        self, circuit_id: int, additional_info: str = "", remove_now: bool = False, destroy: bool | int = False
    ) -> "asyncio.Future[Any]":
        """Close the mirror of a circuit at once, and have the child remove the circuit."""
        circuit = self.circuits.get(circuit_id)
        if circuit is None:
            logger.warning("Cannot remove unknown circuit %08x", circuit_id)
            done = asyncio.get_running_loop().create_future()
            done.set_result(None)
            return done
        circuit.close(additional_info)
        removal = self._remove_circuit(circuit, additional_info, remove_now, int(destroy))
        return self.register_anonymous_task("remove_circuit", asyncio.ensure_future(removal))

    async def _remove_circuit(self, circuit: Circuit, reason: str, remove_now: bool, destroy_reason: int) -> None:
        """Ask the child to remove it; where no child has it, wait as long as py-ipv8 would."""
        message = pb.RemoveCircuit(circuit_id=circuit.circuit_id, reason=reason[:200], destroy_reason=destroy_reason)
        try:
            await self.pool.call(slot_of(circuit.circuit_id), "remove_circuit", message)
        except (CallError, KeyError) as error:
            logger.info("Circuit %08x is removed here alone: %s", circuit.circuit_id, error)
            if not remove_now:
                await asyncio.sleep(self.settings.remove_tunnel_delay)
        self._forget_circuit(circuit.circuit_id, reason)

    def set_max_circuits(self, most: int) -> None:
        """Keep `most` circuits from now on in each lane that kept the maximum so far."""
        before, self.settings.max_circuits = self.settings.max_circuits, most
        needed = {**{Lane(hops): count for hops, count in self.circuits_needed.items()}, **self.groups_needed}
        for lane, count in needed.items():
            if count == before:
                self.want_circuits(lane, most)

    def do_circuits(self) -> None:
        """Build what is wanted and missing, by child (`share_out`)."""
        now_s = time.monotonic()
        able = self._able_slots({PEER_FLAG_EXIT_BT}) or self._slots_that_make_detours(now_s)
        for lane, wanted in self.wanted_circuits().items():
            if able and self._backoffs[lane.hops].is_due(now_s):
                circuits = self.find_circuits(state=None, hops=lane.hops, group=lane.group)
                count = Counter(slot_of(circuit.circuit_id) for circuit in circuits)
                have = {slot: count[slot] for slot in able}
                for slot in share_out(wanted, have, self._expected(able, now_s)):
                    self._create_in(slot, lane)

    def _expected(self, able: Collection[int], now_s: float) -> int:
        """Return how many children will likely be able to build soon."""
        return sum(
            record.state in SOON_STATES and slot not in able and now_s - record.since_s < EXPECTED_S
            for slot, record in self.pool.records.items()
        )

    def _build_regularly(self) -> None:
        self.do_circuits()
        self._builder = asyncio.get_running_loop().call_later(BUILD_INTERVAL_S, self._build_regularly)

    def _slot_for_circuit(self, exit_flags: set[int], required_exit: Peer | None, goal_hops: int) -> int | None:
        """Return the least loaded of the children that know an exit to use, and enough nodes for the hops before."""
        able = self._slots_with_ids() if required_exit is not None else self._able_slots(exit_flags)
        able = [slot for slot in able if self._knows_hops(slot, required_exit, goal_hops)] or able
        loads = {slot: [0, 0] for slot in able}
        recent_s = time.time() - 5
        for circuit in self.circuits.values():
            load = loads.get(slot_of(circuit.circuit_id))
            if load is not None and circuit.state != CIRCUIT_STATE_CLOSING:
                load[0] += 1
                load[1] += circuit.bytes_down + circuit.bytes_up if circuit.last_activity > recent_s else 0
        return least_loaded(Load(count, recent, slot) for slot, (count, recent) in loads.items())

    def _knows_hops(self, slot: int, required_exit: Peer | None, goal_hops: int) -> bool:
        """Return whether a child knows a node for each hop."""
        known = {peer.public_key for peer in self.pool.pictures[slot].candidates.values()}
        if required_exit is not None:
            known.add(required_exit.public_key.key_to_bin())
        return len(known) >= goal_hops

    def _able_slots(self, exit_flags: set[int]) -> list[int]:
        """Return the children that know an exit with these flags."""
        return [
            slot
            for slot in self._slots_with_ids()
            if any(exit_flags <= set(peer.flags) for peer in self.pool.pictures[slot].candidates.values())
        ]

    def _slots_that_make_detours(self, now_s: float) -> list[int]:
        """Return the children that know nodes, once none of them has met an exit for a while (paths/way_out.py)."""
        able = self._able_slots({PEER_FLAG_RELAY})
        if able and self.way_out.met(now_s):
            logger.info("Nodes are known, and no exit yet.")
        waits = self.way_out.detour(1, now_s, exits_known=False) is None
        return [] if waits else able

    def _slots_with_ids(self) -> list[int]:
        """Return the children that have circuit ids to give: on a shared port a new one has none for a moment."""
        return [slot for slot in self.pool.running() if self.port is None or slot in self.port.buckets.owners]

    def _unused_circuit_id(self, slot: int) -> int:
        buckets = range(BUCKETS) if self.port is None else self.port.buckets.buckets_of(slot)
        while True:
            circuit_id = random_id(slot, SLOT_SHIFT, buckets)
            if circuit_id not in self.circuits:
                return circuit_id

    def _on_circuit_answered(self, circuit: Circuit, future: "asyncio.Future[Any]") -> None:
        error = future.exception()
        if error is not None:
            logger.info("Circuit %08x was not built: %s", circuit.circuit_id, error)
            self._forget_circuit(circuit.circuit_id, str(error))

    def _forget_circuit(self, circuit_id: int, reason: str) -> None:
        circuit = self.circuits.pop(circuit_id, None)
        if circuit is not None:
            if len(circuit.hops) < circuit.goal_hops:
                self._backoffs[asked_hops(circuit)].failed(time.monotonic())
            circuit.close(reason)
            self.on_circuit_removed(circuit, reason)
            self._children_changed()
