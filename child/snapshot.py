"""A TunnelCommunity as RPC_SYNC tells of it."""

from collections.abc import Mapping
from typing import Any

from ipv8.messaging.anonymization.tunnel import CIRCUIT_STATE_CLOSING, Circuit, Hop, Swarm

from tunnel_pool.overlay.community import LocalTunnelCommunity
from tunnel_pool.overlay.ground.end_to_end import END_TO_END, known_as
from tunnel_pool.overlay.ground.lanes import detour_of, group_of
from tunnel_pool.overlay.ground.messages import introduction_state
from tunnel_pool.overlay.ground.streams import streams_of
from tunnel_pool.rpc.sync import (
    CircuitState,
    ExitState,
    PeerState,
    RelayState,
    Routes,
    Snapshot,
    SwarmState,
)


def _hop_state(hop: Hop) -> PeerState:
    return PeerState(hop.public_key_bin, hop.address[0], hop.address[1], tuple(sorted(hop.flags or ())))


def circuit_state(circuit: Circuit) -> CircuitState:
    return CircuitState(
        circuit_id=circuit.circuit_id,
        goal_hops=circuit.goal_hops,
        ctype=circuit.ctype,
        hops=tuple(_hop_state(hop) for hop in circuit.hops),
        unverified_hop=_hop_state(circuit.unverified_hop) if circuit.unverified_hop else None,
        closing=circuit.state == CIRCUIT_STATE_CLOSING,
        bytes_up=circuit.bytes_up,
        bytes_down=circuit.bytes_down,
        creation_time=circuit.creation_time,
        last_activity=circuit.last_activity,
        infohash=circuit.info_hash or b"",
        e2e=circuit.e2e,
        group=group_of(circuit),
        detour=detour_of(circuit),
        known_as=known_as(circuit) if circuit.ctype in END_TO_END else 0,
        streams=streams_of(circuit),
    )


def _route_fields(route: Any) -> dict[str, Any]:
    """Return the fields that relays and exits share: what they carried, and the node next to us."""
    return {
        "bytes_up": route.bytes_up,
        "bytes_down": route.bytes_down,
        "creation_time": route.creation_time,
        "public_key": route.hop.public_key_bin,
        "host": route.hop.address[0],
        "port": route.hop.address[1],
    }


def take_routes(community: LocalTunnelCommunity) -> Routes:
    """Return what we do for others, and the swarms that we take part in, as of now."""
    relays = {
        circuit_id: RelayState(
            circuit_id,
            relay.circuit_id,
            relay.rendezvous_relay,
            relay.direction,
            **_route_fields(relay),
        )
        for circuit_id, relay in community.relay_from_to.items()
    }
    cookies = {known.circuit_id: cookie for cookie, known in community.rendezvous_point_for.items()}
    exits = {
        circuit_id: ExitState(
            circuit_id,
            exit_socket.enabled,
            **_route_fields(exit_socket),
            introduced=community.introduced.seeders_of(circuit_id),
            cookie=cookies.get(circuit_id, b""),
            streams=streams_of(exit_socket).open,
        )
        for circuit_id, exit_socket in community.exit_sockets.items()
    }
    swarms = {
        info_hash: _swarm_state(swarm, community.is_offered(info_hash)) for info_hash, swarm in community.swarms.items()
    }
    return Routes(relays, exits, swarms)


def _swarm_state(swarm: Swarm, is_offered: bool) -> SwarmState:
    connections = swarm.connections.values()
    return SwarmState(
        infohash=swarm.info_hash,
        last_lookup=swarm.last_lookup,
        introduction_points=tuple(map(introduction_state, swarm.intro_points)),
        circuit_ids=tuple(circuit.circuit_id for circuit, _ in connections),
        seeder_keys=tuple(point.seeder_pk for _, point in connections),
        past_bytes_up=swarm.transfer_history[0],
        past_bytes_down=swarm.transfer_history[1],
        offered=is_offered,
    )


def take_snapshot(
    community: LocalTunnelCommunity, stream_counters: Mapping[str, int], with_routes: bool = False
) -> Snapshot:
    """Return circuits, candidates and counters as they are now."""
    community.crypto_endpoint.update_statistics()
    candidates = {
        key: PeerState(key, peer.address[0], peer.address[1], tuple(sorted(flags)))
        for peer, flags in community.candidates.items()
        if (key := peer.public_key.key_to_bin())
    }
    return Snapshot(
        circuits={circuit_id: circuit_state(circuit) for circuit_id, circuit in community.circuits.items()},
        candidates=candidates,
        counters={**community.dropped(), **stream_counters},
        carried=community.carried(),
        routes=take_routes(community) if with_routes else None,
    )
