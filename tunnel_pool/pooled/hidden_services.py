"""Hidden swarms over a pool: each is the work of one child (RPC_MONITOR), and of another when that one dies."""

import asyncio
import hashlib
import logging
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from ipv8.keyvault.crypto import default_eccrypto
from ipv8.messaging.anonymization.pex import PexCommunity
from ipv8.messaging.anonymization.tunnel import (
    CIRCUIT_TYPE_IP_SEEDER,
    CIRCUIT_TYPE_RP_DOWNLOADER,
    DESTROY_REASON_UNNEEDED,
    Circuit,
    RelayRoute,
    Swarm,
)
from ipv8.peer import Peer

from tunnel_pool.overlay.ground.config import slot_of
from tunnel_pool.overlay.ground.end_to_end import END_TO_END, EndToEndAddresses, end_to_end_address
from tunnel_pool.overlay.ground.lanes import Lane
from tunnel_pool.overlay.ground.messages import peer_message
from tunnel_pool.overlay.ground.offers import OWN_CIRCUITS
from tunnel_pool.pool.owners import SwarmOwners
from tunnel_pool.pool.pool import ProcessPool
from tunnel_pool.pooled.mirror import MirroredExit, PeerOf, RouteMirror, update_swarm
from tunnel_pool.pooled.swarm_lists import SwarmLists
from tunnel_pool.rpc import control_pb2 as pb
from tunnel_pool.rpc.errors import CallError
from tunnel_pool.rpc.sync import SyncState

ESTIMATE_TIMEOUT_S = 60.0  # several rounds of requests, with a time-out each

Route = TypeVar("Route")

logger = logging.getLogger(__name__)

OnPeer = Callable[[tuple[str, int]], Any]
"""Hears where a new end-to-end peer is found: an address for libtorrent's SOCKS5 proxy."""


def lookup_hash(infohash: bytes) -> bytes:
    """Return the hash under which a torrent's introduction points are found (Tribler's get_lookup_info_hash)."""
    return hashlib.sha1(b"tribler anonymous download" + infohash.hex().encode()).digest()  # noqa: S324


class PooledHiddenServices(EndToEndAddresses):
    """The part of py-ipv8's HiddenTunnelCommunity that callers use; `swarms` are mirrors."""

    pool: ProcessPool
    circuits: dict[int, Circuit]
    remove_circuit: Callable[..., "asyncio.Future[Any]"]
    peer_of: PeerOf

    def __init__(self) -> None:
        self.swarms: dict[bytes, Swarm] = {}
        self.pex: dict[bytes, PexCommunity] = {}
        self.e2e_callbacks: dict[bytes, OnPeer | None] = {}
        self._owners = SwarmOwners()
        self._lists = SwarmLists(self._tell_of_swarms, lambda: self.pool.running())  # noqa: PLW0108 - no pool yet
        self._sharing: asyncio.Handle | None = None  # the call that shares the swarms out in this turn of the loop
        self._groups: dict[bytes, int] = {}  # isolation groups
        self._callbacks: set[asyncio.Future[Any]] = set()  # kept until done

    def join_swarm(
        self, info_hash: bytes, hops: int, callback: OnPeer | None = None, seeding: bool = True, group: int = 0
    ) -> None:
        """Join as in py-ipv8, in an isolation group; a seeder's child makes the introduction point unasked."""
        if info_hash in self.swarms:
            self.leave_swarm(info_hash)
        seeder_key = default_eccrypto.generate_key("curve25519") if seeding else None
        self.swarms[info_hash] = Swarm(info_hash, hops, _asked_by_its_child, seeder_key)
        self.e2e_callbacks[info_hash] = callback
        self._groups[info_hash] = group
        self._share_soon()

    def leave_swarm(self, info_hash: bytes) -> None:
        for circuit in [each for each in self.circuits.values() if each.info_hash == info_hash]:
            if circuit.ctype in END_TO_END or (circuit.ctype == CIRCUIT_TYPE_IP_SEEDER and self._is_alone(circuit)):
                self.remove_circuit(circuit.circuit_id, "leaving hidden swarm", destroy=DESTROY_REASON_UNNEEDED)
        self.swarms.pop(info_hash, None)
        self.e2e_callbacks.pop(info_hash, None)
        self._groups.pop(info_hash, None)
        self._share_soon()

    def owner_of(self, info_hash: bytes) -> int | None:
        """Return the slot of the child that has this swarm, None while none has it."""
        if self._sharing is not None:
            self._share_swarms()
        return self._owners.of.get(info_hash)

    def is_offered(self, info_hash: bytes) -> bool:
        """Return whether an introduction point names us as a seeder of this swarm."""
        slot = self._owners.of.get(info_hash)
        state = self.pool.pictures[slot].swarms.get(info_hash) if slot in self.pool.pictures else None
        return state is not None and state.offered

    def _is_alone(self, circuit: Circuit) -> bool:
        """Return whether a circuit to an introduction point offers one swarm; of many, the child ends what it can."""
        slot = slot_of(circuit.circuit_id)
        there = (each for each in self.circuits.values() if each.ctype == CIRCUIT_TYPE_IP_SEEDER)
        return sum(slot_of(each.circuit_id) == slot for each in there) < OWN_CIRCUITS

    def _share_soon(self) -> None:
        """Share the swarms out before the loop does anything else, as many may come at once; now, where none runs."""
        if self._sharing is not None:
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self._share_swarms()
        else:
            self._sharing = loop.call_soon(self._share_swarms)

    def _share_swarms(self) -> None:
        """Tell the children whose list of swarms has changed."""
        if self._sharing is not None:
            self._sharing.cancel()
            self._sharing = None
        lanes = {info_hash: self.lane_of_swarm(swarm) for info_hash, swarm in self.swarms.items()}
        for slot in self._owners.assign(lanes, self.pool.running()):
            self._lists.changed(slot)

    def lane_of_swarm(self, swarm: Swarm) -> Lane:
        return Lane(swarm.hops, self._groups[swarm.info_hash])

    def _take_swarms_back(self, slot: int) -> None:
        """Let a child go on with the swarms that it had before it was drained."""
        had = [info_hash for info_hash in self.pool.pictures[slot].swarms if info_hash in self.swarms]
        for other in self._owners.give(had, slot) & set(self.pool.running()):
            self._lists.changed(other)

    def _tell_of_swarms(self, slot: int) -> "asyncio.Future[pb.Monitored]":
        swarms = [self.swarms[info_hash] for info_hash in self._owners.swarms_of(slot)]
        message = pb.Monitor(swarms=[_swarm_message(swarm, self._groups[swarm.info_hash]) for swarm in swarms])
        return self.pool.call(slot, "monitor", message)

    async def create_introduction_point(self, info_hash: bytes, required_ip: Peer | None = None) -> None:
        """Ask the swarm's child for an introduction point, at `required_ip` if given; it also makes some unasked."""
        slot = self.owner_of(info_hash)
        if slot is None or not self.swarms[info_hash].seeding:
            logger.warning("No introduction point for %s: no child seeds it", info_hash.hex())
            return
        message = pb.Introduce(infohash=info_hash)
        if required_ip is not None:
            message.required.CopyFrom(peer_message(required_ip))
        await self.pool.call(slot, "introduce", message)

    async def estimate_swarm_size(self, info_hash: bytes, hops: int = 1, max_requests: int = 10) -> int:
        """Estimate as py-ipv8 does. Raises CallError."""
        slot = self.owner_of(info_hash)
        if slot is None:
            running = self.pool.running()
            if not running:
                return 0
            slot = running[0]
        message = pb.EstimateSwarm(infohash=info_hash, hops=int(hops), max_requests=max_requests)
        return int((await self.pool.call(slot, "estimate_swarm", message, ESTIMATE_TIMEOUT_S)).seeders)

    def mirror_swarms(self, picture: SyncState, infohashes: Iterable[bytes]) -> None:
        for infohash in infohashes:
            if infohash in self.swarms and infohash in picture.swarms:
                update_swarm(self.swarms[infohash], picture.swarms[infohash], self.circuits)

    # What the children do for others

    @property
    def relay_from_to(self) -> dict[int, RelayRoute]:
        return self._routes().relays

    @property
    def exit_sockets(self) -> dict[int, MirroredExit]:
        return self._routes().exits

    @property
    def intro_point_for(self) -> dict[bytes, tuple[MirroredExit, bytes]]:
        return self._routes().introduced

    @property
    def rendezvous_point_for(self) -> dict[bytes, MirroredExit]:
        return self._routes().rendezvous

    def _routes(self) -> RouteMirror:
        return RouteMirror(self.pool.pictures.values(), self.peer_of)

    def remove_relay(
        self, circuit_id: int, additional_info: str = "", remove_now: bool = False, destroy: bool | int = False
    ) -> "asyncio.Future[RelayRoute | None]":
        """Ask the child that has it to remove one direction of a relayed circuit."""
        return asyncio.ensure_future(
            self._remove_route(self.relay_from_to.get(circuit_id), circuit_id, False, additional_info, int(destroy))
        )

    def remove_exit_socket(
        self, circuit_id: int, additional_info: str = "", remove_now: bool = False, destroy: bool | int = False
    ) -> "asyncio.Future[MirroredExit | None]":
        """Ask the child at which it ends to remove a circuit of another node."""
        return asyncio.ensure_future(
            self._remove_route(self.exit_sockets.get(circuit_id), circuit_id, True, additional_info, int(destroy))
        )

    async def _remove_route(
        self, route: Route | None, circuit_id: int, is_exit: bool, reason: str, destroy_reason: int
    ) -> Route | None:
        pictures = self.pool.pictures.items()
        slots = [slot for slot, known in pictures if circuit_id in (known.exits if is_exit else known.relays)]
        message = pb.RemoveRoute(
            circuit_id=circuit_id, exit=is_exit, reason=reason[:200], destroy_reason=destroy_reason
        )
        try:
            for slot in slots:
                await self.pool.call(slot, "remove_route", message)
        except (CallError, KeyError) as error:
            logger.info("Route %08x is not removed: %s", circuit_id, error)
        return route if slots else None

    def _end_to_end_linked(self, circuit: Circuit) -> None:
        """Act on a circuit of ours that a child has linked with a seeder's."""
        callback = self.e2e_callbacks.get(circuit.info_hash or b"")
        if callback is not None and circuit.ctype == CIRCUIT_TYPE_RP_DOWNLOADER:
            result = callback(end_to_end_address(circuit))
            if asyncio.iscoroutine(result):
                task = asyncio.ensure_future(result)
                self._callbacks.add(task)
                task.add_done_callback(self._callbacks.discard)


def _asked_by_its_child(*arguments: object) -> Any:
    raise NotImplementedError("a swarm is looked up by its child")


def _swarm_message(swarm: Swarm, group: int) -> pb.Swarm:
    state = pb.SWARM_STATE_SEEDING if swarm.seeding else pb.SWARM_STATE_DOWNLOADING
    return pb.Swarm(infohash=swarm.info_hash, hops=swarm.hops, state=state, group=group)
