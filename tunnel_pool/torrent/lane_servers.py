"""The SOCKS5 servers of libtorrent's sessions, one for each lane, and what leads from them into the tunnels."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from tunnel_pool.contract import Tunnels
from tunnel_pool.overlay.clients.lanes import Lane
from tunnel_pool.pooled.steered_associations import OnLost
from tunnel_pool.sandbox.lockdown import Lockdown
from tunnel_pool.socks5.messages import Secret
from tunnel_pool.socks5.server import Socks5Server
from tunnel_pool.torrent.dispatch import Dispatcher, connect, new_secret, serve_session
from tunnel_pool.torrent.readiness import Readiness


@dataclass(frozen=True, slots=True)
class LaneServer:
    """`port` and `secret` are for the libtorrent session that it serves."""

    server: Socks5Server
    dispatcher: Dispatcher
    readiness: Readiness
    port: int
    secret: Secret


class LaneServers:
    """Open one for each libtorrent session; `close` ends them all."""

    def __init__(self, tunnels: Tunnels, steering: bool, lockdown: Lockdown | None) -> None:
        self._tunnels = tunnels
        self._steering = steering
        self._lockdown = lockdown
        self._servers: dict[Lane, LaneServer] = {}
        self._dropped: Counter[str] = Counter()  # of those that are closed

    def __getitem__(self, lane: Lane) -> LaneServer:
        return self._servers[lane]

    def __iter__(self) -> Iterator[LaneServer]:
        return iter(self._servers.values())

    def get(self, lane: Lane) -> LaneServer | None:
        return self._servers.get(lane)

    def open(self, lane: Lane, on_lost: OnLost) -> LaneServer:
        """Listen for the session of this lane; no circuits are built yet."""
        secret = new_secret()
        dispatcher, server = serve_session(
            self._tunnels, lane, on_lost, self._steering, secret=secret, lockdown=self._lockdown
        )
        opened = LaneServer(server, dispatcher, Readiness(self._tunnels, dispatcher), server.listen(), secret)
        self._servers[lane] = opened
        self._connect()
        return opened

    async def end(self, lane: Lane) -> None:
        """Close a server whose session has ended, and the lane's circuits."""
        ended = self._servers.pop(lane, None)
        if ended is not None:
            self._connect()
            self._tunnels.end_tunnels(*lane)
            await ended.server.close()
            ended.dispatcher.end()
            self._dropped += _dropped_by(ended)

    def dropped(self) -> Counter[str]:
        """Dropped datagrams by reason."""
        return sum(map(_dropped_by, self), self._dropped.copy())

    async def close(self) -> None:
        for opened in self:
            await opened.server.close()

    def _connect(self) -> None:
        connect(self._tunnels, [opened.dispatcher for opened in self])


def _dropped_by(opened: LaneServer) -> Counter[str]:
    return opened.dispatcher.dropped() + opened.server.counters
