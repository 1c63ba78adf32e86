"""py-ipv8's exit socket with a policy on destinations and an address to leave from."""

import ipaddress
import socket
from typing import TYPE_CHECKING

from ipv8.messaging.anonymization.exit_socket import TunnelExitSocket
from ipv8.messaging.anonymization.tunnel import Hop
from ipv8.messaging.interfaces.udp.endpoint import DomainAddress

from overlay.udp import CannotBindError, UdpSocket, bind_udp

if TYPE_CHECKING:
    from overlay.community import PoolTunnelCommunity


def is_allowed_destination(host: str, port: int, allow_private: bool) -> bool:
    """Whether an exit may send to this IP address: public unicast only, unless private is allowed.

    IPv4 mapped into IPv6 (RFC 4291 section 2.5.5.2) is judged as IPv4.
    """
    if not 0 < port <= 0xFFFF:
        return False
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    if address.is_multicast or address.is_unspecified or address == ipaddress.IPv4Address("255.255.255.255"):
        return False
    return address.is_global or allow_private


class PolicedExitSocket(TunnelExitSocket):
    """Leaves from the node's listening address where that is set, so that an exit is one address."""

    def __init__(self, circuit_id: int, hop: Hop, overlay: "PoolTunnelCommunity") -> None:
        super().__init__(circuit_id, hop, overlay)
        self._policy = overlay

    def enable(self) -> None:
        if self.enabled:  # type: ignore[has-type]
            return
        self.enabled = True
        counters = self._policy.counters
        host = self._policy.exit_host
        try:
            self.transport_ipv4 = UdpSocket(bind_udp(host, 0), self.datagram_received_ipv4, counters)
        except CannotBindError:
            counters["exit_no_ipv4_socket"] += 1
        if ipaddress.ip_address(host).is_unspecified:
            try:
                self.transport_ipv6 = UdpSocket(
                    bind_udp("::", 0, socket.AF_INET6), self.datagram_received_ipv6, counters
                )
            except CannotBindError:
                counters["exit_no_ipv6_socket"] += 1

    def sendto(self, data: bytes, destination: tuple[str, int]) -> None:
        """Send, unless the policy says no; a domain name is judged once it is resolved."""
        if not isinstance(destination, DomainAddress) and not is_allowed_destination(
            destination[0], destination[1], self._policy.allow_private
        ):
            self._policy.counters["exit_destination_refused"] += 1
            return
        super().sendto(data, destination)

    def is_allowed(self, data: bytes) -> bool:
        """By content, as the peer flags say (py-ipv8 exit_socket.py)."""
        allowed: bool = super().is_allowed(data)
        if not allowed:
            self._policy.counters["exit_content_refused"] += 1
        return allowed
