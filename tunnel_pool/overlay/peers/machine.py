"""The addresses that this machine is known by."""

import ipaddress

import psutil


def own_addresses(*more: str) -> frozenset[str]:
    """Return the IP addresses of all network devices, and those of `more` that are addresses of one machine."""
    found = [entry.address.partition("%")[0] for entries in psutil.net_if_addrs().values() for entry in entries]
    own = set()
    for text in (*found, *more):
        try:
            address = ipaddress.ip_address(text)
        except ValueError:  # a link-layer address, which is not an IP address
            continue
        if not address.is_unspecified:
            own.add(str(address))
    return frozenset(own)
