"""What an announcer knows of: the session whose torrents it announces, each circuit that questions take, who waits."""

import asyncio
import contextlib
import secrets
from dataclasses import dataclass, field
from typing import Protocol

from tunnel_pool.contract import Address
from tunnel_pool.torrent.announces.account import Account
from tunnel_pool.torrent.announces.outside import Outside
from tunnel_pool.torrent.announces.reannounces import IsTold


class AnnouncedSession(Protocol):
    """Names what is asked of a libtorrent session."""

    def announce_anew(self, *, to_trackers: bool, is_told: IsTold | None = None) -> None:
        """Have the DHT told of all torrents, and trackers that are not told yet, by calls of `announce_some`."""

    def announce_some(self, most: int) -> bool:
        """Tell of so many of the torrents that are still to be announced; return whether others are left."""

    def account_of(self, infohash: bytes) -> Account | None:
        """Return the account of the torrent that is announced by this hash; None leaves everything as it is."""

    def is_udp_tracker(self, host: str, port: int) -> bool:
        """Return whether a torrent has a UDP tracker at this address."""

    def is_connected(self, peer: Address) -> bool:
        """Return whether a peer with this address is connected."""


@dataclass(slots=True)
class Watched:
    """Holds what is known of a circuit that questions take, or took."""

    since_s: float
    outside: Outside = field(default_factory=lambda: Outside(secrets.token_bytes))
    is_announced: bool = False  # until it is, answers would go to libtorrent as they come
    announced_s: float = float("-inf")  # when this was asked for last; a child that stood still may not have answered
    asked_s: float = float("-inf")  # when DHT nodes were asked where it is seen
    has_failed: bool = False  # no node answered over it
    exit_port: int | None = None  # as its exit says
    is_exit_asked: bool = False
    is_exit_silent: bool = False  # whether it has been asked, and does not say it

    def port(self) -> int | None:
        """Return by which port others find who sends over it: nodes see what an address translation makes of it."""
        agreed = self.outside.agreed()
        return agreed[1] if agreed is not None else self.exit_port


class Settling:
    """Holds the requests that wait until it is known where torrents are found."""

    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[None]] = []

    @property
    def is_awaited(self) -> bool:
        return bool(self._waiting)

    async def wait(self, at_most_s: float) -> None:
        """Return when it is known, or so much later: what is known has to do then."""
        waiting = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        try:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(waiting, at_most_s)
        finally:
            self._waiting.remove(waiting)

    def ended(self) -> None:
        """Have nobody wait any longer."""
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)
