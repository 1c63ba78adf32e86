"""Which user is at the other end of a TCP connection on this machine (proc(5), /proc/PID/net/tcp and tcp6).

A line of the table is one end of a connection. Of those with addresses in hexadecimal, each 32-bit word in
the machine's byte order:

    sl local_address:port remote_address:port st tx:rx tr:tm->when retrnsmt uid ...
"""

import ipaddress
import os
import sys

from tunnel_pool.sandbox.kernel import IS_LINUX

_TABLES = ("/proc/self/net/tcp", "/proc/self/net/tcp6")
_CHUNK_BYTES = 1 << 16
_LOCAL, _REMOTE, _UID = 1, 2, 7

Place = tuple[str, int]

_kept: list[int] = []


def keep_tables() -> None:
    """Open the tables and keep them open: opened before a new user namespace, they show the old one's user ids."""
    if IS_LINUX and not _kept:
        _kept.extend(os.open(path, os.O_RDONLY | os.O_CLOEXEC) for path in _TABLES if os.path.exists(path))


def is_supported() -> bool:
    return IS_LINUX and os.path.exists(_TABLES[0])


def user_of(theirs: Place, ours: Place) -> int | None:
    """Return the user id of the process at `theirs` of a connection to `ours`; None when there is no such.

    Both are an IP address and a port. Raises OSError.
    """
    keep_tables()
    wanted = _packed(theirs), _packed(ours)
    for descriptor in _kept:
        for line in _read(descriptor).splitlines()[1:]:
            fields = line.split()
            if len(fields) > _UID and (_parsed(fields[_LOCAL]), _parsed(fields[_REMOTE])) == wanted:
                return int(fields[_UID])
    return None


def _read(descriptor: int) -> str:
    pieces, at = [], 0
    while piece := os.pread(descriptor, _CHUNK_BYTES, at):
        pieces.append(piece)
        at += len(piece)
    return b"".join(pieces).decode("ascii")


def _packed(place: Place) -> tuple[bytes, int]:
    address = ipaddress.ip_address(place[0].partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.packed, place[1]
    return address.packed, place[1]


def _parsed(text: str) -> tuple[bytes, int]:
    digits, _, port = text.partition(":")
    words = [bytes.fromhex(digits[start : start + 8]) for start in range(0, len(digits), 8)]
    packed = b"".join(word[::-1] if sys.byteorder == "little" else word for word in words)
    mapped = b"\0" * 10 + b"\xff\xff"
    return packed.removeprefix(mapped) if len(packed) == 16 else packed, int(port, 16)


def place_of(address: object) -> Place | None:
    """Return what a socket says of an end of it as an address and a port, None for a socket of another kind."""
    if isinstance(address, tuple) and len(address) >= 2 and isinstance(address[0], str):
        return address[0], int(address[1])
    return None
