"""Tells which addresses an exit may send to. Pure."""

import ipaddress
from functools import lru_cache

# Ways to name an IPv4 address, a private one too, by IPv6: NAT64 (RFC 6052, RFC 8215), 6to4 (RFC 3056),
# IPv4-translated (RFC 2765), IPv4-compatible and site-local (RFC 4291, RFC 3879). Nobody needs them.
_IPV4_IN_IPV6 = [
    ipaddress.IPv6Network(net)
    for net in ("64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "::ffff:0:0:0/96", "::/96", "fec0::/10")
]
# IANA's special-purpose registries, which each version of Python reads otherwise; packet_engine/src/policy.rs has the
# same list.
_SPECIAL = [
    ipaddress.ip_network(net)
    for net in (
        "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24",
        "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24",
        "224.0.0.0/3", "2001::/23", "2001:db8::/32", "3fff::/20",
    )
]  # fmt: skip
_IPV6_GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")  # all that is given out (RFC 4291 section 2.4)
_IPV6_LOOPBACK = ipaddress.IPv6Address("::1")


@lru_cache(maxsize=4096)
def is_allowed_destination(host: str, port: int, allow_private: bool) -> bool:
    """Return whether an exit may send to this IP address: public unicast only, unless private is allowed.

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
    if address != _IPV6_LOOPBACK and any(address in network for network in _IPV4_IN_IPV6):
        return False
    if address.is_multicast or address.is_unspecified or address == ipaddress.IPv4Address("255.255.255.255"):
        return False
    is_given_out = address.version == 4 or address in _IPV6_GLOBAL_UNICAST
    is_special = any(address in network for network in _SPECIAL if network.version == address.version)
    return (is_given_out and not is_special) or allow_private


def unmapped(address: tuple[str, int]) -> tuple[str, int]:
    """Return an address as it leaves: an IPv4 address that is written as IPv6 (RFC 4291 section 2.5.5.2) over IPv4."""
    if ":" in address[0] and (mapped := ipaddress.IPv6Address(address[0]).ipv4_mapped) is not None:
        return str(mapped), address[1]
    return address


def is_address(host: str) -> bool:
    """Return whether this is an IP address and no name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
