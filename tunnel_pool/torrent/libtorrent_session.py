"""What the libtorrent sessions of a command and of the daemon have in common."""

import asyncio
import ipaddress
from collections.abc import Callable, Mapping
from typing import Any

import libtorrent as lt

from tunnel_pool.contract import Address
from tunnel_pool.sandbox.lockdown import Lockdown
from tunnel_pool.steering.group import open_here
from tunnel_pool.system.priority import with_yielding_threads
from tunnel_pool.torrent.session_settings import all_alike


def open_session(settings: Mapping[str, Any]) -> lt.session:
    """Open a session whose limits hold for peers with private addresses, too."""
    session: lt.session = lt.session(dict(settings))  # type: ignore[call-overload]
    session.set_peer_class_filter(all_alike())
    return session


class LibtorrentSession:
    def __init__(self, settings: dict[str, Any], nice: int = 0, lockdown: Lockdown | None = None) -> None:
        """`nice`: by how much libtorrent's threads are nicer than ours; in a `lockdown` they have no other network."""
        open_in = open_here if lockdown is None else lockdown.call
        self._session: Any = open_in(lambda: with_yielding_threads(nice, lambda: open_session(settings)))
        self._poller: asyncio.Task[None] | None = None
        self._stopped = False
        self.on_listening: Callable[[int], None] = lambda port: None  # the UDP port that its datagrams come from

    def start(self) -> None:
        self._poller = asyncio.get_running_loop().create_task(self._poll_forever())

    async def _poll_forever(self) -> None:
        raise NotImplementedError

    def add_dht_node(self, node: Address) -> None:
        """Add a node to start from. Raises ValueError for a name, which libtorrent would look up itself."""
        host = str(ipaddress.ip_address(node[0]))
        if not self._stopped:
            self._session.add_dht_node((host, node[1]))

    def _listening(self, alert: Any) -> None:
        """Act on a listen_succeeded_alert."""
        if alert.socket_type in (lt.socket_type_t.udp, lt.socket_type_t.utp_ssl):
            self.on_listening(alert.port)

    async def _end(self) -> None:
        """libtorrent's destructor waits for trackers and disk: not on the loop."""
        holder = [self._session]
        del self._session
        await asyncio.to_thread(holder.clear)
