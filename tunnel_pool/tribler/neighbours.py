"""The nodes that the tunnels know, in the table of Tribler's other overlays.

In Tribler all overlays share one UDP port, so that a node of the tunnels is met by the others as well. Over a pool the
tunnels have a port of their own. So each node that the children know is put into the table that the other overlays
walk (py-ipv8's peerdiscovery/network.py): Tribler shows it, and its DHT and the rest introduce themselves to it.
"""

from collections.abc import Iterable

from ipv8.messaging.interfaces.udp.endpoint import UDPv4Address
from ipv8.peer import Peer
from ipv8.peerdiscovery.network import Network


class Neighbours:
    """Keeps the nodes of the tunnels in a table of py-ipv8's."""

    def __init__(self, network: Network, community_id: bytes, host: Peer) -> None:
        """`community_id` is that of the tunnels, `host` the peer that the other overlays are."""
        self._network = network
        self._community_id = community_id
        self._host = host
        self._shown: dict[bytes, Peer] = {}  # the nodes that are in the table, by public key

    def let_walk_to(self, addresses: Iterable[tuple[str, int]]) -> None:
        """Let the other overlays introduce themselves at these addresses, where nobody need have answered yet."""
        known = [UDPv4Address(*address) for address in addresses]
        for service, overlay in self._network.service_overlays.items():
            if service != self._community_id:
                self._introduce(overlay.network, service, known)  # the DHT has a table of its own

    def _introduce(self, network: Network, service: bytes, addresses: Iterable[UDPv4Address]) -> None:
        # An overlay walks to what somebody introduced who has that overlay, too. Here this is the host itself, which
        # must not become its own neighbour by that.
        if self._host.mid not in network.blacklist_mids:
            network.blacklist_mids.append(self._host.mid)
        network.discover_services(self._host, [service])
        for address in addresses:
            network.discover_address(self._host, address)

    def show(self, nodes: Iterable[Peer]) -> None:
        """Keep these nodes of the tunnels in the table, and take out those that were in it and are gone."""
        now = {node.public_key.key_to_bin(): node for node in nodes}
        for key in self._shown.keys() - now.keys():
            self._forget(self._shown.pop(key))
        for key, node in now.items():
            if key not in self._shown or self._shown[key].address != node.address:
                shown = self._shown[key] = Peer(node.public_key, node.address)
                self.let_walk_to([node.address])
                self._network.add_verified_peer(shown)
                self._network.discover_services(shown, [self._community_id])

    def _forget(self, node: Peer) -> None:
        """Take a node out, unless other overlays know it as well."""
        if self._network.get_services_for_peer(node) <= {self._community_id}:
            self._network.remove_peer(node)
