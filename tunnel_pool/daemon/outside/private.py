"""Tells which URLs lead to this machine or to its own network, where nobody else hears who asks. Pure.

Names are not looked up: the owner's resolver would hear them, and whoever answers could name any address.
"""

import ipaddress

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

# This machine, and private networks: RFC 1918, 3927, 4193, 4291 and 6598.
_PRIVATE = [
    ipaddress.ip_network(text)
    for text in (
        "127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16", "100.64.0.0/10", "::1/128",
        "fc00::/7", "fe80::/10",
    )
]  # fmt: skip


def address_of(host: str) -> Address | None:
    """Return the address that a URL's host stands for, None for a name; `localhost` is 127.0.0.1."""
    try:
        return ipaddress.ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError:
        return None


def is_private(address: Address) -> bool:
    return any(address in network for network in _PRIVATE if network.version == address.version)
