"""The libtorrent sessions of the daemon by lane, opened with the first torrent that needs one."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tunnel_pool.contract import Address, Tunnels
from tunnel_pool.daemon.torrents.session import DaemonSession, OnAlert
from tunnel_pool.overlay.ground.config import HostPort
from tunnel_pool.overlay.ground.lanes import Lane
from tunnel_pool.socks5.messages import Secret
from tunnel_pool.torrent.anonymous_torrents import TrackerRules, tracker_rules
from tunnel_pool.torrent.blocklist import NOTHING, Blocklist
from tunnel_pool.torrent.isolation import PLAIN, Isolation
from tunnel_pool.torrent.sessions.anonymous_session import AnonymousSessions
from tunnel_pool.torrent.sessions.lockdown import LockdownMode, open_lockdown
from tunnel_pool.torrent.sessions.session_settings import anonymous_settings, plain_settings

PLAIN_LANE = Lane(PLAIN)
PLAIN_LINGERS_S = 5.0  # how long it outlives its last torrent: the next one may be on its way
FIRST_CIRCUITS_POLL_S = 0.05
FIRST_CIRCUITS_S = 10.0  # how long first circuits are looked for more often than in each tick
CLOSED = {
    "listen_interfaces": "", "enable_dht": False, "enable_lsd": False, "enable_upnp": False, "enable_natpmp": False,
    "enable_outgoing_tcp": False, "enable_outgoing_utp": False, "enable_incoming_tcp": False,
    "enable_incoming_utp": False,
}  # fmt: skip
ANYWHERE = HostPort("0.0.0.0", 6881)  # noqa: S104


@dataclass(frozen=True, slots=True)
class SessionOptions:
    steering: bool = True
    private: bool = False  # peers and DHT nodes may have private addresses
    dht_nodes: Sequence[Address] = ()  # nodes from which anonymous sessions enter the DHT
    plain_listen: HostPort = ANYWHERE
    plain_dht_nodes: str = ""
    nice: int = 0  # how much nicer libtorrent's threads are than the loop's
    lockdown: LockdownMode = LockdownMode.AUTO
    isolation: Isolation = Isolation.TORRENT


class Sessions:
    """Opens a session for each lane that has torrents. Set `on_alert` and `on_reachable` before the first."""

    def __init__(self, tunnels: Tunnels, options: SessionOptions, device: str = "") -> None:
        """Raises UserError when anonymous sessions are to be locked down and can't be.

        `device` is the one by which alone anything may leave; "": any. libtorrent's names are looked up by the system,
        whose resolver asks by any device: torrents without hops stand still where one is named.
        """
        self.device = device
        self._tunnels = tunnels
        self._options = options
        self.on_alert: OnAlert = lambda torrent, alert: None
        self.on_reachable: Callable[[], None] = lambda: None  # called when a session has its first circuits
        self._sessions: dict[Lane, DaemonSession] = {}
        self._looking: dict[Lane, asyncio.Task[None]] = {}  # tasks that look for a lane's first circuits
        self._limits: dict[Lane, tuple[int, int]] = {}
        self._newcomers = 0, 0
        self.blocked, self._filter = NOTHING, NOTHING.filter()
        self._of_plain: dict[str, object] = {}  # what a client has set for the plain session
        self._closing: asyncio.Task[None] | None = None  # the task that closes the plain session
        self._lockdown = open_lockdown(options.lockdown)
        self._anonymous = AnonymousSessions(
            tunnels,
            self._make_anonymous,
            steering=options.steering,
            lockdown=self._lockdown,
            dht_nodes=options.dht_nodes,
        )

    @property
    def tracker_rules(self) -> TrackerRules:
        """Return which trackers torrents with hops may have."""
        return tracker_rules(self._lockdown is not None, self._options.private)

    def add_end(self, lane: Lane, peer: Address, add: Callable[[Address], object]) -> None:
        """Call `add` with the other end of a hidden swarm's circuit, once it is known how to meet it."""
        if (opened := self._anonymous.get(lane)) is not None:
            opened.add_end(peer, add)

    def ensure_open(self, lane: Lane) -> DaemonSession:
        """Return the session of a lane; it is opened now where there is none."""
        if lane not in self._sessions:
            session = self._open_plain() if lane.hops == PLAIN else self._open_anonymous(lane)
            session.set_limits(*self._newcomers)
            self._sessions[lane] = session
        return self._sessions[lane]

    def _open_plain(self) -> DaemonSession:
        options = self._options
        settings = plain_settings(str(options.plain_listen), options.plain_dht_nodes, options.private)
        session = DaemonSession(self._closed({**settings, **self._of_plain}), self.on_alert, options.nice)
        session.block(self._filter)
        session.start()
        return session

    def block(self, blocked: Blocklist) -> None:
        """Keep torrents without hops from these addresses; with hops, others see an exit's address and not ours."""
        self.blocked, self._filter = blocked, blocked.filter()
        if (session := self._sessions.get(PLAIN_LANE)) is not None:
            session.block(self._filter)

    def set_plain(self, settings: Mapping[str, object]) -> None:
        """Set libtorrent's session of the torrents without hops, now and whenever it is opened."""
        self._of_plain = dict(settings)
        if not self._options.plain_dht_nodes:
            self._of_plain["enable_dht"] = False
        if (session := self._sessions.get(PLAIN_LANE)) is not None:
            session.apply(self._closed(self._of_plain))

    def _closed(self, settings: Mapping[str, object]) -> dict[str, object]:
        """Return the plain session's settings, by which it has nobody to talk to where a device is named."""
        return {**settings, **(CLOSED if self.device else {})}

    def _open_anonymous(self, lane: Lane) -> DaemonSession:
        session = self._anonymous.open(lane).session
        self._looking[lane] = asyncio.get_running_loop().create_task(self._tell_when_reachable(lane))
        self._tunnels.build_tunnels(*lane)
        return session

    def _make_anonymous(self, port: int, secret: Secret) -> DaemonSession:
        options = self._options
        settings = anonymous_settings(port, bool(options.dht_nodes), options.private, secret)
        return DaemonSession(settings, self.on_alert, options.nice, self._lockdown)

    async def _tell_when_reachable(self, lane: Lane) -> None:
        until_s = time.monotonic() + FIRST_CIRCUITS_S
        while not self.is_reachable(lane):
            if time.monotonic() > until_s:
                return
            await asyncio.sleep(FIRST_CIRCUITS_POLL_S)
        self.on_reachable()

    def is_reachable(self, lane: Lane) -> bool:
        """Return whether anybody can be reached over this lane."""
        opened = self._anonymous.get(lane)
        return (lane.hops == PLAIN and not self.device) or (opened is not None and opened.is_ready(time.monotonic()))

    def found_at(self) -> dict[int, Address]:
        """Return where trackers and the DHT are told to find torrents, by the circuit that leads there."""
        announcers = [opened.announcer for opened in self._anonymous]
        return {each.circuit_id: each.outside for each in announcers if each.circuit_id and each.outside}

    def set_limits(self, limits: Mapping[Lane, tuple[int, int]], newcomers: tuple[int, int]) -> None:
        """Limit each lane's torrents together, down and up in bytes a second; 0 is no limit. Called every second.

        `newcomers` holds for sessions that are opened until then.
        """
        self._newcomers = newcomers
        for lane, wanted in limits.items():
            if lane in self._sessions and self._limits.get(lane) != wanted:
                self._limits[lane] = wanted
                self._sessions[lane].set_limits(*wanted)

    def plain_port(self) -> int:
        """Return the port at which others find torrents without hops."""
        session = self._sessions.get(PLAIN_LANE)
        return session.listen_port() if session is not None else self._options.plain_listen.port

    def connect_peers(self) -> None:
        for session in self._sessions.values():
            session.connect_peers()

    async def resumed(self) -> None:
        """Wait until libtorrent shows the restored progress of all torrents."""
        await asyncio.gather(*(session.resumed() for session in self._sessions.values()))

    def dropped(self) -> Counter[str]:
        """Return the dropped datagrams by reason."""
        return self._anonymous.dropped()

    def close_plain_later(self, is_unused: Callable[[], bool]) -> None:
        """End the plain session in a while, with its DHT and its open port, unless it is used by then."""

        def close_if_unused() -> None:
            if PLAIN_LANE in self._sessions and is_unused():
                self._closing = asyncio.get_running_loop().create_task(self.close(PLAIN_LANE))

        asyncio.get_running_loop().call_later(PLAIN_LINGERS_S, close_if_unused)

    async def close(self, lane: Lane) -> None:
        """End a session whose torrents were taken out of it; nothing is sent in its name when this returns."""
        session = self._sessions.pop(lane, None)
        self._limits.pop(lane, None)
        if (looking := self._looking.pop(lane, None)) is not None:
            looking.cancel()
        if session is not None and lane.hops == PLAIN:
            await session.stop()
        await self._anonymous.end(lane)

    async def stop(self) -> None:
        for looking in self._looking.values():
            looking.cancel()
        if self._closing is not None:
            await self._closing
        plain = self._sessions.get(PLAIN_LANE)
        await asyncio.gather(self._anonymous.close(), *([plain.stop()] if plain is not None else []))
        if self._lockdown is not None:
            self._lockdown.close()
