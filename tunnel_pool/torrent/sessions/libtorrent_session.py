"""The shared part of the libtorrent sessions of a command and of the daemon."""

import asyncio
import ipaddress
import os
import ssl
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import libtorrent as lt

from tunnel_pool.contract import Address
from tunnel_pool.overlay.ground.pacing import Backoff
from tunnel_pool.pooled.hidden_services import lookup_hash
from tunnel_pool.sandbox.lockdown import Lockdown
from tunnel_pool.steering.group import open_here
from tunnel_pool.system.priority import with_yielding_threads
from tunnel_pool.torrent.announces.account import Account
from tunnel_pool.torrent.announces.reannounces import IsTold, Reannounces
from tunnel_pool.torrent.announces.trackers import trackers_of
from tunnel_pool.torrent.anonymous_torrents import TrackerPlace, tracker_place
from tunnel_pool.torrent.metainfo import hidden_hashes_of
from tunnel_pool.torrent.sessions.last_announces import Announce, LastAnnounces
from tunnel_pool.torrent.sessions.lost_peers import (
    connect_anew,
    drop_and_forget,
    drop_and_reconnect,
    is_end_to_end,
)
from tunnel_pool.torrent.sessions.session_settings import all_alike, transport_settings
from tunnel_pool.torrent.sessions.transport import Transport

TRACKERS_S = 0.1
TOLD_LAST_S = 60.0  # libtorrent tells trackers of a torrent that is gone within this time
STOP_TRACKER_S = 5.0  # libtorrent's default for stop_tracker_timeout
LAST_ANNOUNCES_POLL_S = 0.02
INDEX_S = 1.0  # how old the index of torrents may be
MANY_CALLERS = 64  # some of them are gone
CALLER_CONNECTS_S = 30.0  # how long a caller may take until he is among the peers
CONNECTED_S = 1.0
LONELY_S = 1.0  # how old the answer may be: it takes a call to libtorrent for each torrent with few peers
FEW_PEERS = 8  # of so many, each is looked at
RECONNECT_S = 8.0  # the longest wait until named peers are tried again, while a torrent has fewer than these
HALF_OPEN = lt.peer_info.connecting | lt.peer_info.handshake
AUTHORITIES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt")  # of Debian, of Fedora


def trust_the_systems_authorities() -> None:
    """Have libtorrent trust the system's authorities: the OpenSSL in its wheel does not know where these are."""
    if "SSL_CERT_FILE" in os.environ or "SSL_CERT_DIR" in os.environ:
        return
    known = [ssl.get_default_verify_paths().cafile, *AUTHORITIES]
    found = next((path for path in known if path is not None and Path(path).is_file()), None)
    if found is not None:
        os.environ["SSL_CERT_FILE"] = found


def open_session(settings: Mapping[str, Any]) -> lt.session:
    """Open a session whose limits hold for peers with private addresses, too."""
    trust_the_systems_authorities()
    session: lt.session = lt.session(dict(settings))  # type: ignore[call-overload]
    session.set_peer_class_filter(all_alike())
    return session


class SessionTorrent(Protocol):
    """Names what a session needs of each of its torrents."""

    handle: lt.torrent_handle

    @property
    def peers(self) -> frozenset[Address]:
        """Return the peers that are asked until they are there."""

    def give_up_peers(self, lost: frozenset[Address]) -> None:
        """Ask these peers no longer."""

    @property
    def peer_count(self) -> int:
        """Return how many BitTorrent peers are connected."""

    @property
    def knows_peers(self) -> bool:
        """Return whether anybody is known who may be a peer."""

    @property
    def is_finished(self) -> bool:
        """Return whether all that is wanted is there."""


T = TypeVar("T", bound=SessionTorrent)


def connect_to_end(handles: Iterable[lt.torrent_handle], peer: Address, swarm: bytes) -> None:
    """Connect to the other end of a circuit, for those of these torrents that are of this hidden swarm."""
    for handle in handles:
        if swarm in map(lookup_hash, hidden_hashes_of(handle.info_hashes())):
            handle.connect_peer(peer)


class LibtorrentSession(Generic[T]):
    """Holds a libtorrent session and its torrents, by handle: a hybrid's best hash changes with its metadata."""

    def __init__(self, settings: dict[str, Any], nice: int = 0, lockdown: Lockdown | None = None) -> None:
        """`nice`: by how much libtorrent's threads are nicer than ours; in a `lockdown` they have no other network."""
        open_in = open_here if lockdown is None else lockdown.call
        self._trackers: dict[TrackerPlace, float] = {}  # when a torrent had each last
        self._trackers_s = 0.0  # when these were looked up
        self._reannounces = Reannounces()
        self._reconnects: dict[lt.torrent_handle, Backoff] = {}  # of torrents whose `peers` are not all connected
        self._has_tcp = False  # whether connections to peers are made by TCP, which needs a circuit to an exit
        self._callers: dict[Address, float] = {}  # who has called, and when (monotonic)
        self._forgot_s = 0.0  # when callers that had gone were forgotten last
        self._handle_of: dict[bytes, lt.torrent_handle] = {}
        self._indexed_s = 0.0  # when that was made
        self._lonely, self._lonely_s = False, float("-inf")  # whether a torrent was lonely, and when that was found
        self._connected: set[Address] = set()
        self._connected_s = 0.0  # likewise
        self._last_announces = LastAnnounces(float(settings.get("stop_tracker_timeout", STOP_TRACKER_S)))
        self._session: Any = open_in(lambda: with_yielding_threads(nice, lambda: open_session(settings)))
        self._torrents: dict[lt.torrent_handle, T] = {}
        self._poller: asyncio.Task[None] | None = None
        self._stopped = False
        self.on_listening: Callable[[int], None] = lambda port: None  # the UDP port that its datagrams come from

    def start(self) -> None:
        self._poller = asyncio.get_running_loop().create_task(self._poll_forever())

    async def _poll_forever(self) -> None:
        raise NotImplementedError

    async def stop(self) -> None:
        raise NotImplementedError

    def reconnect(self, is_lost: Callable[[Address], bool]) -> None:
        """Drop the peers whose circuit `is_lost`, and ask again for those that are not end-to-end."""
        if self._stopped:
            return
        for torrent in self._torrents.values():
            lost = frozenset(peer for peer in torrent.peers if is_end_to_end(peer) and is_lost(peer))
            if lost:
                torrent.give_up_peers(lost)
        drop_and_reconnect(self._session, list(self._torrents), is_lost)

    def set_transport(self, transport: Transport) -> None:
        """Begin connections to peers by these from now on."""
        if transport.tcp and not self._has_tcp:  # exits can be reached again: nothing was learnt of peers meanwhile
            self._reconnects.clear()
        self._has_tcp = transport.tcp
        if not self._stopped:
            self._session.apply_settings(transport_settings(transport))

    def connect_to_end(self, peer: Address, swarm: bytes) -> None:
        """Connect to the other end of a circuit, for the torrents of this hidden swarm."""
        if self._stopped:
            return
        connect_to_end(list(self._torrents), peer, swarm)

    def connect_to_caller(self, peer: Address, infohash: bytes) -> bool:
        """Connect to a stranger who has called at an exit, for the torrent of this infohash (20 bytes).

        Return whether there is such a torrent. A caller has an address of his own, where nobody is once he has gone:
        libtorrent is to forget it then.
        """
        if self._stopped:
            return False
        now_s = time.monotonic()
        if now_s - self._indexed_s > INDEX_S:
            self._indexed_s = now_s
            known = ((handle, hidden_hashes_of(handle.info_hashes())) for handle in self._torrents)
            self._handle_of = {each[:20]: handle for handle, hashes in known for each in hashes}
        handle = self._handle_of.get(infohash)
        if handle not in self._torrents:
            return False
        self._forget_callers(now_s)
        self._callers[peer] = now_s
        handle.connect_peer(peer)
        return True

    def _forget_callers(self, now_s: float) -> None:
        """Have libtorrent forget callers that are gone, once there are many."""
        if len(self._callers) < MANY_CALLERS or now_s - self._forgot_s < CALLER_CONNECTS_S:
            return
        self._forgot_s = now_s
        connected = {info.ip for info in self._peer_infos()}
        before_s = now_s - CALLER_CONNECTS_S
        gone = [peer for peer, since_s in self._callers.items() if since_s < before_s and peer not in connected]
        for peer in gone:
            del self._callers[peer]
        if gone:
            drop_and_forget(self._session, {host for host, _ in gone})

    def _peer_infos(self) -> Iterator[lt.peer_info]:
        """Yield what libtorrent says of all peers, those who are connecting included."""
        busy = [torrent.handle for torrent in self._torrents.values() if torrent.peer_count]
        return (info for handle in busy for info in handle.get_peer_info())

    def is_http_tracker(self, host: str, port: int) -> bool:
        """Return whether a torrent has an HTTP tracker at this address, or had a moment ago."""
        return ("http", host, port) in self._tracker_places()

    def is_udp_tracker(self, host: str, port: int) -> bool:
        """Return whether a torrent has a UDP tracker at this address, or had a moment ago."""
        return ("udp", host, port) in self._tracker_places()

    def _tracker_places(self) -> Container[TrackerPlace]:
        """Return where the torrents' trackers are; those of one that is gone are told so."""
        now_s = time.monotonic()
        if now_s - self._trackers_s > TRACKERS_S and not self._stopped:
            self._trackers_s = now_s
            urls = [tracker["url"] for torrent in self._torrents.values() for tracker in trackers_of(torrent.handle)]
            self._trackers |= dict.fromkeys(filter(None, map(tracker_place, urls)), now_s)
            self._trackers = {place: at_s for place, at_s in self._trackers.items() if now_s - at_s < TOLD_LAST_S}
        return self._trackers

    @property
    def is_lonely(self) -> bool:
        """Return whether a torrent wants peers, knows some and has none, or had none a moment ago."""
        now_s = time.monotonic()
        if now_s - self._lonely_s > LONELY_S:
            self._lonely_s = now_s
            wanting = (each for each in self._torrents.values() if each.knows_peers and not each.is_finished)
            self._lonely = not all(map(self._has_peer, wanting))
        return self._lonely

    @staticmethod
    def _has_peer(torrent: SessionTorrent) -> bool:
        """Return whether anybody has said more than nothing: libtorrent counts those that do not answer, too."""
        if not 0 < torrent.peer_count <= FEW_PEERS:
            return torrent.peer_count > 0
        return any(not info.flags & HALF_OPEN for info in torrent.handle.get_peer_info())

    def connect_peers(self) -> None:
        """Have unfinished torrents connect to their `peers`, if fewer peers than these are connected.

        A peer that refuses sees the exit's address: it is asked less and less often, as libtorrent itself does.
        """
        now_s = time.monotonic()
        for torrent in self._torrents.values():
            if torrent.is_finished or torrent.peer_count >= len(torrent.peers):
                self._reconnects.pop(torrent.handle, None)
                continue
            backoff = self._reconnects.setdefault(torrent.handle, Backoff(RECONNECT_S))
            if backoff.is_due(now_s):
                backoff.failed(now_s)
                for peer in torrent.peers:
                    connect_anew(torrent.handle, peer)
        if len(self._reconnects) > len(self._torrents):
            self._reconnects = {
                handle: backoff for handle, backoff in self._reconnects.items() if handle in self._torrents
            }

    def ask_trackers(self, handle: lt.torrent_handle) -> None:
        """Ask a torrent's trackers for peers, those that have answered last and may be asked."""
        self._reannounces.ask(handle)

    def ask_tracker(self, handle: lt.torrent_handle, url: str) -> None:
        """Ask one of a torrent's trackers now, which may have failed."""
        self._reannounces.ask_one(handle, url)

    def announce_anew(self, *, to_trackers: bool, is_told: IsTold | None = None) -> None:
        """Have the DHT told of all torrents, and trackers that are not told yet, by calls of `announce_some`."""
        self._reannounces.add(self._torrents, to_trackers=to_trackers, is_told=is_told)

    def announce_some(self, most: int) -> bool:
        """Tell of so many of the torrents that are still to be announced; return whether others are left."""
        return not self._stopped and self._reannounces.some(most, self._torrents)

    def account_of(self, infohash: bytes) -> Account | None:
        """Return what trackers are told of a torrent in the place of what libtorrent says; None: nothing else."""
        return None

    def is_connected(self, peer: Address) -> bool:
        """Return whether a peer with this address is connected, or was a moment ago."""
        now_s = time.monotonic()
        if now_s - self._connected_s > CONNECTED_S and not self._stopped:
            self._connected_s = now_s
            self._connected = {info.ip for info in self._peer_infos() if not info.flags & HALF_OPEN}
        return peer in self._connected

    def ask_dht(self) -> None:
        """Look torrents without peers up now: libtorrent asks when they are added, and a quarter hour later."""
        for torrent in self._torrents.values():
            if not torrent.is_finished and not torrent.peer_count and not self._stopped:
                torrent.handle.force_dht_announce()

    def add_dht_node(self, node: Address) -> None:
        """Add a node to start from. Raises ValueError for a name, which libtorrent would look up itself."""
        host = str(ipaddress.ip_address(node[0]))
        if not self._stopped:
            self._session.add_dht_node((host, node[1]))

    def _listening(self, alert: Any) -> None:
        """Act on a listen_succeeded_alert."""
        if alert.socket_type in (lt.socket_type_t.udp, lt.socket_type_t.utp_ssl):
            self.on_listening(alert.port)

    async def announced_last(self, handle: lt.torrent_handle) -> None:
        """Return once trackers have answered that this torrent, which was paused, has stopped; or had the time to."""
        await asyncio.to_thread(handle.status, 0)  # libtorrent has taken the pause by then
        await asyncio.sleep(TRACKERS_S)
        while not self._stopped and self._last_announces.is_out(handle, time.monotonic()):  # noqa: ASYNC110
            await asyncio.sleep(LAST_ANNOUNCES_POLL_S)

    def _note_announce(self, alert: Any) -> None:
        """Note what an alert says of an announce; every alert is to be given here."""
        if isinstance(alert, lt.tracker_announce_alert):
            self._last_announces.sent(Announce(alert.handle, alert.url), time.monotonic())
        elif isinstance(alert, lt.tracker_reply_alert | lt.tracker_error_alert):
            self._last_announces.answered(Announce(alert.handle, alert.url))

    async def _end(self) -> None:
        """End the session once trackers have heard that its torrents have stopped; its sockets are closed then.

        libtorrent's destructor waits for these trackers, for up to `stop_tracker_timeout`, and holds the interpreter
        lock meanwhile, in whatever thread it runs. Our SOCKS5 server could not carry their announces. So the session is
        paused first, and dropped when nothing is left to wait for. The poller of alerts must have ended.
        """
        session = self._session
        session.apply_settings({"enable_dht": False})
        session.pause()
        await asyncio.to_thread(session.is_paused)  # libtorrent has taken the pause by then
        while True:
            for alert in session.pop_alerts():
                self._note_announce(alert)
            if not self._last_announces.are_out(time.monotonic()):
                break
            await asyncio.sleep(LAST_ANNOUNCES_POLL_S)
        del session
        holder = [self._session]
        del self._session
        await asyncio.to_thread(holder.clear)
