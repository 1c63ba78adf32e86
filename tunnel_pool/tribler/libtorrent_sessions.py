"""Tribler's libtorrent sessions that go by circuits, one for each hop count; Tribler opens each when it is needed."""

import contextlib
from collections.abc import Callable
from typing import Any

import libtorrent as lt

from tunnel_pool.contract import Address
from tunnel_pool.torrent.sessions.libtorrent_session import connect_to_end
from tunnel_pool.torrent.sessions.lost_peers import drop_and_reconnect
from tunnel_pool.torrent.sessions.session_settings import OVER_CIRCUITS, transport_settings
from tunnel_pool.torrent.sessions.transport import UTP_ALONE, Transport


class TriblerSession:
    """The session of a hop count, through Tribler's download manager."""

    def __init__(self, download_manager: Any, hops: int) -> None:
        self._download_manager = download_manager
        self._hops = hops
        self._tuned: object = None
        self._transport = UTP_ALONE

    def tune(self) -> None:
        """Let the session notice peers whose circuit is gone as ours do, and begin connections as was said last."""
        session = self._opened()
        if session is not None and self._tuned is not session:
            session.apply_settings(OVER_CIRCUITS | transport_settings(self._transport))
            self._tuned = session

    @property
    def is_lonely(self) -> bool:
        """Return whether a torrent wants peers, knows some and has none."""
        # As Tribler was told last; None where it was not told yet.
        known = [each.lt_status for each in self._downloads() if each.lt_status is not None]
        wanting = (status for status in known if not status.paused and not status.is_finished)
        return any(status.list_peers and not status.num_peers for status in wanting)

    def set_transport(self, transport: Transport) -> None:
        """Begin connections to peers by these from now on."""
        self._transport = transport
        self._tuned = None
        self.tune()

    def connect_to_end(self, peer: Address, swarm: bytes) -> None:
        """Connect to the other end of a circuit, for the torrents of this hidden swarm."""
        # libtorrent may let go of a torrent meanwhile.
        with contextlib.suppress(RuntimeError):
            connect_to_end(self._handles(), peer, swarm)

    def connect_to_caller(self, peer: Address, infohash: bytes) -> bool:
        """Return False: no stranger calls here, as Tribler announces no exit's address."""
        return False

    def reconnect(self, is_lost: Callable[[Address], bool]) -> None:
        """Drop peers that lost their circuit, and ask for them again."""
        session = self._opened()
        if session is not None:
            with contextlib.suppress(RuntimeError):
                drop_and_reconnect(session, self._handles(), is_lost)

    def _downloads(self) -> list[Any]:
        return [each for each in self._download_manager.get_downloads() if each.config.get_hops() == self._hops]

    def _handles(self) -> list[lt.torrent_handle]:
        return [each.handle for each in self._downloads() if each.handle and each.handle.is_valid()]

    def _opened(self) -> Any:
        """Return libtorrent's session, None while Tribler has none."""
        if not self._download_manager.has_session(self._hops):
            return None
        opened = self._download_manager.get_session(self._hops)
        failed = not opened.done() or opened.cancelled() or opened.exception() is not None
        return None if failed else opened.result()
