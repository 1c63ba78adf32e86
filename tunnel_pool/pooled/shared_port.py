"""One UDP port for all children of a node, and the overlay that the network meets there.

The kernel gives each cell to the child that has its circuit (steering/cells.py)
and everything else to us: `FrontCommunity` runs here, and what it learns the
children are told.
"""

import asyncio
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

from google.protobuf.message import Message
from ipv8.messaging.anonymization.tunnel import PEER_FLAG_RELAY

from tunnel_pool.overlay.ground.config import OverlayConfig
from tunnel_pool.overlay.ground.messages import address_message, introduction_state, peer_message, peer_of
from tunnel_pool.overlay.hidden_swarms.introduced import IntroducedSeeder
from tunnel_pool.overlay.node import open_front
from tunnel_pool.overlay.one_port.front import FrontCommunity
from tunnel_pool.overlay.paths.guards import GuardOrder, Guards
from tunnel_pool.overlay.paths.hop_choice import node_of
from tunnel_pool.overlay.wire.udp import bind_to_device, cannot_bind
from tunnel_pool.pool.policy import ChildState
from tunnel_pool.pool.pool import ProcessPool
from tunnel_pool.rpc import control_pb2 as pb
from tunnel_pool.rpc.drop_reasons import DropReason
from tunnel_pool.rpc.errors import CallError, RemoteError
from tunnel_pool.rpc.sockets import TUNNEL_SOCKET
from tunnel_pool.steering.cells import PY_IPV8, CellBuckets, bucket_of, cells_of, messages_like, messages_of, program
from tunnel_pool.steering.group import ReusePortGroup, SteeringError
from tunnel_pool.steering.slots import OWN_SOCKET, socket_of_slot
from tunnel_pool.system.errors import UserError

ASK_AGAIN_S = 5.0  # between two questions which of the circuits that stayed behind are left
MAX_HANDED = 64  # packets that a child has not taken yet; more are dropped and counted
MAX_FILTERED_PREFIXES = 8  # with more, the kernel's filter, which has little memory, looks at a part of each
MAX_FILTERED_LIKE = 1000  # with more, the filter lets in whatever looks like py-ipv8's
MAX_LINKING = 16  # rendezvous of two children at a time
COMING_STATES = (ChildState.WAITING, ChildState.STARTING)

logger = logging.getLogger(__name__)


class SharedPort:
    """Holds the sockets of the port, who has which bucket of circuit ids, and what the children are told."""

    def __init__(
        self,
        group: ReusePortGroup,
        front: FrontCommunity,
        pool: ProcessPool,
        slots: Iterable[int],
        guards: Guards | None = None,
    ) -> None:
        self.front = front
        self._guards = guards
        self._guard_order = None if guards is None else GuardOrder((), ())
        self.drops: Counter[str] = Counter()
        self._group = group
        self._pool = pool
        self.buckets = CellBuckets(list(slots))
        self._told: dict[bytes, pb.PeerInfo] = {}
        self._handed: Counter[int] = Counter()  # packets that each child has not taken yet, by slot
        self._introduced: dict[int, dict[IntroducedSeeder, int]] = {}  # by slot, one circuit to each
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._filtered: list[bytes] = []
        self._linking = 0
        front.guard_order = lambda: self._guard_order
        front.deliver = self._deliver
        front.on_candidates_changed = self._tell_of_peers
        self._filter_own()
        self._sharer = self._loop.create_task(self._share_out_when_changed())

    @classmethod
    async def open(
        cls, config: OverlayConfig, pool: ProcessPool, slots: Iterable[int], guards: Guards | None = None
    ) -> "SharedPort":
        """Raises UserError when the address can't be had."""
        host, port = config.listen
        try:
            group = ReusePortGroup(host, port, lambda sock: bind_to_device(sock, config.device))
        except (OSError, SteeringError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise UserError(cannot_bind(host, port, config.device, why)) from None
        try:
            return cls(group, await open_front(config, group.sockets[OWN_SOCKET]), pool, slots, guards)
        except BaseException:
            group.close()
            raise

    async def close(self) -> None:
        """Close the port; no child may be left."""
        self._sharer.cancel()
        await self.front.unload()
        self._group.close()

    @property
    def address(self) -> tuple[str, int]:
        host, port = self.front.endpoint.get_address()
        return host, port

    def dropped(self) -> Counter[str]:
        return self.drops + self.front.counters + Counter(udp_kernel_dropped=self._group.dropped())

    # A child's life

    def prepare_child(self, slot: int, message: pb.Create) -> None:
        """Give a new child its socket, its predecessor's where there was one, and say so in its RPC_CREATE."""
        front = self.front
        try:
            self._add_sockets(slot)
            self._pool.give(slot, TUNNEL_SOCKET, self._group.sockets[socket_of_slot(slot)])
        except OSError as error:  # the child refuses to start then
            logger.warning("Child %d gets no socket: %s", slot, error.strerror)
        message.shared_port = True
        message.buckets.extend(self.buckets.buckets_of(slot))
        message.listen.CopyFrom(address_message(self.address))
        message.lan.CopyFrom(address_message(front.my_estimated_lan))
        message.wan.CopyFrom(address_message(front.my_estimated_wan))

    def _add_sockets(self, slot: int) -> None:
        """Raises OSError."""
        while len(self._group.sockets) <= socket_of_slot(slot):
            self._group.let_in(self._group.add(), cells_of(self.front.get_prefix()))
        self._steer()

    def child_ready(self, slot: int) -> None:
        self._handed[slot] = 0
        self._pool.tell(slot, "own_buckets", pb.OwnBuckets(buckets=self.buckets.buckets_of(slot)))
        self._tell(slot, pb.MeetPeers(full=True, known=self._told.values()))
        self._changed.set()

    def child_gone(self, slot: int) -> None:
        if self.buckets.still_live(slot, ()):
            self._steer()
        self._changed.set()

    def pool_changed(self) -> None:
        """Share the buckets out anew, after a child began to be drained or was taken back."""
        self._changed.set()

    # Whom the children know

    def _tell_of_peers(self) -> None:
        now = {}
        for peer, flags in self.front.candidates.items():
            info = peer_message(peer)
            info.flags.extend(flags)
            now[info.public_key] = info
        changed = [info for key, info in now.items() if self._told.get(key) != info]
        lost = self._told.keys() - now.keys()
        self._told = now
        self._choose_guards()
        for slot in self._pool.working():
            self._tell(slot, pb.MeetPeers(known=changed, lost=lost))

    def _choose_guards(self) -> None:
        if self._guards is not None:
            relays = map(node_of, self.front.get_candidates(PEER_FLAG_RELAY))
            self._guard_order = self._guards.choose(relays, time.time())

    def _tell(self, slot: int, message: pb.MeetPeers) -> None:
        if self._guard_order is not None:
            message.has_guards = True
            message.first_hops.extend(self._guard_order.first)
            message.second_hops.extend(self._guard_order.second)
            message.primary_hops = self._guard_order.primary
        message.lan.CopyFrom(address_message(self.front.my_estimated_lan))
        message.wan.CopyFrom(address_message(self.front.my_estimated_wan))
        self._pool.tell(slot, "meet_peers", message)

    # What is a child's

    def _deliver(self, circuit_id: int, source: tuple[str, int], packet: bytes) -> None:
        slot = self.buckets.slot_of(circuit_id)
        if slot not in self._pool.working() or self._handed[slot] >= MAX_HANDED:
            self.drops[DropReason.PACKET_FOR_CHILD_DROPPED] += 1
            return
        self._handed[slot] += 1

        def taken(future: "asyncio.Future[Any]") -> None:
            self._handed[slot] = max(0, self._handed[slot] - 1)

        handed = self._pool.tell(slot, "hand_packet", pb.HandPacket(source=address_message(source), packet=packet))
        handed.add_done_callback(taken)

    def introduced(self, slot: int) -> None:
        """Announce for whom the child is an introduction point now."""
        seeders = {
            IntroducedSeeder(*seeder): known.circuit_id
            for known in self._pool.pictures[slot].exits.values()
            for seeder in known.introduced
        }
        if seeders != self._introduced.get(slot, {}):
            self._introduced[slot] = seeders
            by_children: dict[IntroducedSeeder, list[int]] = {}
            for some in self._introduced.values():
                for seeder, circuit_id in some.items():
                    by_children.setdefault(seeder, []).append(circuit_id)
            self.front.set_introduced(by_children)
            self._filter_own()

    def _filter_own(self) -> None:
        prefixes = sorted(self.front.prefixes())
        if len(prefixes) > MAX_FILTERED_LIKE:
            prefixes = [PY_IPV8]
        if prefixes == self._filtered:
            return
        messages = messages_of if len(prefixes) <= MAX_FILTERED_PREFIXES else messages_like
        try:
            self._group.let_in(OWN_SOCKET, messages(prefixes))
        except OSError as error:  # no memory for the program (net.core.optmem_max)
            logger.info("What comes to the port is filtered as before: %s", error.strerror)
            return
        self._filtered = prefixes

    # What the children ask

    async def called(self, slot: int, name: str, message: Any) -> Message:
        """Raises RemoteError."""
        match name:
            case "look_up_swarm":
                return await self._look_up_swarm(message)
            case "reach_peer":
                peer = peer_of(message.peer)
                await self.front.dht_peer_lookup(peer.mid, peer=peer)
                return pb.PeerReached()
            case "link_rendezvous":
                return await self._link_rendezvous(slot, message)
        raise RemoteError(pb.ERROR_UNIMPLEMENTED, f"call {name or 'without a name'} is not known here")

    async def _look_up_swarm(self, message: pb.LookUpSwarm) -> pb.SwarmLookedUp:
        points = await self.front.look_up_swarm(message.infohash)
        found = [pb.IntroductionPoint(**introduction_state(point)._asdict()) for point in points]
        return pb.SwarmLookedUp(introduction_points=found)

    async def _link_rendezvous(self, slot: int, message: pb.LinkRendezvous) -> pb.RendezvousLinked:
        """Find the child with the cookie, which may have it so recently that RPC_SYNC has not told yet."""
        if self._linking >= MAX_LINKING:
            raise RemoteError(pb.ERROR_FAILED, "too many at a time")
        self._linking += 1
        try:
            return await self._link_with_another(slot, message)
        finally:
            self._linking -= 1

    async def _link_with_another(self, slot: int, message: pb.LinkRendezvous) -> pb.RendezvousLinked:
        pictures = self._pool.pictures
        others = [other for other in self._pool.working() if other != slot]
        others.sort(key=lambda other: all(exit_.cookie != message.cookie for exit_ in pictures[other].exits.values()))
        for other in others:
            try:
                linked: pb.RendezvousLinked = await self._pool.call(other, "link_rendezvous", message)
            except (CallError, KeyError):
                continue
            return linked
        raise RemoteError(pb.ERROR_NO_CIRCUIT, "no child has that cookie")

    # Who has which buckets

    async def _share_out_when_changed(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                unsettled = await self._share_out()
            except Exception:
                logger.exception("Circuit ids were not shared out anew; please report it")
                unsettled = True
            if unsettled:
                self._loop.call_later(ASK_AGAIN_S, self._changed.set)

    async def _share_out(self) -> bool:
        """Spread the buckets evenly; live circuits stay with the giver. Return whether to run again later."""
        running = self._pool.running()
        coming = [slot for slot in self._pool.in_state(*COMING_STATES) if slot in self.buckets.owners]
        moves = self.buckets.moves([*running, *coming])
        leaving: dict[int, set[int]] = defaultdict(set)
        for move in moves:
            leaving[move.giver].add(move.bucket)
        live: dict[int, list[int]] = defaultdict(list)
        for giver in {*leaving, *self.buckets.stayed.values()}.intersection(self._pool.working()):
            kept = [bucket for bucket in self.buckets.buckets_of(giver) if bucket not in leaving[giver]]
            elsewhere = await self._own(giver, kept)
            for circuit_id in elsewhere:
                if bucket_of(circuit_id) in leaving[giver]:
                    live[bucket_of(circuit_id)].append(circuit_id)
            self.buckets.still_live(giver, elsewhere)
        left = self.buckets.move(moves, live)
        steered = self._steer()
        for slot in {move.taker for move in moves} | {move.giver for move in left}:
            if slot in self._pool.working():
                await self._own(slot, self.buckets.buckets_of(slot))
        return bool(left or self.buckets.stayed or not steered)

    async def _own(self, slot: int, buckets: Iterable[int]) -> list[int]:
        """Tell a child its buckets; return the ids of its live circuits in other buckets."""
        try:
            reply = await self._pool.call(slot, "own_buckets", pb.OwnBuckets(buckets=buckets))
        except (CallError, KeyError):
            return []  # the child is gone, or about to be
        return list(reply.circuit_ids)

    def _steer(self) -> bool:
        try:
            self._group.steer(program(self.buckets, len(self._group.sockets)))
        except OSError as error:  # no memory for the program (net.core.optmem_max)
            logger.warning("Cells are steered as before: %s", error.strerror)
            return False
        return True
