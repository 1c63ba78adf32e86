"""Torrents of one hop count: tunnels, and for each lane a SOCKS5 server and a libtorrent session."""

import asyncio
import contextlib
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
from ipv8.messaging.anonymization.tunnel import Circuit

from tunnel_pool.contract import Address, Tunnels
from tunnel_pool.overlay.ground.config import slot_of
from tunnel_pool.overlay.ground.lanes import Lane
from tunnel_pool.pooled.hidden_services import lookup_hash
from tunnel_pool.sandbox.lockdown import Lockdown
from tunnel_pool.socks5.messages import Secret
from tunnel_pool.system.errors import UserError
from tunnel_pool.torrent.isolation import Isolation, Isolator
from tunnel_pool.torrent.metainfo import hidden_hashes_of, infohash_of
from tunnel_pool.torrent.network_words import way_out_in_words
from tunnel_pool.torrent.sessions.added import TorrentStatus
from tunnel_pool.torrent.sessions.anonymous_session import AnonymousSession, AnonymousSessions
from tunnel_pool.torrent.sessions.lockdown import LockdownMode, open_lockdown
from tunnel_pool.torrent.sessions.resume_files import delete_unfinished, make_resume_dir
from tunnel_pool.torrent.sessions.session import TorrentSession
from tunnel_pool.tunnels import NodeOptions, open_tunnels

RESUME_DIR = "resume"
CIRCUITS_POLL_S = 0.02
STATUS_S = 0.25
MAX_CIRCUITS_SEEN = 1000
HINT_AFTER_S = 20

logger = logging.getLogger(__name__)


class _Download(NamedTuple):
    parameters: lt.add_torrent_params
    save_dir: Path
    peers: tuple[Address, ...]


class _LaneSession(NamedTuple):
    """Holds the torrents of one lane."""

    opened: AnonymousSession[TorrentSession]
    waiting: list[_Download]  # downloads that wait for the first circuit
    linked: dict[str, set[Address]]  # end-to-end peers by infohash

    @property
    def session(self) -> TorrentSession:
        return self.opened.session


class TorrentClient:
    """Runs tunnels and torrents inside an `async with`; after it, nothing runs.

    `circuits_seen` keeps the last MAX_CIRCUITS_SEEN circuits, dead ones too, for the report.
    """

    def __init__(
        self,
        options: NodeOptions,
        hops: int,
        exits: bool = True,
        dht_nodes: Sequence[Address] = (),
        lockdown: LockdownMode = LockdownMode.AUTO,
        *,
        isolation: Isolation = Isolation.TORRENT,
    ) -> None:
        """Prepare a client; without `exits`, it serves hidden peers alone, over circuits that stay in the network.

        `dht_nodes` are where BitTorrent's DHT is entered, by address or name; without any it is off.
        """
        self._lockdown_mode = lockdown
        self._lockdown: Lockdown | None = None
        self._exits = exits
        self._dht_nodes = tuple(dht_nodes)
        self._isolator = Isolator(isolation)
        self.options = options
        self.hops = hops
        self.seconds_to_first_circuit: float | None = None
        self.circuits_seen: dict[int, Circuit] = {}
        self._lanes: dict[Lane, _LaneSession] = {}
        self._looked_for: dict[str, set[bytes]] = {}  # by infohash, the hidden swarms that a download is in
        self._changed = asyncio.Event()
        self._stack = AsyncExitStack()
        self.tunnels: Tunnels
        self._sessions: AnonymousSessions[TorrentSession]

    async def __aenter__(self) -> "TorrentClient":
        async with AsyncExitStack() as stack:
            self._opened_s = time.monotonic()
            delete_unfinished(make_resume_dir(self.options.state_dir / RESUME_DIR))
            self.tunnels = await open_tunnels(self.options)
            stack.push_async_callback(self.tunnels.unload)
            self._lockdown = open_lockdown(self._lockdown_mode)
            if self._lockdown is not None:
                stack.callback(self._lockdown.close)
            self._sessions = AnonymousSessions(
                self.tunnels,
                self._make_session,
                steering=self.options.steering,
                lockdown=self._lockdown,
                dht_nodes=self._dht_nodes,
            )
            stack.push_async_callback(self._sessions.close)
            if self._isolator.isolation is Isolation.NONE:
                self._open_lane(Lane(self.hops))
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    @property
    def is_locked_down(self) -> bool:
        return self._lockdown is not None

    def _open_lane(self, lane: Lane) -> _LaneSession:
        """Open the session of a lane if there is none. Raises UserError."""
        if lane in self._lanes:
            return self._lanes[lane]
        opened = self._sessions.open(lane)
        opened.session.on_changed = self._changed.set
        if self._exits:
            self.tunnels.build_tunnels(*lane)
        self._lanes[lane] = _LaneSession(opened, [], {})
        return self._lanes[lane]

    def _make_session(self, port: int, secret: Secret) -> TorrentSession:
        return TorrentSession(
            port,
            self.options.state_dir / RESUME_DIR,
            bool(self._dht_nodes),
            self.options.allow_private,
            secret=secret,
            lockdown=self._lockdown,
        )

    def download(self, parameters: lt.add_torrent_params, save_dir: Path, peers: Iterable[Address] = ()) -> None:
        """Look for hidden seeders at once; libtorrent starts when it can reach anybody (`wait_circuits`).

        Raises UserError.
        """
        infohash = infohash_of(parameters)
        lane = self._isolator.enter(infohash, self.hops)
        self._open_lane(lane).waiting.append(_Download(parameters, save_dir, tuple(peers)))
        self._look_for_seeders(lane, infohash, hidden_hashes_of(parameters.info_hashes))

    def seed(self, parameters: lt.add_torrent_params, folder: Path) -> None:
        """Seed hidden what lies complete in the folder. Raises UserError."""
        lane = self._isolator.enter(infohash_of(parameters), self.hops)
        self._open_lane(lane).session.add(parameters, folder, seed=True)
        for infohash in hidden_hashes_of(parameters.info_hashes):
            self.tunnels.join_swarm(lookup_hash(infohash), lane.hops, seeding=True, group=lane.group)

    def _look_for_seeders(self, lane: Lane, infohash: str, hidden_hashes: Iterable[bytes]) -> None:
        """Join a torrent's hidden swarms that are not joined yet; the v2 hash may be known only with the metadata."""
        known = self._looked_for.setdefault(infohash, set())
        on_linked = partial(self._on_linked, lane, infohash)
        for swarm in {lookup_hash(hidden_hash) for hidden_hash in hidden_hashes} - known:
            known.add(swarm)
            self.tunnels.join_swarm(swarm, lane.hops, on_linked, seeding=False, group=lane.group)

    def _on_linked(self, lane: Lane, infohash: str, peer: Address) -> None:
        self._lanes[lane].linked.setdefault(infohash, set()).add(peer)
        session = self._lanes[lane].session
        self._lanes[lane].opened.add_end(peer, partial(session.add_peer, infohash))

    def _start_reachable(self) -> bool:
        """Start torrents whose lane reaches anybody; return whether any lane does. Raises UserError."""
        now_s = time.monotonic()
        reachable = [lane for lane in self._lanes.values() if lane.opened.is_ready(now_s) or lane.linked]
        for lane in reachable:
            if lane.waiting:
                for waiting in lane.waiting:
                    infohash = lane.session.add(waiting.parameters, waiting.save_dir, waiting.peers)
                    for peer in lane.linked.get(infohash, ()):
                        lane.opened.add_end(peer, partial(lane.session.add_peer, infohash))
                lane.waiting.clear()
        return bool(reachable)

    async def wait_circuits(self, on_progress: Callable[["TorrentClient"], None]) -> None:
        """Return when circuits out, or one to a hidden seeder, are ready and a torrent has started.

        The others start in `wait_finished`. Raises UserError when the pool can't work, or a torrent can't be added.
        """
        hint_s = self._opened_s + HINT_AFTER_S
        while not self._start_reachable():
            self._check_pool()
            if time.monotonic() >= hint_s:
                hint_s = math.inf
                logger.warning("%s", way_out_in_words(self.tunnels) or "No circuit is ready yet")
            on_progress(self)
            await asyncio.sleep(CIRCUITS_POLL_S)
        since_s = [each.readiness.first_s for each in self._sessions if each.readiness.first_s is not None]
        self.seconds_to_first_circuit = min(since_s, default=time.monotonic()) - self._opened_s

    async def wait_finished(self, on_progress: Callable[["TorrentClient"], None]) -> None:
        """Return when every torrent is complete. Raises UserError."""
        while self._is_any_waiting() or not all(status.finished for status in self.statuses):
            await self.wait_changed(CIRCUITS_POLL_S if self._is_any_waiting() else STATUS_S)
            self._start_reachable()
            for name, lane in self._lanes.items():
                for status in lane.session.statuses:
                    self._look_for_seeders(name, status.infohash, status.hidden_hashes)
            self.circuits_seen.update(self.tunnels.circuits)
            while len(self.circuits_seen) > MAX_CIRCUITS_SEEN:
                del self.circuits_seen[next(iter(self.circuits_seen))]
            on_progress(self)

    def _is_any_waiting(self) -> bool:
        return any(lane.waiting for lane in self._lanes.values())

    async def wait_changed(self, timeout_s: float) -> None:
        """Return when a torrent's status has changed, or the time is up. Raises UserError."""
        self._check_pool()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        self._changed.clear()
        others_go_on = any(lane.session.goes_on for lane in self._lanes.values())
        for lane in self._lanes.values():
            lane.session.check(others_go_on)

    def set_download_limit(self, bytes_per_s: int) -> None:
        """Limit each lane's torrents together, in bytes a second; 0 is no limit."""
        for lane in self._lanes.values():
            lane.session.set_download_limit(bytes_per_s)

    def lanes(self) -> list[Lane]:
        """Return the lanes of its torrents; each has a libtorrent session."""
        return list(self._lanes)

    def circuits(self) -> list[Circuit]:
        """Return the circuits that are ready for what leaves the network."""
        return self.tunnels.find_circuits(hops=self.hops, group=None)

    @property
    def is_offered(self) -> bool:
        """Return whether all that we seed hidden has its introduction point."""
        seeded = [info_hash for info_hash, swarm in self.tunnels.swarms.items() if swarm.seeding]
        return all(map(self.tunnels.is_offered, seeded))

    @property
    def statuses(self) -> list[TorrentStatus]:
        return [status for lane in self._lanes.values() for status in lane.session.statuses]

    @property
    def pool_pids(self) -> dict[int, int]:
        """Return the process of each child, by slot; empty in one process."""
        pool = self.tunnels.pool
        return {slot: pid for slot in pool.records if (pid := pool.pid(slot))} if pool is not None else {}

    @property
    def restarts(self) -> int:
        pool = self.tunnels.pool
        return pool.restarts() if pool is not None else 0

    def child_of(self, circuit: Circuit) -> int | None:
        """Return the slot that has the circuit, None in one process."""
        return slot_of(circuit.circuit_id) if self.tunnels.pool is not None else None

    def dropped(self) -> Counter[str]:
        """Return the dropped datagrams by reason, everywhere."""
        return self._sessions.dropped() + self.tunnels.dropped()

    def _check_pool(self) -> None:
        if why := self.tunnels.failure():
            raise UserError(why)
