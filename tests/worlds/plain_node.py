"""A node of plain pyipv8: its TunnelCommunity on its own endpoint, none of our code.

With PLAIN_ENDPOINT=rust in the environment, on ipv8-rust-tunnels' endpoint.

plain_node.py exit HOST              be an exit; prints its port, ends with stdin
plain_node.py relay HOST             be a relay, likewise
plain_node.py old-relay HOST         be a relay from before py-ipv8 #1352, which tells of no exits
plain_node.py client HOST HOPS ECHO_HOST ECHO_PORT NODE_PORT@NODE_HOST...
                                     build a circuit through the nodes, exit a datagram, print what comes back
"""

import asyncio
import json
import os
import sys

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
from ipv8_rust_tunnels.endpoint import Endpoint as RustEndpoint


class PlainCommunity(TunnelCommunity):
    community_id = bytes(range(20))


def is_rust():
    return os.environ.get("PLAIN_ENDPOINT") == "rust"


async def open_endpoint(host):
    if is_rust():
        endpoint = RustEndpoint(0, host, 1)
        endpoint.open()
    else:
        endpoint = UDPEndpoint(0, host)
        await endpoint.open()
    return endpoint


async def open_plain(host, flags, community_class=PlainCommunity, settings_class=TunnelSettings):
    endpoint = await open_endpoint(host)
    key = default_eccrypto.generate_key("curve25519")
    settings = settings_class(
        my_peer=Peer(key, UDPv4Address(*endpoint.get_address())), endpoint=endpoint, network=Network()
    )
    settings.peer_flags = flags
    settings.max_circuits = 1
    community = community_class(settings)
    community.my_estimated_wan = community.my_estimated_lan = UDPv4Address(*endpoint.get_address())
    return community


class OldCommunity(PlainCommunity):
    """Lists relays alone to who begins a circuit, as relays did until py-ipv8 3.0."""

    def join_circuit(self, create_payload, previous_node_address):
        known = self.get_candidates
        self.get_candidates = lambda *flags: [] if PEER_FLAG_EXIT_BT in flags else known(*flags)
        try:
            super().join_circuit(create_payload, previous_node_address)
        finally:
            self.get_candidates = known


async def serve(host, role):
    flags = {PEER_FLAG_RELAY, PEER_FLAG_SPEED_TEST}
    if role == "exit":
        flags |= {PEER_FLAG_EXIT_BT, PEER_FLAG_EXIT_IPV8}
    community = await open_plain(host, flags, OldCommunity if role == "old-relay" else PlainCommunity)
    print(json.dumps({"port": community.endpoint.get_address()[1]}), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await community.unload()


async def be_client(host, hops, echo, nodes):
    community = await open_plain(host, {PEER_FLAG_RELAY})
    answers = asyncio.Queue()
    community.on_raw_data = lambda circuit, origin, data: answers.put_nowait((origin, data))
    while len(community.candidates) < len(nodes):
        for node in nodes:
            community.walk_to(UDPv4Address(*node))
        await asyncio.sleep(0.2)
    while not community.find_circuits(hops=hops):
        community.build_tunnels(hops)
        await asyncio.sleep(0.2)
    (circuit,) = community.find_circuits(hops=hops)
    community.send_data(circuit.hop.address, circuit.circuit_id, echo, ("0.0.0.0", 0), b"d1:t5:helloe")
    origin, data = await asyncio.wait_for(answers.get(), 10)
    print(json.dumps({"origin": list(origin), "data": data.decode(), "hops": len(circuit.hops)}), flush=True)
    os._exit(0)  # ipv8-rust-tunnels' threads now and then abort an interpreter that ends (SIGABRT)


if __name__ == "__main__":
    if sys.argv[1] in {"exit", "relay", "old-relay"}:
        asyncio.run(serve(sys.argv[2], sys.argv[1]))
    else:
        host, hops, echo_host, echo_port = sys.argv[2:6]
        nodes = [(h, int(p)) for p, h in (node.split("@") for node in sys.argv[6:])]
        asyncio.run(be_client(host, int(hops), (echo_host, int(echo_port)), nodes))
