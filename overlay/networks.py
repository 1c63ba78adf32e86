"""Which addresses are likely in one hand: those of one network. Pure."""

import ipaddress
from collections.abc import Callable
from functools import lru_cache

IPV4_PREFIX, IPV6_PREFIX = 16, 32

NetworkOf = Callable[[str], str]
"""Names the network of an IP address; two addresses are in one network when the names are equal."""


@lru_cache(maxsize=4096)
def network_of(host: str) -> str:
    """Return the /16 of an IPv4 address, the /32 of an IPv6 address.

    Addresses that nobody gives out (loopback, private) are a network each: a test has all its nodes there.
    """
    address = ipaddress.ip_address(host)
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    if not address.is_global:
        return str(address)
    prefix = IPV4_PREFIX if address.version == 4 else IPV6_PREFIX
    return str(ipaddress.ip_network(f"{address}/{prefix}", strict=False))
