"""The libtorrent sessions of the daemon by hop count, opened with the first torrent that needs one."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from overlay.config import HostPort
from socks5.server import Socks5Server
from tunnel_pool.contract import Address, Tunnels
from tunnel_pool.daemon.session import DaemonSession, Hear
from tunnel_pool.dht_entry import DhtEntry
from tunnel_pool.dispatch import Dispatcher, connect, new_secret, serve_session
from tunnel_pool.lockdown import LockdownMode, open_lockdown
from tunnel_pool.reach import Reach
from tunnel_pool.session_settings import anonymous_settings, plain_settings

PLAIN = 0
FIRST_CIRCUITS_POLL_S = 0.05
FIRST_CIRCUITS_S = 10.0  # so long it is looked for more often than the library does
ANYWHERE = HostPort("0.0.0.0", 6881)  # noqa: S104


@dataclass(frozen=True, slots=True)
class SessionOptions:
    steering: bool = True
    private: bool = False  # peers and DHT nodes may have private addresses
    dht_nodes: Sequence[Address] = ()  # of the anonymous sessions
    plain_listen: HostPort = ANYWHERE
    plain_dht_nodes: str = ""
    nice: int = 0  # by how much libtorrent's threads are nicer than the loop's
    lockdown: LockdownMode = LockdownMode.AUTO


@dataclass(slots=True)
class _Way:
    """From a libtorrent session into the tunnels."""

    dispatcher: Dispatcher
    server: Socks5Server
    reach: Reach
    tasks: "list[asyncio.Task[None]]"


class Sessions:
    def __init__(self, tunnels: Tunnels, options: SessionOptions, hear: Hear) -> None:
        """Raises UserError when anonymous sessions are to be locked down and can't be."""
        self._tunnels = tunnels
        self._options = options
        self._hear = hear
        self.on_reachable: Callable[[], None] = lambda: None  # called when a session has its first circuits
        self._sessions: dict[int, DaemonSession] = {}
        self._ways: dict[int, _Way] = {}
        self._limits = 0, 0
        self._lockdown = open_lockdown(options.lockdown)
        self._secret = new_secret()

    def of(self, hops: int) -> DaemonSession:
        """Opened when it is not."""
        if hops not in self._sessions:
            session = self._open_plain() if hops == PLAIN else self._open_anonymous(hops)
            session.set_limits(*self._limits)
            session.start()
            self._sessions[hops] = session
        return self._sessions[hops]

    def _open_plain(self) -> DaemonSession:
        options = self._options
        settings = plain_settings(str(options.plain_listen), options.plain_dht_nodes, options.private)
        return DaemonSession(settings, self._hear, options.nice)

    def _open_anonymous(self, hops: int) -> DaemonSession:
        options = self._options
        dispatcher, server = serve_session(
            self._tunnels,
            hops,
            lambda is_lost: self.of(hops).reconnect(is_lost),
            options.steering,
            secret=self._secret,
            lockdown=self._lockdown,
        )
        port = server.listen()
        settings = anonymous_settings(port, bool(options.dht_nodes), options.private, self._secret)
        session = DaemonSession(settings, self._hear, options.nice, self._lockdown)
        session.on_listening = server.set_usual_client
        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(self._tell_when_reachable(hops))]
        if options.dht_nodes:
            tasks.append(loop.create_task(DhtEntry(self._tunnels, hops, session, options.dht_nodes).keep()))
        self._ways[hops] = _Way(dispatcher, server, Reach(self._tunnels, dispatcher), tasks)
        connect(self._tunnels, [way.dispatcher for way in self._ways.values()])
        self._tunnels.build_tunnels(hops)
        return session

    async def _tell_when_reachable(self, hops: int) -> None:
        until_s = time.monotonic() + FIRST_CIRCUITS_S
        while not self.is_reachable(hops):
            if time.monotonic() > until_s:
                return
            await asyncio.sleep(FIRST_CIRCUITS_POLL_S)
        self.on_reachable()

    def is_reachable(self, hops: int) -> bool:
        """Whether anybody can be reached over so many hops."""
        way = self._ways.get(hops)
        return hops == PLAIN or (way is not None and way.reach.is_ready(time.monotonic()))

    def set_limits(self, download_bytes_per_s: int, upload_bytes_per_s: int) -> None:
        """Of each hop count's torrents together; 0: none. Called every second."""
        if (download_bytes_per_s, upload_bytes_per_s) == self._limits:
            return
        self._limits = download_bytes_per_s, upload_bytes_per_s
        for session in self._sessions.values():
            session.set_limits(*self._limits)

    def plain_port(self) -> int:
        """Where others find torrents without hops."""
        session = self._sessions.get(PLAIN)
        return session.listen_port() if session is not None else self._options.plain_listen.port

    def connect_peers(self) -> None:
        for session in self._sessions.values():
            session.connect_peers()

    async def resumed(self) -> None:
        """Return when what was kept of torrents can be seen of them."""
        await asyncio.gather(*(session.resumed() for session in self._sessions.values()))

    def dropped(self) -> Counter[str]:
        """Dropped datagrams by reason."""
        total: Counter[str] = Counter()
        for way in self._ways.values():
            total += way.dispatcher.dropped() + way.server.counters
        return total

    async def close(self, hops: int) -> None:
        """End a session whose torrents were taken out of it; nothing is sent in its name when this returns."""
        if (session := self._sessions.pop(hops, None)) is not None:
            await session.stop()

    async def stop(self) -> None:
        for way in self._ways.values():
            for task in way.tasks:
                task.cancel()
        await asyncio.gather(*(session.stop() for session in self._sessions.values()))
        for way in self._ways.values():
            await way.server.close()
        if self._lockdown is not None:
            self._lockdown.close()
