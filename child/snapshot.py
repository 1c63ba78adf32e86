"""A TunnelCommunity as RPC_SYNC tells of it."""

from collections.abc import Mapping

from ipv8.messaging.anonymization.tunnel import CIRCUIT_STATE_CLOSING, Circuit, Hop

from overlay.community import PoolTunnelCommunity
from rpc.sync import CircuitState, PeerState, Snapshot


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
    )


def take_snapshot(community: PoolTunnelCommunity, stream_counters: Mapping[str, int]) -> Snapshot:
    """Circuits, candidates and counters as they are now."""
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
    )
