"""Addresses as ATYP, ADDR, PORT (RFC 1928 section 5). Pure.

+------+----------------------------+------+
| ATYP | 1: 4 bytes   IPv4          | PORT |
|      | 3: 1 + n     domain name   |      |
|      | 4: 16 bytes  IPv6          |      |
+------+----------------------------+------+
"""

import struct
from enum import IntEnum
from functools import lru_cache
from socket import AF_INET, AF_INET6, inet_ntop, inet_pton
from typing import NamedTuple

MAX_DOMAIN_BYTES = 255  # the length is one byte
MAX_ENCODED_BYTES = 255  # what the data frame's address length can say, so a domain name of 251 at most


class Socks5Error(Exception):
    """Says that the other side sent what RFC 1928 does not allow; parsers here let no other error out."""


class AddressType(IntEnum):
    IPV4 = 1
    DOMAIN = 3
    IPV6 = 4


class Socks5Address(NamedTuple):
    """A destination or an origin; `host` is an IP in its usual form or a domain name."""

    kind: AddressType
    host: str
    port: int


ANY = Socks5Address(AddressType.IPV4, "0.0.0.0", 0)  # noqa: S104


def address_length(data: bytes, offset: int = 0) -> int | None:
    """Return how many bytes the address at `offset` takes, None when too few are there to tell.

    Raises Socks5Error for an unknown ATYP and an empty domain name.
    """
    if len(data) <= offset:
        return None
    kind = data[offset]
    if kind == AddressType.IPV4:
        return 7
    if kind == AddressType.IPV6:
        return 19
    if kind != AddressType.DOMAIN:
        raise Socks5Error(f"unknown address type {kind}")
    if len(data) <= offset + 1:
        return None
    if data[offset + 1] == 0:
        raise Socks5Error("empty domain name")
    return 4 + data[offset + 1]


@lru_cache(maxsize=4096)
def decode_address(data: bytes) -> Socks5Address:
    """Return the address that `data` holds, to the byte. Raises Socks5Error."""
    length = address_length(data)
    if length is None or length != len(data):
        raise Socks5Error(f"address of {len(data)} bytes where {length or 'more'} are needed")
    port = int.from_bytes(data[-2:], "big")
    if data[0] == AddressType.IPV4:
        return Socks5Address(AddressType.IPV4, inet_ntop(AF_INET, data[1:5]), port)
    if data[0] == AddressType.IPV6:
        return Socks5Address(AddressType.IPV6, inet_ntop(AF_INET6, data[1:17]), port)
    try:
        host = data[2:-2].decode("ascii")
    except UnicodeDecodeError:
        raise Socks5Error("domain name is not ASCII") from None
    if not host.isprintable() or " " in host:
        raise Socks5Error("domain name holds unprintable characters")
    return Socks5Address(AddressType.DOMAIN, host, port)


@lru_cache(maxsize=4096)
def encode_address(host: str, port: int) -> bytes:
    """Return the bytes of an address; what is not an IP is taken as a domain name.

    Raises ValueError for a host or port that can't be encoded: ours, so a bug.
    """
    if not 0 <= port <= 0xFFFF:
        raise ValueError(f"port {port}")
    for kind, family in ((AddressType.IPV4, AF_INET), (AddressType.IPV6, AF_INET6)):
        try:
            return bytes([kind]) + inet_pton(family, host) + struct.pack("!H", port)
        except OSError:
            continue
    name = host.encode("ascii")
    if not 0 < len(name) <= MAX_DOMAIN_BYTES:
        raise ValueError(f"domain name of {len(name)} bytes")
    return bytes([AddressType.DOMAIN, len(name)]) + name + struct.pack("!H", port)
