"""Bandwidth groups: torrents that share a speed limit (Transmission 4's group-set). Pure."""

from collections.abc import Iterable, Mapping
from typing import Annotated, NamedTuple

import msgspec

from tunnel_pool.torrent.isolation import share_limit

MAX_KB_PER_S = 2_000_000  # libtorrent keeps bytes a second in 31 bits

Speed = Annotated[int, msgspec.Meta(ge=0, le=MAX_KB_PER_S)]


class Group(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The limits of a group in kilobytes a second, each of which holds where it is enabled."""

    honors_session_limits: bool = True  # always
    speed_limit_down: Speed = 0
    speed_limit_down_enabled: bool = False
    speed_limit_up: Speed = 0
    speed_limit_up_enabled: bool = False

    def limits(self) -> tuple[int, int]:
        """Return the bytes a second, down and up; 0 is no limit."""
        return (
            max(1, self.speed_limit_down * 1000) if self.speed_limit_down_enabled else 0,
            max(1, self.speed_limit_up * 1000) if self.speed_limit_up_enabled else 0,
        )


class Member(NamedTuple):
    number: int  # the torrent's
    group: str
    down: int  # its speeds, bytes a second
    up: int


def shares(members: Iterable[Member], groups: Mapping[str, Group]) -> dict[int, tuple[int, int]]:
    """Return what each torrent of a group may take of its limits, down and up; 0 is no limit."""
    by_group: dict[str, list[Member]] = {}
    for member in members:
        if member.group in groups:
            by_group.setdefault(member.group, []).append(member)
    found: dict[int, tuple[int, int]] = {}
    for name, those in by_group.items():
        down, up = groups[name].limits()
        downs = share_limit(down, {member.number: member.down for member in those})
        ups = share_limit(up, {member.number: member.up for member in those})
        found |= {member.number: (downs[member.number], ups[member.number]) for member in those}
    return found
