"""py-ipv8's objects in control messages: what the main process and its children both write and read."""

from ipv8.keyvault.crypto import default_eccrypto
from ipv8.messaging.anonymization.tunnel import IntroductionPoint
from ipv8.messaging.interfaces.udp.endpoint import UDPv4Address
from ipv8.peer import Peer

from tunnel_pool.rpc import control_pb2 as pb
from tunnel_pool.rpc.sync import IntroductionState


def address_message(address: tuple[str, int]) -> pb.Address:
    return pb.Address(host=address[0], port=address[1])


def address_of(message: pb.Address) -> UDPv4Address:
    return UDPv4Address(message.host, message.port)


def peer_message(peer: Peer) -> pb.PeerInfo:
    return pb.PeerInfo(public_key=peer.public_key.key_to_bin(), address=address_message(peer.address))


def peer_of(message: pb.PeerInfo) -> Peer:
    return Peer(default_eccrypto.key_from_public_bin(message.public_key), address_of(message.address))


def introduction_state(point: IntroductionPoint) -> IntroductionState:
    return IntroductionState(
        public_key=point.peer.public_key.key_to_bin(),
        host=point.peer.address[0],
        port=point.peer.address[1],
        seeder_key=point.seeder_pk,
        source=point.source,
        last_seen=point.last_seen,
    )


def introduction_point(state: IntroductionState | pb.IntroductionPoint) -> IntroductionPoint:
    peer = Peer(state.public_key, UDPv4Address(state.host, state.port))
    return IntroductionPoint(peer, state.seeder_key, state.source, state.last_seen)
