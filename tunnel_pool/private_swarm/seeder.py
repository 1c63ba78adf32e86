"""A plain libtorrent seeder of the demo's private swarm, in a process of its own.

Speaks JSON lines: first its port; when its stdin ends, whom it saw, and it
ends with it. So it never outlives the demo.
"""

import asyncio
import json
import os
import sys
from pathlib import Path

import libtorrent as lt

from tunnel_pool.rpc.lifeline import die_with_parent
from tunnel_pool.torrent.sessions.libtorrent_session import open_session
from tunnel_pool.torrent.sessions.session_settings import SOCKET_BUFFER_BYTES

SAMPLE_S = 0.25


def seeder_settings(host: str, port: int = 0, speed: int = 0) -> dict[str, object]:
    """Return settings of a seeder by uTP alone, on one address, that nobody is told of; `speed` in bytes/s."""
    return {
        "upload_rate_limit": speed,
        "listen_interfaces": f"{host}:{port}",
        "enable_outgoing_tcp": False,
        "enable_incoming_tcp": True,
        "enable_upnp": False,
        "enable_natpmp": False,
        "enable_lsd": False,
        "enable_dht": False,
        "dht_bootstrap_nodes": "",
        "enable_ip_notifier": False,
        "allow_multiple_connections_per_ip": True,
        "unchoke_slots_limit": -1,
        "mixed_mode_algorithm": 0,
        "recv_socket_buffer_size": SOCKET_BUFFER_BYTES,
        "send_socket_buffer_size": SOCKET_BUFFER_BYTES,
        "alert_mask": int(lt.alert.category_t.peer_notification | lt.alert.category_t.connect_notification),
    }


async def seed(torrent: Path, folder: Path, host: str, speed: int) -> None:
    """Seed until stdin ends; print the port first, then the peers."""
    session = open_session(seeder_settings(host, speed=speed))
    parameters = lt.load_torrent_file(str(torrent))
    parameters.save_path = str(folder)
    # The downloader would tell the seeders of each other.
    parameters.flags |= lt.torrent_flags.seed_mode | lt.torrent_flags.disable_pex
    parameters.flags &= ~(lt.torrent_flags.paused | lt.torrent_flags.auto_managed)
    handle = session.add_torrent(parameters)
    print(json.dumps({"port": session.listen_port()}), flush=True)
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    ended = asyncio.ensure_future(reader.read())
    peers: set[str] = set()
    while not ended.done():
        await asyncio.wait([ended], timeout=SAMPLE_S)
        peers.update(peer.ip[0] for peer in handle.get_peer_info())
        for alert in session.pop_alerts():
            if isinstance(alert, lt.peer_alert):
                peers.add(alert.endpoint[0])
    print(json.dumps({"peers": sorted(peers), "uploaded_bytes": handle.status().all_time_upload}), flush=True)


def main(torrent: str, folder: str, host: str, speed: int, parent_pid: int) -> None:
    die_with_parent(parent_pid)
    asyncio.run(seed(Path(torrent), Path(folder), host, speed))
    os._exit(0)  # libtorrent's own end waits for peers that are gone
