"""A child's TunnelCommunity when the children of a node share its UDP port.

The kernel gives each child the cells of its buckets of circuit ids
(steering/cells.py). The main process receives all other datagrams
(overlay/one_port/front.py), tells the children which peers it knows, and hands
each child its messages. A rendezvous may join circuits of two children: each
child has one half, opens a cell with the keys of that half, and seals it with
the keys of the other half.
"""

import math
import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Protocol

from ipv8.messaging.anonymization.caches import CreateRequestCache
from ipv8.messaging.anonymization.exit_socket import TunnelExitSocket
from ipv8.messaging.anonymization.payload import CreatePayload, LinkE2EPayload, LinkedE2EPayload
from ipv8.messaging.anonymization.tunnel import FORWARD, Circuit, Hop, IntroductionPoint, RelayRoute
from ipv8.peer import Peer

from tunnel_pool.overlay.community import LocalTunnelCommunity, LocalTunnelSettings
from tunnel_pool.overlay.paths.guards import GuardOrder
from tunnel_pool.overlay.peers.introductions import PinnedNetwork
from tunnel_pool.rpc.drop_reasons import DropReason
from tunnel_pool.steering.cells import bucket_of
from tunnel_pool.steering.layout import PAYLOAD_AT


class RendezvousHalf(NamedTuple):
    """A circuit that ends at a child, to be one half of an end-to-end circuit."""

    circuit_id: int
    neighbour: Peer
    keys: Any  # overlay.wire.session_keys.SessionKeys


class MainProcess(Protocol):
    """Names what a child asks of the main process, which hears everything but cells."""

    async def look_up_swarm(self, info_hash: bytes) -> list[IntroductionPoint]: ...

    async def reach_peer(self, peer: Peer) -> None:
        """Have the peer send us something, so that its NAT lets us in."""

    async def link_rendezvous(self, cookie: bytes, half: RendezvousHalf) -> RendezvousHalf | None:
        """Have the child with this cookie link its half with this one; returns its half, None when none did."""


class _DhtOfMain:
    """Asks the DHT by way of the main process, as py-ipv8's provider does (dht/provider.py)."""

    announce_pause_s = 0.0  # it announces nobody

    def __init__(self, main: MainProcess) -> None:
        self._main = main

    async def peer_lookup(self, mid: bytes, peer: Peer | None = None) -> None:
        if peer is not None:
            await self._main.reach_peer(peer)

    async def lookup(self, info_hash: bytes) -> tuple[bytes, list[IntroductionPoint]]:
        return info_hash, await self._main.look_up_swarm(info_hash)

    async def announce(self, info_hash: bytes, intro_point: IntroductionPoint) -> bool:
        """Do nothing more: RPC_SYNC tells whom we introduce, and the main process announces it."""
        return True


class SharingSettings(LocalTunnelSettings):
    main: MainProcess
    buckets: Iterable[int]


class SharingCommunity(LocalTunnelCommunity):
    """Shares a port with others: `meet` tells it whom it knows, `own_buckets` which circuit ids are its own."""

    settings_class = SharingSettings

    def __init__(self, settings: SharingSettings) -> None:
        self._main = settings.main
        self._lent: set[int] = set()  # ids of others' halves of rendezvous of ours
        self._linking: set[int] = set()  # ids of circuits whose keys were lent
        super().__init__(settings)
        self.buckets = sorted(settings.buckets)
        self.dht_provider = _DhtOfMain(settings.main)
        # The main process finds out, for all.
        self.cancel_pending_task("discover_lan_addresses")

    # Ids

    def own_buckets(self, buckets: Iterable[int]) -> list[int]:
        """Choose and accept only circuit ids in these buckets from now on; return the live ids outside of them."""
        self.buckets = sorted(buckets)
        own = set(self.buckets)
        return [circuit_id for circuit_id in self._live_ids() if bucket_of(circuit_id) not in own]

    def _live_ids(self) -> set[int]:
        """Return the ids that cells come to us with, or are about to."""
        asked = self.request_cache._identifiers.values()  # noqa: SLF001
        extending = {cache.to_circuit_id for cache in asked if isinstance(cache, CreateRequestCache)}
        return {*self.circuits, *self.relay_from_to, *self.exit_sockets, *extending} - self._lent

    def create_circuit(self, goal_hops: int, *args: Any, **kwargs: Any) -> Circuit | None:
        """Create a circuit as py-ipv8 does; a child that is to end has no buckets, and so no id for one."""
        return super().create_circuit(goal_hops, *args, **kwargs) if self.buckets else None

    async def on_extend(self, source_address: tuple[str, int], data: bytes, circuit_id: int | None) -> None:
        if not self.buckets:
            self.counters[DropReason.EXTEND_WITHOUT_BUCKETS] += 1
            return
        await super().on_extend(source_address, data, circuit_id)

    async def should_join_circuit(self, create_payload: CreatePayload, previous_node_address: tuple[str, int]) -> bool:
        if bucket_of(create_payload.circuit_id) not in self.buckets:
            self.counters[DropReason.CREATE_OF_ANOTHER_BUCKET] += 1
            return False
        return bool(await super().should_join_circuit(create_payload, previous_node_address))

    # Whom we know

    def meet(
        self, known: Mapping[Peer, list[int]], lost: Iterable[bytes], full: bool, guards: GuardOrder | None = None
    ) -> None:
        """Add or update the `known` peers; remove those with the `lost` public keys and, if `full`, all not in `known`.

        Circuits begin at these `guards` from now on.
        """
        self.guard_order = lambda: guards
        if known:
            self.way_out.met(time.monotonic())
        knew_none = not self.candidates
        gone = {peer for peer in self.candidates if peer not in known} if full else set()
        by_key = self.network.get_verified_by_public_key_bin
        gone |= {peer for key in lost if (peer := by_key(key)) is not None}
        for peer in gone:
            self.network.remove_peer(peer)
            self.candidates.pop(peer, None)
        for peer, flags in known.items():
            peer.last_response = math.inf  # the main process finds out whether the peer lives
            self.network.add_verified_peer(peer)
            self.network.discover_services(peer, [self.community_id])
            if (verified := by_key(peer.public_key.key_to_bin())) is not None:
                PinnedNetwork.move(verified, peer.address)
            self.candidates[peer] = flags
        if knew_none and self.candidates:
            self.on_changed()

    # A rendezvous of two children's circuits

    def on_link_e2e(self, source_address: tuple[str, int], data: bytes, circuit_id: int | None) -> None:
        """Link as py-ipv8 does; the cookie may be another child's."""
        payload, _ = self.serializer.unpack_serializable(LinkE2EPayload, data, offset=PAYLOAD_AT)
        if payload.cookie in self.rendezvous_point_for or circuit_id is None:
            super().on_link_e2e(source_address, data, circuit_id)
        else:
            self.register_anonymous_task(
                "link elsewhere", self._link_elsewhere, source_address, payload, circuit_id, ignore=(Exception,)
            )

    async def _link_elsewhere(self, source_address: tuple[str, int], payload: LinkE2EPayload, circuit_id: int) -> None:
        exit_socket = self.exit_sockets.get(circuit_id)
        if exit_socket is None or exit_socket.enabled or circuit_id in self._linking:
            self.counters[DropReason.LINK_REFUSED] += 1
            return
        # Lend the keys only once: a second borrower would begin at the same counter and repeat nonces.
        self._linking.add(circuit_id)
        theirs = await self._main.link_rendezvous(payload.cookie, _half_of(exit_socket))
        if theirs is None or self.exit_sockets.get(circuit_id) is not exit_socket or exit_socket.enabled:
            self.counters[DropReason.LINK_REFUSED] += 1
            return
        self.send_cell(source_address, LinkedE2EPayload(circuit_id, payload.identifier))
        self._link(exit_socket, theirs)

    def link_here(self, cookie: bytes, theirs: RendezvousHalf) -> RendezvousHalf | None:
        """Link our rendezvous point with another child's circuit; returns our half, None when there is none."""
        exit_socket = self.rendezvous_point_for.get(cookie)
        if exit_socket is None or exit_socket.enabled or self.exit_sockets.get(exit_socket.circuit_id) is None:
            return None
        ours = _half_of(exit_socket)
        self._link(exit_socket, theirs)
        return ours

    def _link(self, exit_socket: TunnelExitSocket, theirs: RendezvousHalf) -> None:
        ours, hop = exit_socket.circuit_id, exit_socket.hop
        self.remove_exit_socket(ours, "linking circuit")
        self._lent.add(theirs.circuit_id)
        self.relay_from_to[ours] = RelayRoute(theirs.circuit_id, Hop(theirs.neighbour, hop.keys), FORWARD, True)
        self.relay_from_to[theirs.circuit_id] = RelayRoute(ours, Hop(hop.peer, theirs.keys), FORWARD, True)

    def do_remove(self) -> None:
        """Remove what py-ipv8 removes; of a rendezvous with another child's circuit we see one direction."""
        self._lent.intersection_update(self.relay_from_to)
        self._linking.intersection_update([*self.exit_sockets, *self.relay_from_to])
        for lent in self._lent:
            theirs = self.relay_from_to[lent]
            if (ours := self.relay_from_to.get(theirs.circuit_id)) is not None:
                ours.last_activity = theirs.last_activity = max(ours.last_activity, theirs.last_activity)
        super().do_remove()


def _half_of(exit_socket: TunnelExitSocket) -> RendezvousHalf:
    from tunnel_pool.overlay.wire.session_keys import lend  # 2 MB, for what few children ever do

    return RendezvousHalf(exit_socket.circuit_id, exit_socket.hop.peer, lend(exit_socket.hop.keys))
