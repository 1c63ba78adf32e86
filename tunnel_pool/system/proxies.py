"""Who asks, and by what name, where requests come from a reverse proxy (nginx, Caddy, Traefik). Pure.

A proxy writes into headers what only it knows: X-Forwarded-For has the address of each who asked on the way, the last
one at the end, X-Forwarded-Host the name that a browser asked for. Anybody may send such headers, so those of proxies
alone count that the operator has named.
"""

import ipaddress
import re
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
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


def networks_in(text: str) -> list[Network]:
    """Return the addresses and networks that are listed with commas between. Raises ValueError."""
    return [ipaddress.ip_network(str(_address(each) or each.strip())) for each in text.split(",")]


def forwarded(asked: Iterable[str], host: str | None, peer: str, proxies: Collection[Network]) -> Forwarded | None:
    """Return what a proxy says of a request that came from the address `peer`; None where that is no proxy.

    `asked` are all lines of X-Forwarded-For: some proxies add one of their own to those of the client. `host` is
    X-Forwarded-Host.
    """
    if not _is_any_of(_address(peer), proxies):
        return None
    on_the_way = [_address(each) for line in asked for each in line.split(",")]
    client = next((each for each in reversed(on_the_way) if not _is_any_of(each, proxies)), None)
    name = (host or "").partition(",")[0].strip()
    return Forwarded(str(client) if client is not None else None, name or None)


def _is_any_of(address: Address | None, networks: Collection[Network]) -> bool:
    return address is not None and any(address in network for network in networks)


def _address(text: str) -> Address | None:
    """Return an address, which may have a port behind it, or brackets around it; None for what is none."""
    text = text.strip().strip('"')
    with_port = re.fullmatch(r"(?:\[([^\]]+)\]|([0-9.]+))(?::\d+)?", text)
    try:
        address = ipaddress.ip_address((with_port[1] or with_port[2]) if with_port else text)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address
