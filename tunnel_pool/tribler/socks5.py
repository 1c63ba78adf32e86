"""The SOCKS5 servers of Tribler's libtorrent sessions, one for each hop count."""

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

from tunnel_pool.contract import Address
from tunnel_pool.overlay.clients.lanes import Lane
from tunnel_pool.pooled.community import PooledTunnelCommunity
from tunnel_pool.pooled.speed_test import PooledEndpoint
from tunnel_pool.socks5.server import Socks5Server
from tunnel_pool.torrent.dispatch import Dispatcher, connect, serve_session
from tunnel_pool.torrent.lost_peers import drop_and_reconnect
from tunnel_pool.torrent.session_settings import OVER_CIRCUITS


class Socks5Endpoint(PooledEndpoint):
    """The part of ipv8-rust-tunnels' endpoint that Tribler uses for SOCKS5, by hop count."""

    def __init__(self, community: PooledTunnelCommunity, download_manager: Any, steering: bool) -> None:
        super().__init__(community.pool, community.register_anonymous_task)
        self._community = community
        self._download_manager = download_manager
        self._steering = steering
        self._dispatchers: dict[int, Dispatcher] = {}
        self._servers: dict[int, Socks5Server] = {}
        self._tuned: dict[int, object] = {}

    def create_socks5_server(self, port: int, hops: int) -> int:
        """Listen on loopback for the libtorrent sessions of this hop count; returns the port."""
        on_lost = partial(self._on_lost, hops)
        dispatcher, server = serve_session(self._community, Lane(hops), on_lost, self._steering)
        listens_at = server.listen(port)
        self._dispatchers[hops] = dispatcher
        self._servers[hops] = server
        connect(self._community, self._dispatchers.values())
        return listens_at

    def get_socks5_statistics(self) -> list[dict[str, int]]:
        return [
            {"port": server.address[1], "hops": hops, "associates": len(server.connections)}
            for hops, server in self._servers.items()
        ]

    def set_udp_associate_default_remote(self, addr: Address, hops: int) -> None:
        """Take where the libtorrent session of this hop count listens, which it does not say itself."""
        if hops in self._servers and addr[1]:
            self._servers[hops].set_usual_client(addr[1])

    def get_peers_for_circuit(self, circuit_id: int) -> list[Address]:
        """Return nothing: peers that lose their circuit are asked for again here, and not by Tribler."""
        return []

    @property
    def bytes_up(self) -> int:
        """Return the bytes that the children have sent."""
        return self._community.carried().sent_bytes

    @property
    def bytes_down(self) -> int:
        """Return the bytes that the children have received."""
        return self._community.carried().received_bytes

    def tune_sessions(self) -> None:
        """Let libtorrent sessions notice peers whose circuit is gone as ours do; Tribler opens them when needed."""
        for hops in self._servers:
            session = self._session_of(hops)
            if session is not None and self._tuned.get(hops) is not session:
                session.apply_settings(OVER_CIRCUITS)
                self._tuned[hops] = session

    async def close(self) -> None:
        for server in self._servers.values():
            await server.close()

    def _on_lost(self, hops: int, is_lost: Callable[[Address], bool]) -> None:
        """Let the libtorrent session of this hop count drop peers that lost their circuit, and ask for them again."""
        session = self._session_of(hops)
        if session is None:
            return
        ours = [d for d in self._download_manager.get_downloads() if d.config.get_hops() == hops]
        handles = [download.handle for download in ours if download.handle and download.handle.is_valid()]
        # libtorrent may let go of a torrent meanwhile.
        with contextlib.suppress(RuntimeError):
            drop_and_reconnect(session, handles, is_lost)

    def _session_of(self, hops: int) -> Any:
        """Return the libtorrent session of this hop count, None while Tribler has none."""
        if not self._download_manager.has_session(hops):
            return None
        opened = self._download_manager.get_session(hops)
        failed = not opened.done() or opened.cancelled() or opened.exception() is not None
        return None if failed else opened.result()
