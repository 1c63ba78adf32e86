"""Finds out which user is at the other end of a TCP connection on this machine.

The kernel is asked for one connection by sock_diag(7) (linux/inet_diag.h). A request, integers in the machine's byte
order unless marked as big endian:

    nlmsghdr            length (4), type (2), flags (2), sequence number (4), port (4)
    inet_diag_req_v2    family (1), protocol (1), extensions (1), pad (1), states (4)
    inet_diag_sockid    source port (2, big endian), destination port (2, big endian), source (16), destination (16),
                        interface (4), cookie (8)

The answer: nlmsghdr, family (1), state (1), timer (1), retransmissions (1), inet_diag_sockid, expires (4),
queues (8), uid (4), inode (4).

A socket that its owner has closed lives on in the kernel until the other end has its bytes; it shows uid 0, which is
root's, and inode 0. So a user counts with an inode alone. Where the kernel has no sock_diag, its table of all
connections is read instead (proc(5), /proc/PID/net/tcp and tcp6).

In a user namespace that does not know all users, those that it does not know show one number, which may be ours as
well (user_namespaces(7), /proc/sys/kernel/overflowuid). There that number is nobody's.
"""

import errno
import ipaddress
import os
import socket
import struct
import sys
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from tunnel_pool.sandbox.kernel import IS_LINUX

_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY = 4, 20  # linux/netlink.h, linux/sock_diag.h
_NLMSG_ERROR, _NLM_F_REQUEST = 2, 1
_HEADER, _REQUEST, _TAIL = struct.Struct("=IHHII"), struct.Struct("=BBBBI"), struct.Struct("=IIIII")
_PORTS, _REST = struct.Struct("!HH"), struct.Struct("=IQ")
_SOCKID_BYTES = 48
_ANY_COOKIE, _ALL_STATES = (1 << 64) - 1, 0xFFFFFFFF
_ANSWER_BYTES = 8192
_ALL_USERS = 0xFFFFFFFF  # of the first namespace; the last number is nobody's
_MAPPED = b"\0" * 10 + b"\xff\xff"

_TABLES = ("/proc/self/net/tcp", "/proc/self/net/tcp6")
_CHUNK_BYTES = 1 << 16
# sl local_address:port remote_address:port st tx:rx tr:tm->when retrnsmt uid timeout inode
_LOCAL, _REMOTE, _UID, _INODE = 1, 2, 7, 9

Place = tuple[str, int]


class _Kept(NamedTuple):
    """Holds the descriptors by which the kernel is asked.

    Those that were opened before a new user namespace show the user ids of the old one.
    """

    diag: socket.socket | None
    tables: tuple[int, ...]
    unknown: int | None  # the number of all users that are not known here


_kept: list[_Kept] = []  # one entry once it is opened


def keep_open() -> None:
    """Open what the kernel is asked by, and keep it open."""
    if not IS_LINUX or _kept:
        return
    tables = tuple(os.open(path, os.O_RDONLY | os.O_CLOEXEC) for path in _TABLES if os.path.exists(path))
    diag, unknown = None, _number_of_unknown()
    try:
        diag = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, _NETLINK_SOCK_DIAG)
        _kept.append(_Kept(diag if _answers(diag) else None, tables, unknown))
    except OSError:
        _kept.append(_Kept(None, tables, unknown))
    if diag is not None and _kept[0].diag is None:
        diag.close()


def is_supported() -> bool:
    keep_open()
    return bool(_kept) and (_kept[0].diag is not None or bool(_kept[0].tables))


def user_of(theirs: Place, ours: Place) -> int | None:
    """Return the user id of the process that has the socket at `theirs` of a connection to `ours`.

    Both are an IP address and a port. Return None when there is no such socket, or no process has it any longer.
    Raises OSError.
    """
    keep_open()
    if not _kept:
        return None
    diag, tables, unknown = _kept[0]
    user = _asked(diag, theirs, ours) if diag is not None else _looked_up(tables, theirs, ours)
    return user if user != unknown else None


def _number_of_unknown() -> int | None:
    """Return the number that users show whom this user namespace does not know, None where it knows all."""
    try:
        lines = Path("/proc/self/uid_map").read_bytes().splitlines()
        is_whole = sum(int(line.split()[2]) for line in lines) >= _ALL_USERS
        return None if is_whole else int(Path("/proc/sys/kernel/overflowuid").read_bytes())
    except FileNotFoundError:  # a kernel without user namespaces
        return None


def _answers(diag: socket.socket) -> bool:
    """Return whether the kernel knows a connection of our own by sock_diag."""
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.socket() as one:
        one.connect(listening.getsockname())
        other, place = listening.accept()
        with other:
            return _asked(diag, place, other.getsockname()) is not None


def _asked(diag: socket.socket, theirs: Place, ours: Place) -> int | None:
    source, destination = _packed(theirs), _packed(ours)
    family = socket.AF_INET if len(source[0]) == 4 else socket.AF_INET6
    ports = _PORTS.pack(source[1], destination[1])
    addresses = source[0].ljust(16, b"\0") + destination[0].ljust(16, b"\0")
    request = _REQUEST.pack(family, socket.IPPROTO_TCP, 0, 0, _ALL_STATES) + ports + addresses
    request += _REST.pack(0, _ANY_COOKIE)
    diag.send(_HEADER.pack(_HEADER.size + len(request), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 0, 0) + request)
    answer = diag.recv(_ANSWER_BYTES)  # the kernel has answered when `send` returns
    if _HEADER.unpack_from(answer)[1] == _NLMSG_ERROR:
        (error,) = struct.unpack_from("=i", answer, _HEADER.size)
        if -error == errno.ENOENT:
            return None
        raise OSError(-error, os.strerror(-error))
    at = _HEADER.size + 4
    shown = _PORTS.unpack_from(answer, at)
    ends = (answer[at + 4 : at + 20], shown[0]), (answer[at + 20 : at + 36], shown[1])
    # For want of a connection, the kernel shows a listening socket at `theirs`, whose other end is nobody.
    if tuple((_stripped(packed, answer[_HEADER.size]), port) for packed, port in ends) != (source, destination):
        return None
    *_, user, inode = _TAIL.unpack_from(answer, at + _SOCKID_BYTES)
    return int(user) if inode else None


def _stripped(packed: bytes, family: int) -> bytes:
    """Return 4 bytes for an IPv4 address, also for that of a socket which speaks both (RFC 4291, 2.5.5.2)."""
    return packed[:4] if family == socket.AF_INET else packed.removeprefix(_MAPPED)


def _looked_up(tables: tuple[int, ...], theirs: Place, ours: Place) -> int | None:
    wanted = _packed(theirs), _packed(ours)
    for descriptor in tables:
        for line in _read(descriptor).splitlines()[1:]:
            fields = line.split()
            if len(fields) > _INODE and (_parsed(fields[_LOCAL]), _parsed(fields[_REMOTE])) == wanted:
                return int(fields[_UID]) if int(fields[_INODE]) else None
    return None


def _read(descriptor: int) -> str:
    pieces, at = [], 0
    while piece := os.pread(descriptor, _CHUNK_BYTES, at):
        pieces.append(piece)
        at += len(piece)
    return b"".join(pieces).decode("ascii")


def _packed(place: Place) -> tuple[bytes, int]:
    return _packed_host(place[0]), place[1]


@lru_cache(maxsize=1024)
def _packed_host(host: str) -> bytes:
    address = ipaddress.ip_address(host.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.packed
    return address.packed


def _parsed(text: str) -> tuple[bytes, int]:
    digits, _, port = text.partition(":")
    words = [bytes.fromhex(digits[start : start + 8]) for start in range(0, len(digits), 8)]
    packed = b"".join(word[::-1] if sys.byteorder == "little" else word for word in words)
    return packed.removeprefix(_MAPPED) if len(packed) == 16 else packed, int(port, 16)


def place_of(address: object) -> Place | None:
    """Return what a socket says of an end of it as an address and a port, None for a socket of another kind."""
    if isinstance(address, tuple) and len(address) >= 2 and isinstance(address[0], str):
        return address[0], int(address[1])
    return None
