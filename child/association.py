"""The child's end of a UDP association on the Python engine; the native one has its own."""

import socket
from collections import Counter
from collections.abc import Callable

from tunnel_pool.overlay.clients.lanes import Lane
from tunnel_pool.overlay.clients.sticky import StickyMap
from tunnel_pool.overlay.community import NOWHERE, LocalTunnelCommunity
from tunnel_pool.overlay.hidden_swarms.end_to_end import end_to_end_circuit, end_to_end_circuit_id, is_linked
from tunnel_pool.overlay.wire.udp import UdpSocket
from tunnel_pool.rpc.drop_reasons import DropReason
from tunnel_pool.socks5.address import Socks5Error, decode_address
from tunnel_pool.socks5.messages import join_udp_request, split_udp_request


class ServedAssociation:
    """Carries one client's datagrams over the community's circuits of one lane."""

    def __init__(
        self,
        sock: socket.socket,
        lane: Lane,
        client: tuple[str, int],
        community: LocalTunnelCommunity,
        counters: Counter[str],
        *,
        asked: Callable[[int, bytes], None],
    ) -> None:
        """`asked` hears of each datagram's circuit and destination, as `Clients.asked` does."""
        self.lane = lane
        self._udp = UdpSocket(sock, self._received, counters)
        self._client = client
        self._community = community
        self._counters = counters
        self._asked = asked
        self._sticky = StickyMap()

    def _received(self, datagram: bytes, source: tuple[str, int]) -> None:
        if source == self._client:
            self.carry(datagram)
        else:
            self._counters[DropReason.SOCKS5_FOREIGN_SOURCE] += 1

    def carry(self, datagram: bytes) -> None:
        """Carry a datagram of the client (RFC 1928 section 7)."""
        try:
            address, payload = split_udp_request(datagram)
            destination = decode_address(address)
        except Socks5Error:
            self._counters[DropReason.SOCKS5_MALFORMED] += 1
            return
        circuit_id = end_to_end_circuit_id(destination.host, destination.port)
        if circuit_id is not None:
            # Never to an exit, which would learn the id that our first hop knows.
            linked = end_to_end_circuit(self._community.circuits, circuit_id, self.lane)
            if linked is not None and is_linked(linked):
                self._asked(circuit_id, address)
                self._community.send_data(linked.hop.address, linked.circuit_id, NOWHERE, NOWHERE, payload)
            else:
                self._counters[DropReason.NO_CIRCUIT] += 1
            return
        circuit = self._sticky.circuit_for(
            address, self._community.circuits, lambda: self._community.circuits_for_new_peers(*self.lane)
        )
        if circuit is None:
            self._counters[DropReason.NO_CIRCUIT] += 1
        else:
            self._asked(circuit.circuit_id, address)
            self._community.send_data(circuit.hop.address, circuit.circuit_id, destination[1:], NOWHERE, payload)

    def deliver(self, address: bytes, data: bytes) -> None:
        """Deliver a datagram from outside, from this encoded address, to the client."""
        self._udp.sendto(join_udp_request(address, data), self._client)

    def forget_circuit(self, circuit_id: int) -> list[bytes]:
        """Return the destinations that had it."""
        return self._sticky.forget_circuit(circuit_id)

    def close(self) -> None:
        self._udp.close()
