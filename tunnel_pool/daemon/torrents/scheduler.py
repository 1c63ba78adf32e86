"""Has each torrent do, every second, what the queue, the limits, the disks and the circuits ask for."""

import asyncio
import datetime
import logging
import time
from collections import deque
from collections.abc import Callable, Collection
from functools import partial

import msgspec

from tunnel_pool.contract import Address, Tunnels
from tunnel_pool.daemon.rules.groups import Member, shares
from tunnel_pool.daemon.rules.life import Event
from tunnel_pool.daemon.rules.queue import Activity, QueueLimits, View, plan, reached_limits
from tunnel_pool.daemon.storage.room import Room
from tunnel_pool.daemon.torrents.background import Background
from tunnel_pool.daemon.torrents.records import Records
from tunnel_pool.daemon.torrents.seen import Count
from tunnel_pool.daemon.torrents.sessions import Sessions
from tunnel_pool.daemon.torrents.torrent import Torrent
from tunnel_pool.overlay.ground.lanes import Lane
from tunnel_pool.torrent.isolation import PLAIN, share_limit

SOON_S = 0.05
WHOLE_S = 10.0  # how often torrents are looked at although nothing has changed: for limits that time alone reaches
MEASURE_S = 0.9
SAVE_INTERVAL_S = 20.0
SAVE_TIME_INTERVAL_S = 3600.0  # for torrents whose seeding time alone has changed
SAVES_AT_ONCE = 64  # torrents in a second: a thousand are saved within the interval

logger = logging.getLogger(__name__)


class Scheduler:
    """Starts, stops and saves torrents: `tick` it every second."""

    def __init__(
        self,
        records: Records,
        seen: Count,
        sessions: Sessions,
        tunnels: Tunnels,
        background: Background,
        *,
        min_free_bytes: int,
    ) -> None:
        """`seen` counts changes to torrents; with less room than `min_free_bytes` on its disk, no torrent downloads."""
        self.room = Room(min_free_bytes)
        self._torrents = records.torrents
        self._records = records
        self._seen = seen
        self._sessions = sessions
        self._tunnels = tunnels
        self._background = background
        self._next_save_s = self._next_whole_s = self._measured_s = 0.0
        self._planned: object = None  # what the last plan was made of
        self._unsaved: deque[Torrent] = deque()
        self._reachable: dict[Lane, bool] = {}  # what was found out in this tick
        self._scheduled: bool | None = None  # whether the alternative speeds' time was at the last look
        self._soon: asyncio.TimerHandle | None = None
        self._ended = False
        self._has_shares = False  # whether a torrent may take part of a group's limit
        self.look_first: Callable[[Torrent], None] = lambda torrent: None  # at its places, before it writes there

    def end(self) -> None:
        """Do nothing from now on."""
        self._ended = True

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
        limits = self._records.settings.queue_limits()
        self._plan(limits)
        self._tend(now_s, limits)
        self._keep_schedule()
        self._share_rates()
        self._look_at_disks()
        self._sessions.connect_peers()
        if now_s >= self._next_save_s:
            self._next_save_s = now_s + SAVE_INTERVAL_S
            self._unsaved = deque(t for t in self._torrents.values() if _wants_save(t, now_s))
        if self._unsaved:
            some = [self._unsaved.popleft() for _ in range(min(SAVES_AT_ONCE, len(self._unsaved)))]
            self._background.spawn(self._records.save_resume(some))

    def _plan(self, limits: QueueLimits) -> None:
        """Note what each torrent is to do, where anything has changed since the last time."""
        made_of = self._seen.value, len(self._torrents), limits, self.room.state()
        if made_of == self._planned:
            return
        now_s = time.monotonic()
        views = (self._view(each, now_s) for each in self._torrents.values())
        for infohash, activity in plan(views, limits, self.room.budget()).items():
            self._torrents[infohash].plan(activity)
        self._planned = made_of

    def _tend(self, now_s: float, limits: QueueLimits) -> None:
        """Measure, start and stop torrents, all of them now and then, and else those that are not settled."""
        since_s = now_s - self._measured_s
        if is_measured := since_s >= MEASURE_S:
            self._measured_s = now_s
        if is_whole := now_s >= self._next_whole_s:
            self._next_whole_s = now_s + WHOLE_S
        for torrent in self._torrents.values():
            if not is_whole and self._is_settled(torrent):
                continue
            if is_measured:
                torrent.measure(now_s, since_s)
            if torrent.activity is Activity.RUNNING and reached_limits(self._view(torrent, now_s), limits):
                self._background.spawn(self._stop_done(torrent))
            try:
                self.apply_activity(torrent)
            except RuntimeError as error:
                logger.error("libtorrent refused to start or stop a torrent: %s", error)

    def _is_settled(self, torrent: Torrent) -> bool:
        """Return whether the torrent does what it is to do, and nothing that decides it has changed since."""
        return torrent.settled == (torrent.changed, self._is_reachable(torrent.lane))

    def _view(self, torrent: Torrent, now_s: float) -> View:
        summary = torrent.summary
        given_for = max(torrent.totals.downloaded, summary.total_wanted)
        return View(
            torrent.record,
            torrent.is_finished,
            0 if torrent.is_checking else torrent.left_bytes,
            torrent.activity is Activity.NO_ROOM,
            torrent.totals.uploaded / given_for if given_for else 0.0,
            now_s - torrent.active_s,
            torrent.seeding_s(now_s),
        )

    def apply_activity(self, torrent: Torrent) -> None:
        """Have libtorrent and the hidden swarms do what the torrent's activity says. Raises RuntimeError."""
        torrent.unsettle()
        now_s, is_reachable = time.monotonic(), self._is_reachable(torrent.lane)
        orders = torrent.life.orders(torrent.facts(now_s, bool(torrent.peers) or is_reachable))
        if orders is None:
            return
        torrent.set_cautious(torrent.info is None and self.room.budget().is_tight(torrent.record.folder))
        torrent.follow(orders)
        if orders.looks_first:
            self.look_first(torrent)
        self._join_swarms(torrent, orders.may_meet)
        is_done = orders.runs is not torrent.is_paused and torrent.is_measured and now_s >= torrent.life.held_until_s
        if is_done and not (torrent.summary.is_uploading_only or orders.looks_first):
            torrent.settle(is_reachable)

    def _is_reachable(self, lane: Lane) -> bool:
        """Return whether peers can reach the lane, asked once in each tick."""
        if (known := self._reachable.get(lane)) is None:
            known = self._reachable[lane] = self._sessions.is_reachable(lane)
        return known

    def _join_swarms(self, torrent: Torrent, may_meet: bool) -> None:
        """Seed or download in the torrent's hidden swarms, or leave them when nobody may meet it."""
        if torrent.record.hops == PLAIN or torrent.is_private or not may_meet:
            self.leave_swarms(torrent)
            return
        seeds, swarms = torrent.is_finished, torrent.known_swarms
        if torrent.is_checking or (seeds is torrent.role.seeds and swarms == torrent.role.swarms):
            return
        on_linked = None if seeds else partial(self._on_linked, torrent)
        for swarm in swarms if seeds is not torrent.role.seeds else swarms - torrent.role.swarms:
            self._tunnels.join_swarm(swarm, torrent.lane.hops, on_linked, seeding=seeds, group=torrent.lane.group)
        torrent.take_role(seeds, swarms)

    def leave_swarms(self, torrent: Torrent) -> None:
        """Take the torrent out of its hidden swarms."""
        for swarm in torrent.role.swarms:
            self._tunnels.leave_swarm(swarm)
        torrent.lose_role()

    def _on_linked(self, torrent: Torrent, peer: Address) -> None:
        self._sessions.add_end(torrent.lane, peer, partial(self._add_end, torrent))

    def _add_end(self, torrent: Torrent, peer: Address) -> None:
        torrent.add_end(peer)
        self.apply_activity(torrent)

    def _keep_schedule(self) -> None:
        """Turn the alternative speeds on and off when their time begins and ends; in between, clients may."""
        settings = self._records.settings
        scheduled = settings.scheduled(datetime.datetime.now())
        if scheduled is not self._scheduled and scheduled not in (None, settings.alt_speed_enabled):
            edit = partial(msgspec.structs.replace, alt_speed_enabled=scheduled)
            self._background.spawn(self._records.edit_settings(edit))
        self._scheduled = scheduled

    def _share_rates(self) -> None:
        """Share out what is allowed in all among the sessions that have work to do."""
        down, up = self._records.settings.rates()
        rates: dict[Lane, tuple[int, int]] = {}
        for torrent in self._torrents.values():
            if torrent.activity is Activity.RUNNING:
                before = rates.get(torrent.lane, (0, 0))
                rates[torrent.lane] = before[0] + torrent.down_rate, before[1] + torrent.up_rate
        downs = share_limit(down, {lane: rate for lane, (rate, _) in rates.items()})
        ups = share_limit(up, {lane: rate for lane, (_, rate) in rates.items()})
        self._sessions.set_limits({lane: (downs[lane], ups[lane]) for lane in rates}, (down, up))
        self._share_groups()

    def _share_groups(self) -> None:
        """Share out what bandwidth groups are allowed among their torrents that run."""
        groups = self._records.settings.groups
        if not groups and not self._has_shares:
            return
        here = [each for each in self._torrents.values() if not each.is_between_sessions]
        running = (each for each in here if each.activity is Activity.RUNNING and not each.is_paused)
        members = (Member(each.record.number, each.record.group, each.down_rate, each.up_rate) for each in running)
        found = shares(members, groups)
        for torrent in here:
            torrent.set_share(found.get(torrent.record.number, (0, 0)))
        self._has_shares = bool(found)

    async def _stop_done(self, torrent: Torrent) -> None:
        async with self._records.changing:
            if torrent.activity is Activity.RUNNING and not torrent.record.stopped and self.reached(torrent):
                await self._records.put(torrent, stopped=True, started_now=False, stopped_by_limit=True)

    def reached(self, torrent: Torrent) -> list[str]:
        """Return which limits of seeding the torrent has reached (queue.py, reached_limits)."""
        return reached_limits(self._view(torrent, time.monotonic()), self._records.settings.queue_limits())

    def _look_at_disks(self) -> None:
        folders = {t.record.folder for t in self._torrents.values() if not t.record.stopped and not t.is_finished}
        self._background.spawn(self._look_at(folders))

    async def _look_at(self, folders: Collection[str]) -> None:
        are_known = self.room.knows(folders)
        await self.room.look(folders)
        if not are_known:
            self.tick_soon()

    def disk_is_full(self, torrent: Torrent, is_quota: bool) -> None:
        """Note that libtorrent found no room before we did."""
        self.room.found_none(torrent.record.folder, is_quota)
        torrent.happened(Event.ROOM_RAN_OUT)
        self.apply_activity(torrent)


def _wants_save(torrent: Torrent, now_s: float) -> bool:
    is_old = torrent.activity is Activity.RUNNING and now_s >= torrent.saved.at_s + SAVE_TIME_INTERVAL_S
    return is_old or torrent.saved.mark != torrent.summary.kept
