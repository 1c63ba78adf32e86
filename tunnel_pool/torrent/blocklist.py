"""Lists of addresses that plain torrents have nothing to do with, in the forms in which such lists are passed around.

A line is one of: `name:1.2.3.0-1.2.3.255` (PeerGuardian's text form, P2P), `001.002.003.000 - 001.002.003.255 , 000 ,
name` (eMule's DAT, where 128 and more allow), `1.2.3.0/24` (CIDR, also of IPv6), `1.2.3.4`. What begins with `#`, `;`
or `//` is a comment.
"""

import gzip
import ipaddress
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import libtorrent as lt

from tunnel_pool.system.errors import UserError

MAX_BYTES = 256 << 20  # of a list, once it is unpacked
MAX_RANGES = 2_000_000
COMMENTS = ("#", ";", "//")
ALLOWED = 128  # from here on, DAT's access levels let an address in

Range = tuple[int, int, int]
"""The version of IP, the first address and the last one."""


class Blocklist(NamedTuple):
    """Ranges that do not overlap, in order; and how many lines could not be read."""

    ranges: list[Range]
    bad_lines: int

    def filter(self) -> lt.ip_filter:
        blocked = lt.ip_filter()
        for version, first, last in self.ranges:
            kind = ipaddress.IPv4Address if version == 4 else ipaddress.IPv6Address
            blocked.add_rule(str(kind(first)), str(kind(last)), 1)
        return blocked


NOTHING = Blocklist([], 0)


def parse(lines: Iterable[str]) -> Blocklist:
    ranges: list[Range] = []
    bad = 0
    for line in lines:
        text = line.strip()
        if not text or text.startswith(COMMENTS):
            continue
        try:
            found = _range(text)
        except ValueError:
            bad += 1
            continue
        if found is not None:
            ranges.append(found)
    return Blocklist(_merged(ranges), bad)


def _range(text: str) -> Range | None:
    """Return the addresses of a line, None where it allows them. Raises ValueError."""
    try:
        network = ipaddress.ip_network(text, strict=False)
    except ValueError:
        pass
    else:
        return network.version, int(network.network_address), int(network.broadcast_address)
    ends, _, rest = text.partition(",")
    access = rest.partition(",")[0].strip()
    if access.isascii() and access.isdigit() and len(access) < 4 and ":" not in ends:
        return _between(ends) if int(access) < ALLOWED else None
    return _between(text.rpartition(":")[2])


def _between(ends: str) -> Range:
    """Raises ValueError."""
    first, dash, last = ends.partition("-")
    if not dash or _address(first) > _address(last):
        raise ValueError
    return 4, _address(first), _address(last)


def _address(text: str) -> int:
    """Return an IPv4 address whose parts may begin with zeros. Raises ValueError."""
    parts = text.strip().split(".")
    if len(parts) != 4 or not all(part.isascii() and part.isdigit() and len(part) <= 3 for part in parts):
        raise ValueError
    return int.from_bytes(bytes(map(int, parts)), "big")


def _merged(ranges: Iterable[Range]) -> list[Range]:
    merged: list[Range] = []
    for version, first, last in sorted(ranges):
        if merged and merged[-1][0] == version and first <= merged[-1][2] + 1:
            merged[-1] = version, merged[-1][1], max(last, merged[-1][2])
        else:
            merged.append((version, first, last))
    return merged


def read(paths: Iterable[Path]) -> Blocklist:
    """Return what is in these files together, packed by gzip or not. Raises UserError."""
    ranges: list[Range] = []
    bad = 0
    for path in paths:
        found = parse(_content(path).decode(errors="replace").splitlines())
        if not found.ranges:
            raise UserError(f"there is no address in the block list {path}: it takes P2P, DAT and CIDR lines")
        ranges += found.ranges
        bad += found.bad_lines
        if len(ranges) > MAX_RANGES:
            raise UserError(f"the block lists have more than {MAX_RANGES} ranges")
    return Blocklist(_merged(ranges), bad)


def _content(path: Path) -> bytes:
    """Raises UserError."""
    try:
        with path.open("rb") as file:
            is_packed = file.read(2) == b"\x1f\x8b"
        with gzip.open(path) if is_packed else path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except (EOFError, zlib.error):
        raise UserError(f"cannot unpack the block list {path}") from None
    except OSError as error:
        raise UserError(f"cannot read the block list {path}: {error.strerror or 'it is damaged'}") from None
    if len(content) > MAX_BYTES:
        raise UserError(f"the block list {path} is larger than {MAX_BYTES >> 20} MiB")
    return content
