"""The daemon's torrents: what is kept of them, what libtorrent does with them, and what is to be done next."""

import asyncio
import datetime
import logging
import os
import time
from collections import Counter, deque
from collections.abc import Coroutine, Iterable
from functools import partial
from typing import Any

import libtorrent as lt
import msgspec

from tunnel_pool.contract import Address, Tunnels
from tunnel_pool.daemon.storage.record import Record
from tunnel_pool.daemon.storage.room import Room
from tunnel_pool.daemon.storage.settings import Settings, settings_of
from tunnel_pool.daemon.storage.store import Store, StoredTorrent, StoreError
from tunnel_pool.daemon.torrents.queue import Activity, View, is_done_seeding, plan
from tunnel_pool.daemon.torrents.selection import distrust_ends
from tunnel_pool.daemon.torrents.sessions import Sessions
from tunnel_pool.daemon.torrents.torrent import Count, Torrent, hashes_of
from tunnel_pool.overlay.clients.lanes import Lane
from tunnel_pool.torrent.anonymous_torrents import left_out_trackers, strip
from tunnel_pool.torrent.isolation import MOST_LANES, PLAIN, Isolation, Isolator, share_limit
from tunnel_pool.torrent.lost_peers import is_end_to_end

TICK_S = 1.0
SOON_S = 0.05
SAVE_INTERVAL_S = 20.0
SAVE_TIME_INTERVAL_S = 3600.0  # for torrents whose seeding time alone has changed
SAVES_AT_ONCE = 64  # torrents in a second: a thousand are saved within the interval
RESUME_TIMEOUT_S = 10.0
RECENT_S = 60.0  # Transmission's "recently active"

logger = logging.getLogger(__name__)


class Library:
    """Keeps the torrents: fill it by `loading.load`, then `tick` it every second; `save` it when the daemon ends."""

    def __init__(
        self,
        store: Store,
        tunnels: Tunnels,
        sessions: Sessions,
        *,
        min_free_bytes: int,
        settle_s: float = 0.0,
        isolation: Isolation = Isolation.TORRENT,
    ) -> None:
        """`settle_s`: for so long a new torrent contacts nobody, unless its hop count was said with it."""
        self.isolator = Isolator(isolation)
        self.store = store
        self.settings = Settings(folder=os.getcwd())
        self.torrents: dict[str, Torrent] = {}
        self.seen = Count()
        self.removed: deque[tuple[float, int]] = deque()  # when a torrent was removed, and its number
        self.changing = asyncio.Lock()  # held by whoever changes records
        self.sessions = sessions
        self._tunnels = tunnels
        self.room = Room(min_free_bytes)
        self._settle_s = settle_s
        self._next_number = 1
        self._next_save_s = 0.0
        self._unsaved: deque[Torrent] = deque()
        self._reachable: dict[Lane, bool] = {}  # what was found out in this tick
        self._soon: asyncio.TimerHandle | None = None
        self._ended = False
        self._tasks: set[asyncio.Task[Any]] = set()

    async def restore(self, folder: str | None) -> list[StoredTorrent]:
        """Restore settings and the next number; return the torrents that were kept, in their order. Raises StoreError.

        A `folder` that is named replaces the one that a client has set.
        """
        if (kept := await self.store.setting("session")) is not None:
            self.settings = settings_of(kept) or self.settings
        if folder is not None:
            self.settings = msgspec.structs.replace(self.settings, folder=folder)
        if (number := await self.store.setting("next number")) is not None:
            self._next_number = int(number) if number.isdigit() else 1
        torrents = sorted(await self.store.torrents(), key=lambda kept: kept.record.position)
        self._next_number = max([self._next_number, *(kept.record.number + 1 for kept in torrents)])
        return torrents

    async def new_number(self) -> int:
        """Return a number by which remote clients name a torrent; none is given twice. Raises StoreError."""
        number = self._next_number
        self._next_number += 1
        await self.store.set_setting("next number", str(self._next_number).encode())
        return number

    def open(self, record: Record, parameters: lt.add_torrent_params) -> Torrent:
        """Hand it to libtorrent, standing still. Raises RuntimeError."""
        shared = self.isolator.shared
        lane = self.isolator.enter(record.infohash, record.hops, record.labels)
        if self.isolator.shared > shared == 0:
            logger.warning(
                "From here on torrents share circuits: %d groups are isolated, which is the most", MOST_LANES
            )
        try:
            handle = self.hand_over(record, lane, parameters)
        except RuntimeError:
            self.leave_lane(lane, record)
            raise
        torrent = Torrent(self.seen, record, lane, handle, handle.status())
        torrent.has_run = parameters.active_time > 0
        torrent.active_s = torrent.changed_s = time.monotonic()
        # Also of one that was added before a restart.
        torrent.held_until_s = torrent.active_s + min(self._settle_s, record.added_s + self._settle_s - time.time())
        torrent.saved, torrent.saved_s = torrent.summary.kept, torrent.active_s
        self.sessions.ensure_open(lane).register(torrent)
        self.torrents[record.infohash] = torrent
        self.apply_limits(torrent)
        return torrent

    def leave_lane(self, lane: Lane, record: Record) -> None:
        """Note that a torrent has left this lane, whose session ends with its last torrent."""
        if lane.hops == PLAIN:
            self.sessions.close_plain_later(lambda: not self.torrents_of(PLAIN))
        elif self.isolator.leave(lane, record.infohash):
            self.spawn(self.sessions.close(lane))

    def hand_over(self, record: Record, lane: Lane, parameters: lt.add_torrent_params) -> lt.torrent_handle:
        """Give the torrent to the session of this lane. Raises RuntimeError."""
        parameters.save_path = record.folder
        if parameters.ti is None and record.name:
            parameters.name = record.name
        flags = lt.torrent_flags
        parameters.flags &= ~(flags.auto_managed | flags.upload_mode | flags.stop_when_ready)
        parameters.flags |= flags.paused | flags.duplicate_is_error
        known = dict.fromkeys([*parameters.peers, *record.peers])
        parameters.peers = [peer for peer in known if not is_end_to_end(peer)]  # of circuits that are gone
        if record.hops == PLAIN:
            parameters.flags &= ~flags.disable_pex
        elif left_out := strip(parameters):
            logger.warning("%s", left_out_trackers(left_out))
        parameters.file_priorities = record.file_priorities
        parameters.piece_priorities = []  # as of the last save, and would hold over the record's
        distrust_ends(parameters, record.exporting)
        return self.sessions.ensure_open(lane).add(parameters)

    def find_by_hashes(self, hashes: lt.info_hash_t) -> Torrent | None:
        """Return the torrent of these infohashes; a hybrid's is found by either of its two."""
        wanted = hashes_of(hashes)
        return next((torrent for torrent in self.torrents.values() if wanted & torrent.hashes), None)

    def find(self, infohash: str) -> Torrent | None:
        """Return the torrent of this infohash in hex; a hybrid's is found by either of its two."""
        infohash = infohash.lower()
        if (torrent := self.torrents.get(infohash)) is not None:
            return torrent
        return next((t for t in self.torrents.values() if infohash[:40] in {each.hex() for each in t.hashes}), None)

    def torrents_of(self, hops: int) -> list[Torrent]:
        return [torrent for torrent in self.torrents.values() if torrent.record.hops == hops]

    def rates(self) -> tuple[int, int]:
        """Return the payload rates of all torrents, down and up, in bytes a second."""
        torrents = self.torrents.values()
        return sum(torrent.down_rate for torrent in torrents), sum(torrent.up_rate for torrent in torrents)

    def has(self, torrent: Torrent) -> bool:
        """Return whether it was not removed meanwhile."""
        return self.torrents.get(torrent.record.infohash) is torrent

    def apply_limits(self, torrent: Torrent) -> None:
        """Have libtorrent keep what the record says of speeds, peers and order."""
        record, handle = torrent.record, torrent.handle
        handle.set_download_limit(max(1, record.download_limit_kb * 1000) if record.download_limited else 0)
        handle.set_upload_limit(max(1, record.upload_limit_kb * 1000) if record.upload_limited else 0)
        handle.set_max_connections(max(2, record.peer_limit))
        if record.sequential:
            handle.set_flags(lt.torrent_flags.sequential_download)
        else:
            handle.unset_flags(lt.torrent_flags.sequential_download)

    # What is to be done next

    def tick_soon(self) -> None:
        """Tick in a moment, once for all that ask for it meanwhile."""
        if self._soon is None:
            self._soon = asyncio.get_running_loop().call_later(SOON_S, self.tick)

    def tick(self) -> None:
        """Do what the queue, the limits, the disks and the circuits ask for now."""
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None
        if self._ended:
            return
        self._reachable.clear()
        now_s = time.monotonic()
        limits = self.settings.queue_limits()
        views = {torrent.record.infohash: self._view(torrent, now_s) for torrent in self.torrents.values()}
        for infohash, activity in plan(views.values(), limits).items():
            torrent = self.torrents[infohash]
            torrent.measure(now_s)
            if torrent.activity is not activity:
                torrent.activity = activity
            if activity is Activity.RUNNING and is_done_seeding(views[infohash], limits):
                self.spawn(self._stop_done(torrent))
            try:
                self.apply_activity(torrent)
            except RuntimeError as error:
                logger.error("libtorrent refused to start or stop a torrent: %s", error)
        self._share_rates()
        self._look_at_disks()
        self.sessions.connect_peers()
        if now_s >= self._next_save_s:
            self._next_save_s = now_s + SAVE_INTERVAL_S
            self._unsaved = deque(t for t in self.torrents.values() if _wants_save(t, now_s))
        if self._unsaved:
            some = [self._unsaved.popleft() for _ in range(min(SAVES_AT_ONCE, len(self._unsaved)))]
            self.spawn(self.save_resume(some))
        while self.removed and self.removed[0][0] < now_s - RECENT_S:
            self.removed.popleft()

    def _view(self, torrent: Torrent, now_s: float) -> View:
        summary = torrent.summary
        given_for = max(summary.all_time_download, summary.total_wanted)
        return View(
            torrent.record,
            torrent.is_finished,
            self.room.is_in(torrent.record.folder),
            summary.all_time_upload / given_for if given_for else 0.0,
            now_s - torrent.active_s,
        )

    def apply_activity(self, torrent: Torrent) -> None:
        """Have libtorrent and the hidden swarms do what the torrent's activity says. Raises RuntimeError."""
        if torrent.is_between_sessions:
            return
        is_held = torrent.held_until_s > time.monotonic()
        may_run = torrent.activity is Activity.RUNNING and not torrent.error and not torrent.record.moving_to
        may_run = may_run and not is_held
        # Circuits are looked through for those alone that need one.
        runs = torrent.is_verifying or (
            may_run and (torrent.is_checking or bool(torrent.peers) or self._is_reachable(torrent.lane))
        )
        if torrent.is_verifying and not may_run:
            torrent.handle.set_flags(lt.torrent_flags.stop_when_ready)
        if runs and torrent.is_uploading_only:
            torrent.handle.unset_flags(lt.torrent_flags.upload_mode)  # libtorrent never tries to write again by itself
        if runs and torrent.is_paused:
            torrent.handle.resume()
            torrent.has_run = True
            torrent.active_s = time.monotonic()
        elif not runs and not torrent.is_paused:
            torrent.handle.pause()
        self._join_swarms(torrent, may_run)

    def _is_reachable(self, lane: Lane) -> bool:
        """Return whether peers can reach the lane, asked once in each tick."""
        if (known := self._reachable.get(lane)) is None:
            known = self._reachable[lane] = self.sessions.is_reachable(lane)
        return known

    def _join_swarms(self, torrent: Torrent, may_run: bool) -> None:
        """Seed or download in the torrent's hidden swarms, or leave them when it may not run."""
        if torrent.record.hops == PLAIN or torrent.is_private or not may_run:
            self.leave_swarms(torrent)
            return
        seeds, swarms = torrent.is_finished, torrent.known_swarms
        if torrent.is_checking or (seeds is torrent.hidden and swarms == torrent.swarms):
            return
        on_linked = None if seeds else partial(self._on_linked, torrent)
        for swarm in swarms if seeds is not torrent.hidden else swarms - torrent.swarms:
            self._tunnels.join_swarm(swarm, torrent.lane.hops, on_linked, seeding=seeds, group=torrent.lane.group)
        torrent.hidden, torrent.swarms = seeds, swarms

    def leave_swarms(self, torrent: Torrent) -> None:
        """Take the torrent out of its hidden swarms."""
        if torrent.hidden is not None:
            for swarm in torrent.swarms:
                self._tunnels.leave_swarm(swarm)
            torrent.hidden, torrent.swarms = None, frozenset()
            torrent.peers = frozenset()

    def _on_linked(self, torrent: Torrent, peer: Address) -> None:
        torrent.peers |= {peer}
        torrent.handle.connect_peer(peer)
        self.apply_activity(torrent)

    def _share_rates(self) -> None:
        """Share out what is allowed in all among the sessions that have work to do."""
        down, up = self.settings.rates(datetime.datetime.now())
        rates: dict[Lane, tuple[int, int]] = {}
        for torrent in self.torrents.values():
            if torrent.activity is Activity.RUNNING:
                before = rates.get(torrent.lane, (0, 0))
                rates[torrent.lane] = before[0] + torrent.down_rate, before[1] + torrent.up_rate
        downs = share_limit(down, {lane: rate for lane, (rate, _) in rates.items()})
        ups = share_limit(up, {lane: rate for lane, (_, rate) in rates.items()})
        self.sessions.set_limits({lane: (downs[lane], ups[lane]) for lane in rates}, (down, up))

    async def _stop_done(self, torrent: Torrent) -> None:
        async with self.changing:
            if torrent.activity is Activity.RUNNING and not torrent.record.stopped and self.is_done(torrent):
                await self.put(torrent, stopped=True, started_now=False, gave_all=True)

    def is_done(self, torrent: Torrent) -> bool:
        """Return whether it has given what it was to give."""
        return is_done_seeding(self._view(torrent, time.monotonic()), self.settings.queue_limits())

    def _look_at_disks(self) -> None:
        rates: Counter[str] = Counter()
        for torrent in self.torrents.values():
            if torrent.activity in (Activity.RUNNING, Activity.NO_ROOM) and not torrent.is_finished:
                rates[torrent.record.folder] += torrent.down_rate
        self.spawn(self.room.look(rates))

    def disk_is_full(self, torrent: Torrent) -> None:
        """Note that libtorrent found no room before we did."""
        self.room.found_none(torrent.record.folder)
        torrent.is_verifying = False
        torrent.activity = Activity.NO_ROOM
        self.apply_activity(torrent)

    # What is kept

    async def put(self, torrent: Torrent, **changes: Any) -> None:
        """Change its record; call it with `changing` held. Raises StoreError: nothing is changed then."""
        await self.put_each([(torrent, changes)])

    async def put_each(self, changes: Iterable[tuple[Torrent, dict[str, Any]]]) -> None:
        """Change the records of several torrents, as `put` does: all of them, or none."""
        changed = [(each, msgspec.structs.replace(each.record, **new)) for each, new in changes if self.has(each)]
        if changed:
            await self.store.put_records([record for _, record in changed])
        for torrent, record in changed:
            torrent.record, torrent.changed_s = record, time.monotonic()

    async def put_with_resume(self, torrent: Torrent, with_peers: bool = True, **changes: Any) -> bytes:
        """Change its record together with its resume data, which it returns. Raises StoreError."""
        record = msgspec.structs.replace(torrent.record, edited_s=time.time(), **changes)
        resume = await self.resume_data(torrent)
        if not with_peers:
            parameters = lt.read_resume_data(resume)
            parameters.peers = parameters.banned_peers = []
            resume = lt.write_resume_data_buf(parameters)
        torrent.resumes_put += 1
        torrent.saved = ()  # it may lack pieces that are being checked now
        if not self.has(torrent):
            raise StoreError("the torrent is gone")
        await self.store.put(record, resume)
        torrent.record, torrent.changed_s = record, time.monotonic()
        return resume

    async def save_resume(self, torrents: Iterable[Torrent]) -> None:
        """Keep where these stand, as far as libtorrent has them. Raises StoreError."""
        here = [torrent for torrent in torrents if self.has(torrent) and not torrent.is_between_sessions]
        asked = [(torrent.handle, torrent.resumes_put) for torrent in here]
        kept = [torrent.summary.kept for torrent in here]
        answers = await asyncio.gather(*(self.resume_data(torrent) for torrent in here), return_exceptions=True)
        saved = [
            (torrent, mark, answer)
            for torrent, before, mark, answer in zip(here, asked, kept, answers, strict=True)
            # What was changed meanwhile has been kept with the change, and is newer.
            if isinstance(answer, bytes) and self.has(torrent) and (torrent.handle, torrent.resumes_put) == before
        ]
        await self.store.put_resumes([(torrent.record.infohash, answer) for torrent, _, answer in saved])
        for torrent, mark, _ in saved:
            torrent.saved = () if torrent.is_checking or torrent.is_verifying else mark
            torrent.saved_s = time.monotonic()
        for torrent, answer in zip(here, answers, strict=True):
            if isinstance(answer, BaseException) and self.has(torrent) and not torrent.is_between_sessions:
                raise answer

    async def resume_data(self, torrent: Torrent) -> bytes:
        """Return the resume data as libtorrent has it now. Raises StoreError."""
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        try:
            torrent.handle.save_resume_data(lt.torrent_handle.save_info_dict)
        except RuntimeError:
            raise StoreError("the torrent is gone") from None
        torrent.resuming.append(future)
        try:
            async with asyncio.timeout(RESUME_TIMEOUT_S):
                return await asyncio.shield(future)  # its place in the row is kept: each request has one answer
        except TimeoutError:
            raise StoreError("libtorrent does not say where a torrent stands") from None

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run it in the background; a failure is logged, and what failed is tried again with the next change."""

        async def guarded() -> None:
            try:
                await work
            except (StoreError, OSError) as error:
                logger.warning("The state of a torrent was not saved: %s", error)
            except Exception as error:
                logger.error("Work on a torrent failed unexpectedly: %s", type(error).__name__)
                logger.debug("The traceback of the failure", exc_info=True)

        task = asyncio.get_running_loop().create_task(guarded())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def save(self) -> None:
        """Write where every torrent stands; nothing runs any more after it."""
        self._ended = True
        here = [torrent for torrent in self.torrents.values() if not torrent.is_between_sessions]
        for torrent in here:
            torrent.handle.pause()
        try:
            await self.save_resume(here)
        except StoreError as error:
            logger.warning("The progress of a torrent was not saved: %s", error)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=RESUME_TIMEOUT_S)


def _wants_save(torrent: Torrent, now_s: float) -> bool:
    is_old = torrent.activity is Activity.RUNNING and now_s >= torrent.saved_s + SAVE_TIME_INTERVAL_S
    return is_old or torrent.saved != torrent.summary.kept
