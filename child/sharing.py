"""The calls of a child that shares the node's port, both ways."""

from collections.abc import Callable

from ipv8.messaging.anonymization.tunnel import IntroductionPoint
from ipv8.peer import Peer

from tunnel_pool.child.control import ControlStream, Handler
from tunnel_pool.overlay.ground.messages import address_of, introduction_point, peer_message, peer_of
from tunnel_pool.overlay.one_port.sharing import RendezvousHalf, SharingCommunity
from tunnel_pool.overlay.paths.guards import GuardOrder
from tunnel_pool.rpc import control_pb2 as pb
from tunnel_pool.rpc.errors import CallError, RemoteError


class MainByCalls:
    """Asks the main process over the control stream (tunnel_pool.overlay.one_port.sharing.MainProcess)."""

    def __init__(self, control: ControlStream) -> None:
        self._control = control

    async def look_up_swarm(self, info_hash: bytes) -> list[IntroductionPoint]:
        try:
            reply = await self._control.call("look_up_swarm", pb.LookUpSwarm(infohash=info_hash))
        except CallError:
            return []
        return [introduction_point(point) for point in reply.introduction_points]

    async def reach_peer(self, peer: Peer) -> None:
        try:
            await self._control.call("reach_peer", pb.ReachPeer(peer=peer_message(peer)))
        except CallError:
            return

    async def link_rendezvous(self, cookie: bytes, half: RendezvousHalf) -> RendezvousHalf | None:
        try:
            message = pb.LinkRendezvous(cookie=cookie, half=_half_message(half))
            reply = await self._control.call("link_rendezvous", message)
        except CallError:
            return None
        return _half(reply.half)


class SharedPortCalls:
    """Answers the main process' calls to a child that shares the port; `community()` is there after RPC_CREATE."""

    def __init__(self, community: Callable[[], object]) -> None:
        self._community = community
        self.handlers: dict[str, Handler] = {
            "own_buckets": self._on_own_buckets,
            "meet_peers": self._on_meet_peers,
            "hand_packet": self._on_hand_packet,
            "link_rendezvous": self._on_link_rendezvous,
        }

    def _sharing(self) -> SharingCommunity:
        community = self._community()
        if not isinstance(community, SharingCommunity):
            raise RemoteError(pb.ERROR_BAD_REQUEST, "this child has a port of its own")
        return community

    async def _on_own_buckets(self, message: pb.OwnBuckets) -> pb.BucketsOwned:
        return pb.BucketsOwned(circuit_ids=self._sharing().own_buckets(message.buckets))

    async def _on_meet_peers(self, message: pb.MeetPeers) -> pb.PeersMet:
        community = self._sharing()
        if message.HasField("wan"):
            community.my_estimated_lan = address_of(message.lan)
            community.my_estimated_wan = address_of(message.wan)
        guards = (
            GuardOrder(message.first_hops, message.second_hops, message.primary_hops) if message.has_guards else None
        )
        known = {peer_of(info): list(info.flags) for info in message.known}
        community.meet(known, message.lost, message.full, guards)
        return pb.PeersMet()

    async def _on_hand_packet(self, message: pb.HandPacket) -> pb.PacketTaken:
        self._sharing().on_packet((address_of(message.source), message.packet))
        return pb.PacketTaken()

    async def _on_link_rendezvous(self, message: pb.LinkRendezvous) -> pb.RendezvousLinked:
        ours = self._sharing().link_here(message.cookie, _half(message.half))
        if ours is None:
            raise RemoteError(pb.ERROR_NO_CIRCUIT, "no rendezvous point for that cookie here")
        return pb.RendezvousLinked(half=_half_message(ours))


def _half_message(half: RendezvousHalf) -> pb.RendezvousHalf:
    keys = pb.SessionKeys(
        key_forward=half.keys.key_forward,
        key_backward=half.keys.key_backward,
        salt_forward=half.keys.salt_forward,
        salt_backward=half.keys.salt_backward,
        counter_backward=half.keys.salt_explicit_backward,
    )
    return pb.RendezvousHalf(circuit_id=half.circuit_id, neighbour=peer_message(half.neighbour), keys=keys)


def _half(message: pb.RendezvousHalf) -> RendezvousHalf:
    from tunnel_pool.overlay.wire.session_keys import SessionKeys  # 2 MB, for what few children ever do

    keys = message.keys
    lent = SessionKeys(
        keys.key_forward,
        keys.key_backward,
        keys.salt_forward,
        keys.salt_backward,
        salt_explicit_backward=keys.counter_backward,
    )
    return RendezvousHalf(message.circuit_id, peer_of(message.neighbour), lent)
