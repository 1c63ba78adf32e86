"""py-ipv8's objects made of what the children tell: relays, exits and swarms of the whole pool."""

from collections.abc import Callable, Iterable

from ipv8.messaging.anonymization.tunnel import Circuit, Hop, IntroductionPoint, RelayRoute, RoutingObject, Swarm
from ipv8.peer import Peer

from tunnel_pool.overlay.ground.messages import introduction_point
from tunnel_pool.rpc.sync import ExitState, PeerState, RelayState, StreamsState, SwarmState, SyncState

PeerOf = Callable[[PeerState], Peer]


class MirroredExit(RoutingObject):
    """A circuit of another node that ends at one of our children (py-ipv8's TunnelExitSocket)."""

    def __init__(self, state: ExitState, peer_of: PeerOf) -> None:
        super().__init__(state.circuit_id)
        self.hop = _hop(state, peer_of)
        self.enabled = state.enabled
        self.streams = StreamsState(open=state.streams)
        _bring_statistics(self, state)


class RouteMirror:
    """Shows others' circuits; made anew each time, as they come and go by the hundred and are looked at rarely."""

    def __init__(self, pictures: Iterable[SyncState], peer_of: PeerOf) -> None:
        self.relays: dict[int, RelayRoute] = {}
        self.exits: dict[int, MirroredExit] = {}
        self.introduced: dict[bytes, tuple[MirroredExit, bytes]] = {}
        self.rendezvous: dict[bytes, MirroredExit] = {}
        for picture in pictures:
            self.relays.update({relay.circuit_id: _relay(relay, peer_of) for relay in picture.relays.values()})
            for state in picture.exits.values():
                mirrored = self.exits[state.circuit_id] = MirroredExit(state, peer_of)
                for seeder_key, infohash in state.introduced:
                    self.introduced.setdefault(seeder_key, (mirrored, infohash))
                if state.cookie:
                    self.rendezvous[state.cookie] = mirrored


def _relay(state: RelayState, peer_of: PeerOf) -> RelayRoute:
    route = RelayRoute(state.next_id, _hop(state, peer_of), state.direction, state.rendezvous)
    _bring_statistics(route, state)
    return route


def _hop(state: RelayState | ExitState, peer_of: PeerOf) -> Hop:
    return Hop(peer_of(PeerState(state.public_key, state.host, state.port, ())))


def _bring_statistics(route: RoutingObject, state: RelayState | ExitState) -> None:
    route.bytes_up, route.bytes_down, route.creation_time = state.bytes_up, state.bytes_down, state.creation_time


def update_swarm(swarm: Swarm, state: SwarmState, circuits: dict[int, Circuit]) -> None:
    """Bring what the swarm's child knows into py-ipv8's object."""
    points = {point.seeder_key: introduction_point(point) for point in state.introduction_points}
    swarm.intro_points = list(points.values())
    swarm.last_lookup = state.last_lookup
    swarm.transfer_history = [state.past_bytes_up, state.past_bytes_down]
    seeders = zip(state.circuit_ids, state.seeder_keys, strict=True)
    swarm.connections = {
        circuit_id: (circuits[circuit_id], points.get(seeder_key) or IntroductionPoint(Peer(seeder_key), seeder_key))
        for circuit_id, seeder_key in seeders
        if circuit_id in circuits
    }
