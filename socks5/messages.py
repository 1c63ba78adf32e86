"""The UDP request header and the replies of RFC 1928, and the answer of RFC 1929. Pure.

UDP request (section 7), in front of each datagram both ways:

    +-----+------+------+----------+------+
    | RSV | FRAG | ATYP | ADDR     | PORT | payload
    +-----+------+------+----------+------+
      2     1      1      variable   2
"""

from enum import IntEnum
from typing import NamedTuple

from tunnel_pool.socks5.address import MAX_ENCODED_BYTES, Socks5Error, address_length

VERSION = 5
UDP_HEADER_START = b"\x00\x00\x00"  # RSV, FRAG 0


class Method(IntEnum):
    NO_AUTHENTICATION = 0x00
    USER_AND_PASSWORD = 0x02
    NONE_ACCEPTABLE = 0xFF


class Secret(NamedTuple):
    """A user and password (RFC 1929), each of 1 to 255 bytes."""

    user: str
    password: str


AUTHENTICATION_VERSION = 1


class Command(IntEnum):
    CONNECT = 1
    BIND = 2
    UDP_ASSOCIATE = 3


class ReplyCode(IntEnum):
    """Lists the values of REP, section 6."""

    SUCCEEDED = 0
    GENERAL_FAILURE = 1
    NOT_ALLOWED = 2
    NETWORK_UNREACHABLE = 3
    HOST_UNREACHABLE = 4
    CONNECTION_REFUSED = 5
    TTL_EXPIRED = 6
    COMMAND_NOT_SUPPORTED = 7
    ADDRESS_TYPE_NOT_SUPPORTED = 8


def method_selection(method: Method) -> bytes:
    """Return the two bytes of section 3, also when no method is acceptable."""
    return bytes([VERSION, method])


def authentication_status(succeeded: bool) -> bytes:
    """Return the answer of RFC 1929 section 2; a client that failed is disconnected."""
    return bytes([AUTHENTICATION_VERSION, 0 if succeeded else 1])


def reply(code: ReplyCode, bound: bytes) -> bytes:
    """Return a reply (section 6); `bound` is an encoded address."""
    return bytes([VERSION, code, 0]) + bound


def split_udp_request(datagram: bytes) -> tuple[bytes, bytes]:
    """Return (encoded address, payload) of a datagram from the client.

    Raises Socks5Error; a fragment is one (section 7 allows to drop them).
    """
    if len(datagram) < 4:
        raise Socks5Error("datagram shorter than its header")
    if datagram[2] != 0:
        raise Socks5Error("fragmented datagram")
    length = address_length(datagram, 3)
    if length is None or len(datagram) < 3 + length:
        raise Socks5Error("datagram shorter than its header")
    if length > MAX_ENCODED_BYTES:
        raise Socks5Error("domain name too long")
    return datagram[3 : 3 + length], datagram[3 + length :]


def join_udp_request(address: bytes, payload: bytes) -> bytes:
    """Return a datagram for the client: where it came from, encoded, and what it says."""
    return UDP_HEADER_START + address + payload
