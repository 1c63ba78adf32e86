"""Tells which addresses are likely in one hand: those of one network, or of one autonomous system. Pure."""

import ipaddress
from collections.abc import Callable
from functools import lru_cache

IPV4_PREFIX, IPV6_PREFIX = 16, 32

NetworksOf = Callable[[str], frozenset[str]]
"""Names the networks of an IP address; two addresses are in one network when they have a name in common."""

AsNumberOf = Callable[[str], int | None]
"""The number of the autonomous system that an IP address is in, None when it is not known."""

_as_number_of: AsNumberOf = lambda host: None  # noqa: E731 - replaced by use_as_numbers


def use_as_numbers(as_number_of: AsNumberOf) -> None:
    """Tell networks by autonomous systems, too, in this process from now on."""
    global _as_number_of  # noqa: PLW0603 - one for all communities of a process
    _as_number_of = as_number_of
    networks_of.cache_clear()


@lru_cache(maxsize=4096)
def networks_of(host: str) -> frozenset[str]:
    """Return the names of the networks that an address is in: its prefix, and its AS where that is known."""
    number = _as_number_of(host)
    return frozenset({network_of(host)} if number is None else {network_of(host), f"AS{number}"})


@lru_cache(maxsize=4096)
def is_inner(host: str) -> bool:
    """Return whether nobody gives this address out: loopback, private, or reserved."""
    address = ipaddress.ip_address(host)
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return not address.is_global


@lru_cache(maxsize=4096)
def network_of(host: str) -> str:
    """Return the /16 of an IPv4 address, the /32 of an IPv6 address.

    Addresses that nobody gives out (loopback, private) are a network each: a test has all its nodes there.
    """
    address = ipaddress.ip_address(host)
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    if is_inner(host):
        return str(address)
    prefix = IPV4_PREFIX if address.version == 4 else IPV6_PREFIX
    return str(ipaddress.ip_network(f"{address}/{prefix}", strict=False))
