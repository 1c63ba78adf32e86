"""The nodes that the children know, and the node's own address: a part of PooledTunnelCommunity."""

from collections.abc import Callable

from ipv8.messaging.anonymization.tunnel import Hop
from ipv8.messaging.interfaces.udp.endpoint import UDPv4Address
from ipv8.peer import Peer
from ipv8.peerdiscovery.network import Network

from tunnel_pool.overlay.ground.config import NOWHERE
from tunnel_pool.pool.pool import ProcessPool
from tunnel_pool.pooled.shared_port import SharedPort
from tunnel_pool.rpc.sync import PeerState

MAX_KEPT_PEERS = 4096


class PooledNeighbours:
    """Merges what the children know of other nodes."""

    pool: ProcessPool
    do_circuits: Callable[[], None]

    def __init__(self) -> None:
        self.candidates: dict[Peer, list[int]] = {}
        self.port: SharedPort | None = None
        self._peers: dict[bytes, Peer] = {}
        self._presumed_address = UDPv4Address(*NOWHERE)

    def candidates_changed(self) -> None:
        """Merge what the children know; the dict stays the same object, as callers of py-ipv8 expect."""
        merged: dict[Peer, list[int]] = {}
        for picture in self.pool.pictures.values():
            for candidate in picture.candidates.values():
                merged[self.peer_of(candidate)] = list(candidate.flags)
        self.candidates.clear()
        self.candidates.update(merged)
        self.do_circuits()

    @property
    def network(self) -> Network:
        """Return the candidates as py-ipv8 keeps peers; the table is made when it is asked for."""
        network = Network()
        for peer in self.candidates:
            network.add_verified_peer(peer)
        return network

    def get_peers(self) -> list[Peer]:
        return list(self.candidates)

    def walk_to(self, address: tuple[str, int]) -> None:
        """Ask a node for its neighbours, where the children share a port; with ports of their own they find nodes."""
        if self.port is not None:
            self.port.front.walk_to(UDPv4Address(*address))

    @property
    def my_estimated_wan(self) -> UDPv4Address:
        """Return the node's address as others see it; until children run, what a caller has set."""
        if self.port is not None:
            return UDPv4Address(*self.port.front.my_estimated_wan)
        addresses = [address for slot in self.pool.working() if (address := self.pool.listen_address(slot))]
        return UDPv4Address(*addresses[0]) if addresses else self._presumed_address

    @my_estimated_wan.setter
    def my_estimated_wan(self, address: tuple[str, int]) -> None:
        self._presumed_address = UDPv4Address(*address)

    my_estimated_lan = my_estimated_wan
    global_time = 0

    def _hop(self, hop: PeerState) -> Hop:
        return Hop(self.peer_of(hop), flags=list(hop.flags))

    def peer_of(self, state: PeerState) -> Peer:
        """Return the peer of this state, kept from earlier calls, as parsing a key is slow."""
        peer = self._peers.get(state.public_key)
        if peer is None:
            if len(self._peers) > MAX_KEPT_PEERS:
                self._peers.clear()
            peer = self._peers[state.public_key] = Peer(state.public_key)
        if state.port:
            peer.add_address(UDPv4Address(state.host, state.port))
        return peer
