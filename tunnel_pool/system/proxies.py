"""Who asks, and by what name, where requests come from a reverse proxy (nginx, Caddy, Traefik). Pure.

A proxy writes into headers what only it knows: X-Forwarded-For has the address of each who asked on the way, the last
one at the end, X-Forwarded-Host the name that a browser asked for. Anybody may send such headers, so those of proxies
alone count that the operator has named.
"""

import ipaddress
from collections.abc import Collection, Mapping
from typing import NamedTuple

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
FOR, HOST = "X-Forwarded-For", "X-Forwarded-Host"
SENT_BY_PROXIES = (FOR, HOST, "X-Forwarded-Proto", "X-Real-IP", "Forwarded")


class Forwarded(NamedTuple):
    """Says who asked a proxy, and by which name; None where it does not say."""

    client: str | None
    host: str | None


def is_forwarded(headers: Mapping[str, str]) -> bool:
    """Return whether a proxy, named or not, has sent a request on."""
    return any(name in headers for name in SENT_BY_PROXIES)


def forwarded(headers: Mapping[str, str], peer: str, proxies: Collection[Network]) -> Forwarded | None:
    """Return what a proxy says of a request that came from the address `peer`; None where that is no proxy."""
    if not _is_any_of(peer, proxies):
        return None
    asked = [each.strip() for each in headers.get(FOR, "").split(",")]
    client = next((each for each in reversed(asked) if not _is_any_of(each, proxies)), "")
    host = headers.get(HOST, "").partition(",")[0].strip()
    return Forwarded(client if _is_address(client) else None, host or None)


def _is_any_of(text: str, networks: Collection[Network]) -> bool:
    if not _is_address(text):
        return False
    address = ipaddress.ip_address(text)
    mapped = getattr(address, "ipv4_mapped", None)
    return any((mapped or address) in network for network in networks)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
