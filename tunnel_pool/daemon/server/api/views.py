"""Shows torrents, circuits and the pool as the API's answers."""

import hashlib
from functools import cache

from ipv8.messaging.anonymization.tunnel import CIRCUIT_STATE_READY
from ipv8.messaging.anonymization.tunnel import Circuit as TunnelCircuit

from tunnel_pool.contract import Address, Tunnels
from tunnel_pool.daemon.rules.life import State
from tunnel_pool.daemon.server.api import model
from tunnel_pool.daemon.server.shown import eta_s
from tunnel_pool.daemon.torrents.library import Library
from tunnel_pool.daemon.torrents.sessions import Sessions
from tunnel_pool.daemon.torrents.view import TorrentView
from tunnel_pool.overlay.ground.config import slot_of
from tunnel_pool.overlay.ground.lanes import detour_of
from tunnel_pool.overlay.ground.streams import streams_of

NODE_DIGITS = 8
_STATES = {
    State.MISSING: model.TorrentState.FAILED,
    State.FAILED: model.TorrentState.FAILED,
    State.MOVING: model.TorrentState.MOVING,
    State.CHECKING: model.TorrentState.CHECKING,
    State.STOPPED: model.TorrentState.STOPPED,
    State.QUEUED: model.TorrentState.QUEUED,
    State.NO_ROOM: model.TorrentState.NO_ROOM,
    State.DOWNLOADING: model.TorrentState.DOWNLOADING,
    State.SEEDING: model.TorrentState.SEEDING,
}


def shown_state(torrent: TorrentView) -> model.TorrentState:
    return _STATES[torrent.state]


def torrent_view(torrent: TorrentView) -> model.Torrent:
    record, status = torrent.record, torrent.status
    return model.Torrent(
        infohash=torrent.hash_string,
        number=record.number,
        name=record.name,
        hops=record.hops,
        state=shown_state(torrent),
        error=torrent.error,
        standstill=torrent.standing or torrent.notice,
        progress=torrent.progress,
        size_bytes=status.total_wanted,
        downloaded_bytes=torrent.totals.downloaded,
        uploaded_bytes=torrent.totals.uploaded,
        down_bytes_per_s=torrent.down_rate,
        up_bytes_per_s=torrent.up_rate,
        eta_s=eta_s(torrent),
        peers=status.num_peers,
        hidden_peers=len(torrent.peers),
        labels=record.labels,
        folder=record.final_folder,
        position=record.position,
        added_s=record.added_s,
        done_s=record.done_s or None,
    )


def files_view(torrent: TorrentView) -> list[model.File]:
    """Return its files, none until the metadata is known. Raises RuntimeError while it is between sessions."""
    layout = torrent.layout
    if layout is None:
        return []
    done = torrent.file_bytes()
    return [
        model.File(
            index=index,
            path=torrent.file_path(index),
            size_bytes=layout.file_size(index),
            done_bytes=done[index],
            wanted=torrent.is_wanted(index),
        )
        for index in torrent.file_indexes()
    ]


@cache
def _node(public_key: bytes) -> str:
    return hashlib.sha256(public_key).hexdigest()[:NODE_DIGITS]


def circuits_view(tunnels: Tunnels, sessions: Sessions) -> list[model.Circuit]:
    is_pooled, found_at = tunnels.pool is not None, sessions.found_at()
    return [_circuit(circuit, is_pooled, found_at.get(circuit.circuit_id)) for circuit in tunnels.circuits.values()]


def _circuit(circuit: TunnelCircuit, is_pooled: bool, found_at: Address | None) -> model.Circuit:
    return model.Circuit(
        circuit_id=circuit.circuit_id,
        child=slot_of(circuit.circuit_id) if is_pooled else None,
        type=circuit.ctype,
        state=circuit.state,
        goal_hops=circuit.goal_hops,
        detour=detour_of(circuit),
        hops=[_node(hop.public_key_bin) for hop in circuit.hops],
        up_bytes=circuit.bytes_up,
        down_bytes=circuit.bytes_down,
        created_s=circuit.creation_time,
        swarm=circuit.info_hash.hex() if circuit.info_hash else None,
        speaks_streams=streams_of(circuit).are_spoken,
        streams=streams_of(circuit).open,
        all_streams=streams_of(circuit).all,
        found_at=f"{found_at[0]}:{found_at[1]}" if found_at is not None else None,
    )


def ready_circuits(tunnels: Tunnels) -> int:
    return sum(circuit.state == CIRCUIT_STATE_READY for circuit in tunnels.circuits.values())


def open_streams(tunnels: Tunnels) -> int:
    return sum(streams_of(circuit).open for circuit in tunnels.circuits.values())


def swarms_view(tunnels: Tunnels, library: Library) -> list[model.Swarm]:
    names = {swarm: torrent.hash_string for torrent in library.torrents.values() for swarm in torrent.role.swarms}
    return [
        model.Swarm(
            lookup_hash=info_hash.hex(),
            infohash=names.get(info_hash),
            hops=swarm.hops,
            seeding=swarm.seeding,
            introduction_points=len(swarm.intro_points),
            offered=tunnels.is_offered(info_hash),
            connections=len(swarm.connections),
        )
        for info_hash, swarm in tunnels.swarms.items()
    ]


def relays_view(tunnels: Tunnels) -> list[model.Relay]:
    return [
        model.Relay(
            circuit_id=circuit_id,
            next_id=relay.circuit_id,
            rendezvous=relay.rendezvous_relay,
            up_bytes=relay.bytes_up,
            down_bytes=relay.bytes_down,
            created_s=relay.creation_time,
        )
        for circuit_id, relay in tunnels.relay_from_to.items()
    ]


def exits_view(tunnels: Tunnels) -> list[model.Exit]:
    return [
        model.Exit(
            circuit_id=circuit_id,
            open=exit_socket.enabled,
            up_bytes=exit_socket.bytes_up,
            down_bytes=exit_socket.bytes_down,
            created_s=exit_socket.creation_time,
            streams=streams_of(exit_socket).open,
        )
        for circuit_id, exit_socket in tunnels.exit_sockets.items()
    ]
