"""Addresses in data messages (py-ipv8 serialization.py), and beside them those of RFC 1928. Pure.

packed, in a data message         type | address                    | port (2)
                                  1    | IPv4 (4)
                                  2    | length (2) | domain name
                                  3    | IPv6 (16)
encoded, everywhere else          as socks5/address.py says
"""

import struct
from contextlib import suppress
from functools import lru_cache
from socket import AF_INET, AF_INET6, inet_ntop, inet_pton

from ipv8.messaging.interfaces.udp.endpoint import DomainAddress, UDPv4Address, UDPv6Address

from tunnel_pool.socks5.address import Socks5Error, decode_address, encode_address

ADDRESS_IPV4, ADDRESS_DOMAIN, ADDRESS_IPV6 = 1, 2, 3


@lru_cache(maxsize=4096)
def pack_address(host: str, port: int) -> bytes:
    """Return an address as py-ipv8 puts it into a data message."""
    for kind, family in ((ADDRESS_IPV4, AF_INET), (ADDRESS_IPV6, AF_INET6)):
        try:
            return bytes([kind]) + inet_pton(family, host) + struct.pack("!H", port)
        except OSError:
            continue
    name = host.encode()
    return struct.pack("!BH", ADDRESS_DOMAIN, len(name)) + name + struct.pack("!H", port)


def packed_address_end(message: bytes, offset: int) -> int:
    """Return where the address at `offset` ends. Raises ValueError when it is cut short or of no known type."""
    kind = message[offset] if offset < len(message) else None
    if kind == ADDRESS_IPV4:
        end = offset + 7
    elif kind == ADDRESS_IPV6:
        end = offset + 19
    elif kind == ADDRESS_DOMAIN and offset + 3 <= len(message):
        end = offset + 5 + int.from_bytes(message[offset + 1 : offset + 3], "big")
    else:
        raise ValueError(f"address of type {kind}")
    if end > len(message):
        raise ValueError("address cut short")
    return end


@lru_cache(maxsize=4096)
def unpack_address(packed: bytes) -> UDPv4Address | UDPv6Address | DomainAddress:
    """Return the address in the bytes that `packed_address_end` found. Raises ValueError for a name not in UTF-8.

    A name that is an IP address is one (libtorrent has a proxy look those up, too).
    """
    port = int.from_bytes(packed[-2:], "big")
    if packed[0] == ADDRESS_IPV4:
        return UDPv4Address(inet_ntop(AF_INET, packed[1:5]), port)
    if packed[0] == ADDRESS_IPV6:
        return UDPv6Address(inet_ntop(AF_INET6, packed[1:17]), port)
    name = packed[3:-2].decode()
    for family, kind in ((AF_INET, UDPv4Address), (AF_INET6, UDPv6Address)):
        with suppress(OSError, ValueError):
            return kind(inet_ntop(family, inet_pton(family, name)), port)
    return DomainAddress(name, port)


@lru_cache(maxsize=4096)
def pack_encoded(encoded: bytes) -> bytes:
    """Return an address of RFC 1928 as a data message has it. Raises Socks5Error."""
    return pack_address(*decode_address(encoded)[1:])


@lru_cache(maxsize=4096)
def encode_packed(packed: bytes) -> bytes:
    """Return an address of a data message as RFC 1928 has it. Raises ValueError for a name that it can't say."""
    host, port = unpack_address(packed)[:2]
    address = encode_address(host, port)
    try:
        decode_address(address)
    except Socks5Error as error:
        raise ValueError(str(error)) from None
    return address


def unpack_encoded(encoded: bytes) -> UDPv4Address | UDPv6Address | DomainAddress:
    """Return an address of RFC 1928 as py-ipv8 has it. Raises Socks5Error."""
    return unpack_address(pack_encoded(encoded))
