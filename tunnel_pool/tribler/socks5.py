"""The SOCKS5 servers of Tribler's libtorrent sessions, one for each hop count."""

from collections.abc import Callable
from typing import Any

from tunnel_pool.contract import Address
from tunnel_pool.overlay.ground.lanes import Lane
from tunnel_pool.pooled.community import PooledTunnelCommunity
from tunnel_pool.pooled.speed_test import PooledEndpoint
from tunnel_pool.socks5.server import Socks5Server
from tunnel_pool.torrent.sessions.dispatch import Dispatcher, connect, serve_session
from tunnel_pool.torrent.sessions.transport_control import LaneKinds, TransportControl
from tunnel_pool.tribler.libtorrent_sessions import TriblerSession


class Socks5Endpoint(PooledEndpoint):
    """The part of ipv8-rust-tunnels' endpoint that Tribler uses for SOCKS5, by hop count."""

    def __init__(self, community: PooledTunnelCommunity, download_manager: Any, steering: bool) -> None:
        super().__init__(community.pool, community.register_anonymous_task)
        self._community = community
        self._download_manager = download_manager
        self._kinds = LaneKinds(community)
        self._steering = steering
        self._dispatchers: dict[int, Dispatcher] = {}
        self._servers: dict[int, Socks5Server] = {}
        self._sessions: dict[int, TriblerSession] = {}
        self._transports: dict[int, TransportControl] = {}

    def create_socks5_server(self, port: int, hops: int) -> int:
        """Listen on loopback for the libtorrent sessions of this hop count; returns the port."""
        lane, session = Lane(hops), TriblerSession(self._download_manager, hops)
        dispatcher, server = serve_session(self._community, lane, session.reconnect, self._steering)
        listens_at = server.listen(port)
        transports = TransportControl(self._community, lane, session, self._kinds)
        transports.start()
        dispatcher.on_guest = transports.guest_came
        self._dispatchers[hops] = dispatcher
        self._servers[hops] = server
        self._sessions[hops] = session
        self._transports[hops] = transports
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
        for session in self._sessions.values():
            session.tune()

    def add_end(self, hops: int, peer: Address, add: Callable[[Address], object]) -> None:
        """Call `add` with the other end of a hidden swarm's circuit, once it is known how to meet it."""
        if hops in self._transports:
            self._transports[hops].add_end(peer, add)
        else:
            add(peer)

    async def close(self) -> None:
        for transports in self._transports.values():
            transports.end()
        for server in self._servers.values():
            await server.close()
