"""The child's end of a UDP association on the Python engine; the native one has its own."""

import socket
from collections import Counter
from collections.abc import Callable

from tunnel_pool.overlay.clients.outgoing import OutgoingCircuits
from tunnel_pool.overlay.community import LocalTunnelCommunity
from tunnel_pool.overlay.ground.lanes import Lane
from tunnel_pool.overlay.wire.udp import UdpSocket
from tunnel_pool.rpc.drop_reasons import DropReason
from tunnel_pool.socks5.address import Socks5Error
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
        self._counters = counters
        self._asked = asked
        self._outgoing = OutgoingCircuits(community, lane)

    def _received(self, datagram: bytes, source: tuple[str, int]) -> None:
        if source == self._client:
            self.carry(datagram)
        else:
            self._counters[DropReason.SOCKS5_FOREIGN_SOURCE] += 1

    def carry(self, datagram: bytes) -> None:
        """Carry a datagram of the client (RFC 1928 section 7)."""
        try:
            address, payload = split_udp_request(datagram)
            outgoing = self._outgoing.choose(address)
        except Socks5Error:
            self._counters[DropReason.SOCKS5_MALFORMED] += 1
            return
        if outgoing is None:
            self._counters[DropReason.NO_CIRCUIT] += 1
        else:
            self._asked(outgoing.circuit.circuit_id, address)
            self._outgoing.send(outgoing, payload)

    def deliver(self, address: bytes, data: bytes) -> None:
        """Deliver a datagram from outside, from this encoded address, to the client."""
        self._udp.sendto(join_udp_request(address, data), self._client)

    def pin(self, destination: bytes, circuit_id: int) -> None:
        """Send what goes to this encoded destination over this circuit from now on."""
        self._outgoing.pin(destination, circuit_id)

    def carries(self, destination: bytes, circuit_id: int) -> bool:
        """Return whether what the client sends to a destination goes over this circuit."""
        return self._outgoing.circuit_of(destination) == circuit_id

    def forget_circuit(self, circuit_id: int) -> list[bytes]:
        """Forget a dead circuit; return the destinations that it carried, encoded."""
        return self._outgoing.forget_circuit(circuit_id)

    def close(self) -> None:
        self._udp.close()
