"""Torrents of one hop count: tunnels, a SOCKS5 server and a libtorrent session, opened and closed in order."""

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import libtorrent as lt
from ipv8.messaging.anonymization.tunnel import CIRCUIT_TYPE_IP_SEEDER, PEER_FLAG_EXIT_BT, Circuit

from overlay.config import slot_of
from socks5.server import Socks5Server
from tunnel_pool.contract import Address, Tunnels
from tunnel_pool.dht_entry import DhtEntry
from tunnel_pool.dispatch import Dispatcher, connect, new_secret, serve_session
from tunnel_pool.errors import UserError
from tunnel_pool.hidden import lookup_hash
from tunnel_pool.lockdown import LockdownMode, open_lockdown
from tunnel_pool.reach import Reach
from tunnel_pool.session import TorrentSession, TorrentStatus
from tunnel_pool.torrents import infohash_of, swarm_hash_of
from tunnel_pool.tunnels import NodeOptions, open_tunnels, pool_of

RESUME_DIR = "resume"
CIRCUITS_POLL_S = 0.02
MAX_CIRCUITS_SEEN = 1000
HINT_AFTER_S = 20

logger = logging.getLogger(__name__)


class _Download(NamedTuple):
    parameters: lt.add_torrent_params
    save_dir: Path
    peers: tuple[Address, ...]


class TorrentClient:
    """An async context: inside it, everything runs; after it, nothing does.

    `circuits_seen` keeps the last MAX_CIRCUITS_SEEN circuits, dead ones too, for the report.
    """

    def __init__(
        self,
        options: NodeOptions,
        hops: int,
        exits: bool = True,
        dht_nodes: Sequence[Address] = (),
        lockdown: LockdownMode = LockdownMode.AUTO,
    ) -> None:
        """Without `exits` all peers are hidden: no circuit is built for what leaves the network.

        `dht_nodes` are where BitTorrent's DHT is entered, by address or name; without any it is off.
        """
        self._lockdown_mode = lockdown
        self.is_locked_down = False
        self._exits = exits
        self._dht_nodes = tuple(dht_nodes)
        self.options = options
        self.hops = hops
        self.seconds_to_first_circuit: float | None = None
        self.circuits_seen: dict[int, Circuit] = {}
        self._waiting: list[_Download] = []  # for the first circuit
        self._linked: dict[str, set[Address]] = {}  # end-to-end peers by infohash
        self._stack = AsyncExitStack()
        self.tunnels: Tunnels
        self._server: Socks5Server
        self._dispatcher: Dispatcher
        self._reach: Reach
        self._session: TorrentSession

    async def __aenter__(self) -> "TorrentClient":
        async with AsyncExitStack() as stack:
            self._opened_s = time.monotonic()
            self.tunnels = await open_tunnels(self.options)
            stack.push_async_callback(self.tunnels.unload)
            lockdown, secret = open_lockdown(self._lockdown_mode), new_secret()
            if lockdown is not None:
                stack.callback(lockdown.close)
                self.is_locked_down = True
            self._dispatcher, self._server = serve_session(
                self.tunnels, self.hops, self._on_lost, self.options.steering, secret=secret, lockdown=lockdown
            )
            connect(self.tunnels, [self._dispatcher])
            self._reach = Reach(self.tunnels, self._dispatcher)
            port = self._server.listen()
            stack.push_async_callback(self._server.close)
            self._session = TorrentSession(
                port,
                self.options.state_dir / RESUME_DIR,
                bool(self._dht_nodes),
                self.options.allow_private,
                secret=secret,
                lockdown=lockdown,
            )
            stack.push_async_callback(self._session.stop)
            self._session.on_listening = self._server.set_usual_client
            self._session.start()
            if self._exits:
                self.tunnels.build_tunnels(self.hops)
            if self._dht_nodes:
                entry = DhtEntry(self.tunnels, self.hops, self._session, self._dht_nodes)
                entering = asyncio.get_running_loop().create_task(entry.keep())
                stack.callback(entering.cancel)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    def download(self, parameters: lt.add_torrent_params, save_dir: Path, peers: Iterable[Address] = ()) -> None:
        """Look for hidden seeders at once; libtorrent starts when it can reach anybody (`wait_circuits`)."""
        infohash = infohash_of(parameters)
        self._waiting.append(_Download(parameters, save_dir, tuple(peers)))
        on_linked = partial(self._on_linked, infohash)
        self.tunnels.join_swarm(lookup_hash(swarm_hash_of(parameters)), self.hops, on_linked, seeding=False)

    def seed(self, parameters: lt.add_torrent_params, folder: Path) -> None:
        """Seed hidden what lies complete in the folder. Raises UserError."""
        self._session.add(parameters, folder, seed=True)
        self.tunnels.join_swarm(lookup_hash(swarm_hash_of(parameters)), self.hops, seeding=True)

    def _on_linked(self, infohash: str, peer: Address) -> None:
        self._linked.setdefault(infohash, set()).add(peer)
        self._session.add_peer(infohash, peer)

    def _start_waiting(self) -> None:
        """Raises UserError."""
        for waiting in self._waiting:
            infohash = self._session.add(waiting.parameters, waiting.save_dir, waiting.peers)
            for peer in self._linked.get(infohash, ()):
                self._session.add_peer(infohash, peer)
        self._waiting.clear()

    async def wait_circuits(self, on_progress: Callable[["TorrentClient"], None]) -> None:
        """Return when circuits out, or one to a hidden seeder, are ready and the torrents have started.

        Raises UserError when the pool can't work, or a torrent can't be added.
        """
        hint_s = self._opened_s + HINT_AFTER_S
        while not self._reach.is_ready(time.monotonic()) and not self._linked:
            self._check_pool()
            if time.monotonic() >= hint_s:
                hint_s = math.inf
                logger.warning("%s", self._what_is_missing())
            on_progress(self)
            await asyncio.sleep(CIRCUITS_POLL_S)
        self.seconds_to_first_circuit = (self._reach.first_s or time.monotonic()) - self._opened_s
        self._start_waiting()

    async def wait_finished(self, on_progress: Callable[["TorrentClient"], None]) -> None:
        """Return when every torrent is complete. Raises UserError."""
        while not all(status.finished for status in self._session.statuses):
            self._check_pool()
            await self._session.wait_changed(0.25)
            self.circuits_seen.update(self.tunnels.circuits)
            while len(self.circuits_seen) > MAX_CIRCUITS_SEEN:
                del self.circuits_seen[next(iter(self.circuits_seen))]
            on_progress(self)

    async def wait_changed(self, timeout_s: float) -> None:
        """Return when a torrent's status has changed, or the time is up. Raises UserError."""
        self._check_pool()
        await self._session.wait_changed(timeout_s)

    def set_download_limit(self, bytes_per_s: int) -> None:
        """Of all torrents together; 0: none."""
        self._session.set_download_limit(bytes_per_s)

    @property
    def introduction_points(self) -> int:
        """How many introduction points are there for what we seed."""
        return len(self.tunnels.find_circuits(CIRCUIT_TYPE_IP_SEEDER))

    @property
    def statuses(self) -> list[TorrentStatus]:
        return self._session.statuses

    @property
    def pool_pids(self) -> dict[int, int]:
        """Process of each child, by slot; empty in one process."""
        pool = pool_of(self.tunnels)
        return {slot: pid for slot in pool.records if (pid := pool.pid(slot))} if pool is not None else {}

    @property
    def restarts(self) -> int:
        pool = pool_of(self.tunnels)
        return pool.restarts() if pool is not None else 0

    def child_of(self, circuit: Circuit) -> int | None:
        """The slot that has the circuit, None in one process."""
        return slot_of(circuit.circuit_id) if pool_of(self.tunnels) is not None else None

    def dropped(self) -> Counter[str]:
        """Dropped datagrams by reason, everywhere."""
        return self._dispatcher.dropped() + self._server.counters + self.tunnels.dropped()

    def _what_is_missing(self) -> str:
        """Why there is no circuit yet, as far as can be told from here."""
        if not self.tunnels.candidates:
            return "No node of the network has answered: are --bootstrap, --community-id and the network right?"
        if not self.tunnels.get_candidates(PEER_FLAG_EXIT_BT):
            return "Nodes have answered, but none that lets BitTorrent out: waiting for an exit, or a hidden seeder"
        return "Nodes and exits are known, but no circuit could be built through them yet"

    def _check_pool(self) -> None:
        if why := self.tunnels.failure():
            raise UserError(why)

    def _on_lost(self, is_lost: Callable[[Address], bool]) -> None:
        self._session.reconnect(is_lost)
