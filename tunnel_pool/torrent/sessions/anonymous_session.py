"""libtorrent sessions that have no way out but the tunnels, one for each lane.

To each belong a SOCKS5 server, whose password it alone has, the dispatcher that leads from there to circuits, and its
way into BitTorrent's DHT. The commands and the daemon open theirs here; they differ in the session (`make`).
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from tunnel_pool.contract import Address, Tunnels
from tunnel_pool.overlay.community import LocalTunnelSettings
from tunnel_pool.overlay.ground.lanes import Lane
from tunnel_pool.sandbox.lockdown import Lockdown
from tunnel_pool.socks5.messages import Secret
from tunnel_pool.socks5.server import Socks5Server
from tunnel_pool.torrent.announces.announcer import Announcer
from tunnel_pool.torrent.announces.choice import Life
from tunnel_pool.torrent.sessions.dht_bootstrap import DhtEntry
from tunnel_pool.torrent.sessions.dispatch import Dispatcher, connect, new_secret, serve_session
from tunnel_pool.torrent.sessions.libtorrent_session import LibtorrentSession
from tunnel_pool.torrent.sessions.readiness import Readiness
from tunnel_pool.torrent.sessions.transport_control import LaneKinds, TransportControl

LIFE = Life(LocalTunnelSettings.max_time, LocalTunnelSettings.max_traffic)  # that of a circuit of ours
S = TypeVar("S", bound=LibtorrentSession[Any])


@dataclass(frozen=True, slots=True)
class AnonymousSession(Generic[S]):
    """Holds a libtorrent session, and all that belongs to it."""

    session: S
    server: Socks5Server
    dispatcher: Dispatcher
    readiness: Readiness
    transports: TransportControl
    announcer: Announcer
    entering: asyncio.Task[None] | None  # the task that enters the DHT; None where it is off

    def is_ready(self, now_s: float) -> bool:
        """Return whether torrents that need peers can be started; these are asked in the best way then."""
        if not self.readiness.is_ready(now_s) or not self.announcer.may_ask:
            return False
        self.transports.choose(now_s, self.readiness.ready_s)
        return True

    def add_end(self, peer: Address, add: Callable[[Address], object]) -> None:
        """Call `add` with the other end of a hidden swarm's circuit, once it is known how to meet it."""
        self.transports.add_end(peer, add)

    async def stop(self) -> None:
        """End the libtorrent session; its last announces go over the lane's circuits until this returns."""
        self.transports.end()
        if self.entering is not None:
            self.entering.cancel()
        try:
            await self.session.stop()
        finally:
            self.announcer.end()

    def dropped(self) -> Counter[str]:
        """Return how many datagrams were dropped, by reason."""
        return self.dispatcher.dropped() + self.server.counters


class AnonymousSessions(Generic[S]):
    """Holds a session for each lane that was opened; `close` ends them all."""

    def __init__(
        self,
        tunnels: Tunnels,
        make: Callable[[int, Secret], S],
        *,
        steering: bool,
        lockdown: Lockdown | None,
        dht_nodes: Sequence[Address] = (),
    ) -> None:
        """`make` gets the port of the SOCKS5 server on loopback and its password, and returns a session.

        `dht_nodes` are where BitTorrent's DHT is entered, by address or name; without any it is off.
        """
        self._tunnels = tunnels
        self._make = make
        self._steering = steering
        self._lockdown = lockdown
        self._dht_nodes = tuple(dht_nodes)
        self._kinds = LaneKinds(tunnels)
        self._servers: dict[Lane, Socks5Server] = {}
        self._opened: dict[Lane, AnonymousSession[S]] = {}
        self._ending: list[AnonymousSession[S]] = []
        self._dropped: Counter[str] = Counter()  # counts of sessions that have ended

    def __iter__(self) -> Iterator[AnonymousSession[S]]:
        return iter(self._opened.values())

    def get(self, lane: Lane) -> AnonymousSession[S] | None:
        return self._opened.get(lane)

    def open(self, lane: Lane) -> AnonymousSession[S]:
        """Open the session of this lane and start it; no circuits are built yet. Raises what `make` raises."""
        secret = new_secret()
        on_lost = partial(self._reconnect, lane)
        dispatcher, server = serve_session(
            self._tunnels, lane, on_lost, self._steering, secret=secret, lockdown=self._lockdown, announced=True
        )
        self._servers[lane] = server
        session = self._make(server.listen(), secret)
        session.on_listening = server.set_usual_client
        session.start()
        entering = None
        if self._dht_nodes:
            entry = DhtEntry(self._tunnels, lane, session, self._dht_nodes)
            entering = asyncio.get_running_loop().create_task(entry.keep())
        transports = TransportControl(self._tunnels, lane, session, self._kinds)
        transports.start()
        dispatcher.announcer = announcer = Announcer(self._tunnels, lane, session, LIFE)
        announcer.has_dht = bool(self._dht_nodes)
        announcer.start()
        dispatcher.on_guest = transports.guest_came
        dispatcher.is_http_tracker = session.is_http_tracker
        readiness = Readiness(self._tunnels, dispatcher)
        announcer.is_steady = lambda: readiness.is_steady(time.monotonic())
        opened = AnonymousSession(session, server, dispatcher, readiness, transports, announcer, entering)
        self._opened[lane] = opened
        self._connect()
        return opened

    async def end(self, lane: Lane) -> None:
        """End a session, its server and the lane's circuits; nothing is sent in its name when this returns."""
        ended = self._opened.pop(lane, None)
        if ended is None:
            return
        self._ending.append(ended)
        await ended.stop()
        if self._servers.get(lane) is ended.server:  # otherwise it was opened anew meanwhile
            del self._servers[lane]
            self._connect()
            self._tunnels.end_tunnels(*lane)
        await ended.server.close()
        ended.dispatcher.end()
        self._ending.remove(ended)
        self._dropped += ended.dropped()

    async def close(self) -> None:
        """End all sessions, then their servers; the tunnels are somebody else's to close."""
        try:
            await asyncio.gather(*(opened.stop() for opened in (*self, *self._ending)))
        finally:
            for server in self._servers.values():
                await server.close()

    def dropped(self) -> Counter[str]:
        """Return how many datagrams were dropped, by reason."""
        return sum((each.dropped() for each in (*self, *self._ending)), self._dropped.copy())

    def _reconnect(self, lane: Lane, is_lost: Callable[[Address], bool]) -> None:
        if (opened := self._opened.get(lane)) is not None:
            opened.session.reconnect(is_lost)

    def _connect(self) -> None:
        connect(self._tunnels, [opened.dispatcher for opened in self])
