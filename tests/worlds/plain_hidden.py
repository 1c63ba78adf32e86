"""A hidden seeder or downloader whose tunnels are plain pyipv8: HiddenTunnelCommunity on its own endpoint.

plain_hidden.py seed|download HOST HOPS TORRENT FOLDER NODE_PORT@NODE_HOST...

Libtorrent is ours, and the SOCKS5 server too where py-ipv8's endpoint has none. Prints a JSON line when it
is linked or introduced, and one when the download is complete; ends with stdin.
"""

import asyncio
import json
import sys
from pathlib import Path

from ipv8.messaging.anonymization.hidden_services import HiddenTunnelCommunity, HiddenTunnelSettings
from ipv8.messaging.anonymization.tunnel import CIRCUIT_TYPE_IP_SEEDER
from ipv8.messaging.interfaces.udp.endpoint import UDPv4Address

from tests.worlds.plain_node import is_rust, open_plain
from tunnel_pool.bench.harness.plain_tunnels import adapt
from tunnel_pool.framework import own_network
from tunnel_pool.overlay.ground.end_to_end import set_known_as
from tunnel_pool.overlay.ground.lanes import Lane
from tunnel_pool.pooled.hidden_services import lookup_hash
from tunnel_pool.socks5.server import Socks5Server
from tunnel_pool.system import runner
from tunnel_pool.torrent.metainfo import parse_torrent, swarm_hash_of
from tunnel_pool.torrent.sessions.dispatch import Dispatcher, connect
from tunnel_pool.torrent.sessions.session import TorrentSession


class PlainHidden(HiddenTunnelCommunity):
    community_id = bytes(range(20))
    settings_class = HiddenTunnelSettings

    def create_circuit(self, *arguments, **options):
        """Create a circuit as py-ipv8 does, whose other end has the circuit's id for its address."""
        circuit = super().create_circuit(*arguments, **options)
        if circuit is not None:
            set_known_as(circuit, circuit.circuit_id)
        return circuit


def say(**what):
    print(json.dumps(what), flush=True)


async def name_usual_client(endpoint, hops, ports):
    """Tell ipv8-rust-tunnels libtorrent's port again and again.

    It passes the port to the associations that are open by then, and libtorrent opens its own later.
    """
    port = await ports.get()
    while True:
        endpoint.set_udp_associate_default_remote(("127.0.0.1", port), hops)
        await asyncio.sleep(0.5)


async def take_part(role, host, hops, files, nodes):
    torrent, folder = files
    community = await open_plain(host, set(), PlainHidden, HiddenTunnelSettings)
    if is_rust():
        endpoint = community.endpoint
        session = TorrentSession(endpoint.create_socks5_server(0, hops), folder / "resume")
        ports = asyncio.Queue()
        session.on_listening = ports.put_nowait
    else:
        dispatcher = Dispatcher(community, Lane(hops))
        adapt(community)
        connect(community, [dispatcher])
        server = Socks5Server(own_network(), dispatcher)
        session = TorrentSession(server.listen(), folder / "resume")
        session.on_listening = server.set_usual_client
    session.start()
    if is_rust():
        naming = asyncio.ensure_future(name_usual_client(endpoint, hops, ports))
    while len(community.candidates) < len(nodes):
        for node in nodes:
            community.walk_to(UDPv4Address(*node))
        await asyncio.sleep(0.2)
    parameters = parse_torrent(torrent)
    info_hash = lookup_hash(swarm_hash_of(parameters))
    community.build_tunnels(hops)
    infohash = session.add(parameters, folder, seed=role == "seed")
    if role == "seed":
        community.join_swarm(info_hash, hops, seeding=True)
        while not community.find_circuits(CIRCUIT_TYPE_IP_SEEDER):
            await community.create_introduction_point(info_hash)
            await asyncio.sleep(0.5)
        say(introduced=True)
        await asyncio.to_thread(sys.stdin.read)
    else:
        community.join_swarm(info_hash, hops, lambda peer: session.add_peer(infohash, peer), seeding=False)
        while not all(status.finished for status in session.statuses):
            await session.wait_changed(0.2)
        say(done_bytes=session.statuses[0].done_bytes)
    await session.stop()
    if is_rust():
        naming.cancel()
    else:
        await server.close()
    await community.unload()
    return {"ok": True}


if __name__ == "__main__":
    role, host, hops, torrent, folder = sys.argv[1:6]
    nodes = [(h, int(p)) for p, h in (node.split("@") for node in sys.argv[6:])]
    runner.run(take_part(role, host, int(hops), (torrent, Path(folder)), nodes))
