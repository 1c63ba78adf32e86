"""A peer under measurement: pyipv8's TunnelCommunity on its own endpoint or on ipv8-rust-tunnels'.

python -m tunnel_pool.bench.harness.peer KIND [--raised] [--threads N] node      (then as tunnel-pool node)
python -m tunnel_pool.bench.harness.peer KIND [--raised] [--threads N] download  (then as BenchDownload has it)

Only packet path, settings against time-outs and libtorrent's settings are
given; everything else is as those projects ship it. A downloader prints
{"ready": ...}, waits for a line, downloads, and prints what it did.
"""

import argparse
import asyncio
import contextlib
import json
import os
import signal
import socket
import stat
import sys
import time
from pathlib import Path
from typing import Any

from ipv8.keyvault.crypto import default_eccrypto
from ipv8.messaging.anonymization.community import TunnelCommunity, TunnelSettings
from ipv8.messaging.anonymization.tunnel import (
    PEER_FLAG_EXIT_BT,
    PEER_FLAG_EXIT_IPV8,
    PEER_FLAG_RELAY,
    PEER_FLAG_SPEED_TEST,
)
from ipv8.messaging.interfaces.udp.endpoint import UDPEndpoint, UDPv4Address
from ipv8.peer import Peer
from ipv8.peerdiscovery.network import Network

from tunnel_pool.bench.harness.plain_tunnels import adapt
from tunnel_pool.cli.arguments import values
from tunnel_pool.framework import own_network
from tunnel_pool.overlay.ground.config import HostPort
from tunnel_pool.overlay.ground.lanes import Lane
from tunnel_pool.rpc.lifeline import die_with_parent
from tunnel_pool.socks5.server import Socks5Server
from tunnel_pool.steering.group import BUFFER_BYTES
from tunnel_pool.system import runner
from tunnel_pool.system.log import set_up_logging
from tunnel_pool.torrent.metainfo import parse_torrent
from tunnel_pool.torrent.sessions.dispatch import Dispatcher, connect
from tunnel_pool.torrent.sessions.session import TorrentSession

RAISE_INTERVAL_S = 0.2
WALK_INTERVAL_S = 0.3


def raise_buffers() -> None:
    """Give every UDP socket of this process what raised system defaults would have given it."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                with socket.socket(fileno=os.dup(int(name))) as sock:
                    _raise_buffers_of(sock)


def _raise_buffers_of(sock: socket.socket) -> None:
    if sock.type == socket.SOCK_DGRAM and sock.family in (socket.AF_INET, socket.AF_INET6):
        for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            if sock.getsockopt(socket.SOL_SOCKET, option) < BUFFER_BYTES:
                sock.setsockopt(socket.SOL_SOCKET, option, BUFFER_BYTES)


async def raise_buffers_forever() -> None:
    while True:
        raise_buffers()
        await asyncio.sleep(RAISE_INTERVAL_S)


async def open_endpoint(kind: str, listen: HostPort, threads: int) -> Any:
    if kind == "rust":
        from ipv8_rust_tunnels.endpoint import Endpoint as RustEndpoint

        endpoint = RustEndpoint(listen.port, listen.host, threads)
        endpoint.open()
        return endpoint
    endpoint = UDPEndpoint(listen.port, listen.host)
    await endpoint.open()
    return endpoint


async def open_community(arguments: argparse.Namespace, exit_node: bool) -> TunnelCommunity:
    endpoint = await open_endpoint(arguments.kind, arguments.listen, arguments.threads)
    address = UDPv4Address(*endpoint.get_address())
    key = default_eccrypto.generate_key("curve25519")
    settings = TunnelSettings(my_peer=Peer(key, address), endpoint=endpoint, network=Network())
    settings.max_circuits = arguments.circuits
    settings.max_traffic = 1 << 40
    settings.max_joined_circuits = 1000
    settings.peer_flags = {PEER_FLAG_RELAY, PEER_FLAG_SPEED_TEST}
    if exit_node:
        settings.peer_flags |= {PEER_FLAG_EXIT_BT, PEER_FLAG_EXIT_IPV8}
    community_class = type("PeerCommunity", (TunnelCommunity,), {"community_id": arguments.community_id})
    community: TunnelCommunity = community_class(settings)
    community.my_estimated_wan = community.my_estimated_lan = address
    if arguments.kind == "rust":
        endpoint.set_exit_address((arguments.listen.host, 0))
    community.register_task("walk", walk, community, arguments.bootstrap[1], interval=WALK_INTERVAL_S, delay=0)
    if arguments.raised:
        community.register_task("raise", raise_buffers_forever)
    return community


def walk(community: TunnelCommunity, addresses: tuple[HostPort, ...]) -> None:
    known = {peer.address for peer in community.get_peers()}
    for address in addresses:
        if address not in known:
            community.walk_to(UDPv4Address(*address))


async def be_node(arguments: argparse.Namespace) -> dict[str, Any]:
    community = await open_community(arguments, arguments.exit)
    try:
        await asyncio.Event().wait()
    finally:
        await community.unload()
    return {"ok": True}


async def socks_port(community: TunnelCommunity, arguments: argparse.Namespace) -> int:
    """Return the port of the endpoint's own SOCKS5 server, where it has one, else of ours before pyipv8's."""
    if arguments.kind == "rust":
        return int(community.endpoint.create_socks5_server(0, arguments.hops))
    adapt(community)
    dispatcher = Dispatcher(community, Lane(arguments.hops))
    connect(community, [dispatcher])
    return Socks5Server(own_network(), dispatcher).listen()


async def download(arguments: argparse.Namespace) -> dict[str, Any]:
    community = await open_community(arguments, exit_node=False)
    nodes = len(arguments.bootstrap[1])
    while len(community.candidates) < nodes:  # noqa: ASYNC110 - py-ipv8 has no event for it
        await asyncio.sleep(0.05)
    session = TorrentSession(await socks_port(community, arguments), arguments.state)
    session.start()
    community.build_tunnels(arguments.hops)
    while community.tunnels_ready(arguments.hops) < 1:  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    print(json.dumps({"ready": len(community.find_circuits(hops=arguments.hops))}), flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    start_s = time.monotonic()
    session.add(parse_torrent(arguments.torrent), arguments.save, arguments.peer)
    while not all(status.finished for status in session.statuses):
        await session.wait_changed(0.25)
    print(json.dumps({"seconds": time.monotonic() - start_s}), flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    await session.stop()
    return {"ok": True}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=["pyipv8", "rust"])
    parser.add_argument("--raised", action="store_true")
    parser.add_argument("--threads", type=int, default=4)
    roles = parser.add_subparsers(dest="role", required=True)
    for role in ("node", "download"):
        role_parser = roles.add_parser(role)
        role_parser.add_argument("--with-parent", type=int)
        role_parser.add_argument("--exit", action="store_true")
        role_parser.add_argument("--circuits", type=int, default=8)
        role_parser.add_argument("--hops", type=int, default=1)
        role_parser.add_argument("--torrent")
        role_parser.add_argument("--save", type=Path)
        role_parser.add_argument("--peer", type=values.peer_address, action="append", default=[])
        role_parser.add_argument("--listen", type=values.host_port)
        role_parser.add_argument("--bootstrap", type=values.bootstrap)
        role_parser.add_argument("--community-id", type=values.community_id)
        role_parser.add_argument("--state", type=Path)
    # The rest of what tunnel-pool node takes means nothing to a peer.
    arguments, _ = parser.parse_known_args()
    if arguments.with_parent is not None:
        die_with_parent(arguments.with_parent)
    set_up_logging("critical")
    ended = runner.run(be_node(arguments) if arguments.role == "node" else download(arguments))
    # The Rust endpoint's threads don't end by themselves.
    os._exit(0 if ended.result or ended.signal is signal.SIGTERM else 1)


if __name__ == "__main__":
    main()
