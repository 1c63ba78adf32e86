"""Downloads of one hop count: tunnels, a SOCKS5 server and a libtorrent session, opened and closed in order."""

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType

import libtorrent as lt
from ipv8.messaging.anonymization.tunnel import PEER_FLAG_EXIT_BT, Circuit

from overlay.config import slot_of
from socks5.server import Socks5Server
from tunnel_pool.carriage import carrier_for
from tunnel_pool.community import SYNC_INTERVAL_S
from tunnel_pool.contract import Address, Tunnels
from tunnel_pool.dispatch import Dispatcher, connect
from tunnel_pool.errors import UserError
from tunnel_pool.session import TorrentSession, TorrentStatus
from tunnel_pool.tunnels import NodeOptions, open_tunnels, pool_of

RESUME_DIR = "resume"
FIRST_CIRCUIT_POLL_S = 0.02
MAX_CIRCUITS_SEEN = 1000
HINT_AFTER_S = 20

logger = logging.getLogger(__name__)


class Downloader:
    """An async context: inside it, everything runs; after it, nothing does.

    `circuits_seen` keeps the last MAX_CIRCUITS_SEEN circuits, dead ones too, for the report.
    """

    def __init__(self, options: NodeOptions, hops: int) -> None:
        self.options = options
        self.hops = hops
        self.seconds_to_first_circuit: float | None = None
        self.circuits_seen: dict[int, Circuit] = {}
        self._stack = AsyncExitStack()
        self.tunnels: Tunnels
        self._server: Socks5Server
        self._dispatcher: Dispatcher
        self._session: TorrentSession

    async def __aenter__(self) -> "Downloader":
        from twisted.internet import reactor

        async with AsyncExitStack() as stack:
            self._opened_s = time.monotonic()
            self.tunnels = await open_tunnels(self.options)
            stack.push_async_callback(self.tunnels.unload)
            steering = self.options.steering
            carrier = carrier_for(self.tunnels, self.hops, self._on_lost) if steering else None
            self._dispatcher = Dispatcher(self.tunnels, self.hops, self._on_lost, carrier)
            connect(self.tunnels, [self._dispatcher])
            self._server = Socks5Server(reactor, self._dispatcher, steering)
            port = self._server.listen()
            stack.push_async_callback(self._server.close)
            self._session = TorrentSession(port, self.options.state_dir / RESUME_DIR)
            stack.push_async_callback(self._session.stop)
            self._session.start()
            self.tunnels.build_tunnels(self.hops)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    def add(self, parameters: lt.add_torrent_params, save_dir: Path, peers: Iterable[Address] = ()) -> str:
        """Start a torrent; returns its infohash. Raises UserError."""
        return self._session.add(parameters, save_dir, peers)

    async def wait_first_circuit(self, on_progress: Callable[["Downloader"], None]) -> None:
        """Return when a circuit is ready. Raises UserError when the pool can't work."""
        hint_s = self._opened_s + HINT_AFTER_S
        while not self.tunnels.find_circuits(hops=self.hops):
            self._check_pool()
            if time.monotonic() >= hint_s:
                hint_s = math.inf
                logger.warning("%s", self._what_is_missing())
            on_progress(self)
            await asyncio.sleep(FIRST_CIRCUIT_POLL_S)
        self.seconds_to_first_circuit = time.monotonic() - self._opened_s

    async def wait_finished(self, on_progress: Callable[["Downloader"], None]) -> None:
        """Return when every torrent is complete. Raises UserError."""
        while not all(status.finished for status in self._session.statuses):
            self._check_pool()
            await self._session.wait_changed(0.25)
            self.circuits_seen.update(self.tunnels.circuits)
            while len(self.circuits_seen) > MAX_CIRCUITS_SEEN:
                del self.circuits_seen[next(iter(self.circuits_seen))]
            on_progress(self)

    async def settle(self) -> None:
        """Return when the circuits' last bytes have been told."""
        await asyncio.sleep(2 * SYNC_INTERVAL_S)

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
            return "Nodes have answered, but none that lets BitTorrent out: waiting for an exit"
        return "Nodes and exits are known, but no circuit could be built through them yet"

    def _check_pool(self) -> None:
        if why := self.tunnels.failure():
            raise UserError(why)

    def _on_lost(self, is_lost: Callable[[Address], bool]) -> None:
        self._session.reconnect(is_lost)
