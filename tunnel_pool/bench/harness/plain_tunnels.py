"""py-ipv8's own TunnelCommunity behind our SOCKS5 server."""

from ipv8.messaging.anonymization.community import TunnelCommunity
from ipv8.messaging.anonymization.tunnel import Circuit

from tunnel_pool.overlay.ground.config import NOWHERE
from tunnel_pool.overlay.ground.end_to_end import END_TO_END, end_to_end_address
from tunnel_pool.socks5.address import decode_address, encode_address


def adapt(community: TunnelCommunity) -> None:
    """Give it what a Dispatcher asks of tunnel_pool.contract.Tunnels, before the two are connected."""

    def send_datagram(circuit_id: int, address: bytes, data: bytes) -> None:
        circuit = community.circuits[circuit_id]
        community.send_data(circuit.hop.address, circuit_id, decode_address(address)[1:], NOWHERE, data)

    def on_raw_data(circuit: Circuit, origin: tuple[str, int], data: bytes) -> None:
        # py-ipv8 leaves it to its caller to say who is at the other end.
        origin = end_to_end_address(circuit) if circuit.ctype in END_TO_END else origin
        community.on_datagram(circuit, encode_address(origin[0], origin[1]), data)

    community.send_datagram = send_datagram
    community.on_raw_data = on_raw_data
    community.circuits_for_new_peers = lambda hops, group=0: community.find_circuits(hops=hops)
    community.on_circuit_removed = lambda circuit, reason: None
    community.on_orphans = lambda lane, destinations: None
