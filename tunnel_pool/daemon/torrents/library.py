"""The daemon's torrents: which there are, and in which libtorrent session each is."""

import asyncio
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial

import libtorrent as lt

from tunnel_pool.contract import Tunnels
from tunnel_pool.daemon.record import Record
from tunnel_pool.daemon.rules.life import Event
from tunnel_pool.daemon.rules.selection import distrust_ends
from tunnel_pool.daemon.rules.tiers import name_trackers
from tunnel_pool.daemon.storage.presence import not_found
from tunnel_pool.daemon.storage.store import Store, StoreError
from tunnel_pool.daemon.torrents.background import Background
from tunnel_pool.daemon.torrents.counted import NOTHING, Counted
from tunnel_pool.daemon.torrents.paths import Paths
from tunnel_pool.daemon.torrents.places import Places
from tunnel_pool.daemon.torrents.records import RESUME_TIMEOUT_S, Records
from tunnel_pool.daemon.torrents.scheduler import Scheduler
from tunnel_pool.daemon.torrents.seen import Count, StatusSummary
from tunnel_pool.daemon.torrents.sessions import Sessions
from tunnel_pool.daemon.torrents.status import hashes_of
from tunnel_pool.daemon.torrents.torrent import Torrent
from tunnel_pool.overlay.ground.lanes import Lane
from tunnel_pool.overlay.ground.pacing import Newest
from tunnel_pool.torrent.announces.account import Account, Totals
from tunnel_pool.torrent.anonymous_torrents import allowed_trackers, left_out_trackers, strip
from tunnel_pool.torrent.isolation import MOST_LANES, PLAIN, Isolation, Isolator
from tunnel_pool.torrent.sessions.lost_peers import is_end_to_end

TICK_S = 1.0
MAX_LEFT = 1000  # removed torrents whose trackers may hear of it yet
RECENT_S = 60.0  # Transmission's "recently active"

logger = logging.getLogger(__name__)


class Library:
    """Holds the torrents: `records` keeps them, `scheduler` says what they do; `save` it when the daemon ends."""

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
        """`settle_s`: how long a new torrent contacts nobody, unless it was added with a hop count."""
        self.isolator = Isolator(isolation)
        self.torrents: dict[str, Torrent] = {}
        self.is_saved = False  # whether `save` wrote everything
        self.seen = Count()
        self.on_done: list[Callable[[Torrent], None]] = []  # called once something was downloaded whole
        self.sessions = sessions
        self.background = Background()
        self.records = Records(store, self.torrents, os.getcwd())
        self.scheduler = Scheduler(
            self.records, self.seen, sessions, tunnels, self.background, min_free_bytes=min_free_bytes
        )
        self.places = Places(self.records, self.background, self.scheduler.tick_soon)
        self.paths = Paths(self.records, self.background, self.scheduler.tick_soon)
        self.scheduler.look_first = self.paths.look_first
        self._removed: deque[tuple[float, int]] = deque()  # when a torrent was removed, and its number
        # What torrents moved that libtorrent lets go of: trackers hear of it then.
        self._left: dict[str, Totals] = Newest(MAX_LEFT)
        self._settle_s = settle_s

    def open(self, record: Record, parameters: lt.add_torrent_params, is_missing: bool = False) -> Torrent:
        """Hand it to libtorrent, standing still; `is_missing` says that its files are gone. Raises RuntimeError."""
        shared = self.isolator.shared
        lane = self.isolator.enter(record.infohash, record.hops, record.labels)
        if self.isolator.shared > shared == 0:
            logger.warning(
                "From here on torrents share circuits: %d groups are isolated, which is the most", MOST_LANES
            )
        try:
            handle = self.hand_over(record, lane, parameters, is_missing)
        except RuntimeError:
            self.leave_lane(lane, record)
            raise
        # libtorrent has saved less than trackers were told, after `kill -9` and where it was paused.
        saved = Totals(parameters.total_uploaded, parameters.total_downloaded)
        torrent = Torrent(
            self.seen,
            record,
            lane,
            handle,
            handle.status(),
            account=Account(record.tracker_key, partial(self._tell_tracker, record.infohash)),
            counted=Counted(Totals(*map(max, zip(_kept(record), saved, strict=True)))),
            has_run=parameters.active_time > 0,
        )
        if is_missing:
            torrent.happened(Event.LOST, not_found(record.folder))
        # Also of one that was added before a restart.
        torrent.hold(torrent.active_s + min(self._settle_s, record.added_s + self._settle_s - time.time()))
        torrent.was_saved(torrent.summary.kept)
        self.sessions.ensure_open(lane).register(torrent)
        self.torrents[record.infohash] = torrent
        self.paths.note(torrent)
        torrent.apply_limits()
        return torrent

    def close(self, torrent: Torrent) -> "asyncio.Future[None]":
        """Remove a torrent whose record is removed already; the future ends when libtorrent has closed its files."""
        self.scheduler.leave_swarms(torrent)
        if torrent.is_between_sessions:  # neither took it
            removed = asyncio.get_running_loop().create_future()
            removed.set_result(None)
        else:
            removed = self.sessions.ensure_open(torrent.lane).remove(torrent)
        removed.add_done_callback(lambda _: self.leave_lane(torrent.lane, torrent.record))
        del self.torrents[torrent.record.infohash]
        self.paths.look_again(torrent)
        self.paths.forget(torrent.record.infohash)
        self._left[torrent.record.infohash] = torrent.totals
        self._removed.append((time.monotonic(), torrent.record.number))
        self._forget_removed()
        return removed

    def removed_of_late(self) -> list[int]:
        """Return the numbers of the torrents that were removed within RECENT_S."""
        self._forget_removed()
        return [number for _, number in self._removed]

    def _forget_removed(self) -> None:
        while self._removed and self._removed[0][0] < time.monotonic() - RECENT_S:
            self._removed.popleft()

    def leave_lane(self, lane: Lane, record: Record) -> None:
        """Note that a torrent has left this lane, whose session ends with its last torrent."""
        if lane.hops == PLAIN:
            # By lane: a record has its new hop count while the torrent is still leaving the session.
            self.sessions.close_plain_later(lambda: all(each.lane.hops != PLAIN for each in self.torrents.values()))
        elif self.isolator.leave(lane, record.infohash):
            self.background.spawn(self.sessions.close(lane))

    def hand_over(
        self, record: Record, lane: Lane, parameters: lt.add_torrent_params, is_missing: bool
    ) -> lt.torrent_handle:
        """Give the torrent to the session of this lane. Raises RuntimeError.

        Where its files are gone, libtorrent does not look for them: it keeps in mind which pieces were there.
        """
        parameters.save_path = record.folder
        if parameters.ti is None and record.name:
            parameters.name = record.name
        flags = lt.torrent_flags
        parameters.flags &= ~(flags.auto_managed | flags.upload_mode | flags.stop_when_ready | flags.no_verify_files)
        parameters.flags &= ~flags.default_dont_download  # of a magnet link that chooses files: see chosen_files
        parameters.flags |= flags.paused | flags.duplicate_is_error
        if is_missing:
            parameters.flags |= flags.no_verify_files
        elif record.taking_over:
            parameters.flags |= flags.stop_when_ready
        known = dict.fromkeys([*parameters.peers, *record.peers])
        parameters.peers = [peer for peer in known if not is_end_to_end(peer)]  # of circuits that are gone
        name_trackers(parameters, record.trackers, record.web_seeds)
        parameters.flags |= flags.override_trackers | flags.override_web_seeds
        if record.hops == PLAIN:
            parameters.flags &= ~flags.disable_pex
            if not self.records.settings.pex_enabled:
                parameters.flags |= flags.disable_pex
        elif left_out := strip(parameters, self.sessions.tracker_rules):
            logger.warning("%s", left_out_trackers(left_out, self.sessions.tracker_rules))
        parameters.file_priorities = record.file_priorities
        parameters.piece_priorities = []  # as of the last save, and would hold over the record's
        distrust_ends(parameters, record.exporting)
        return self.sessions.ensure_open(lane).add(parameters)

    def replace_trackers(self, torrent: Torrent) -> None:
        """Have the torrent ask the trackers of its record; with hops, those alone that the tunnels carry."""
        tiers = torrent.record.trackers
        if torrent.record.hops != PLAIN:
            rules = self.sessions.tracker_rules
            allowed = allowed_trackers(tiers, rules)
            if left_out := sum(map(len, tiers)) - sum(map(len, allowed)):
                logger.warning("%s", left_out_trackers(left_out, rules))
            tiers = allowed
        entries = []
        for tier, urls in enumerate(tiers):
            for url in urls:
                entry = lt.announce_entry(url)
                entry.tier = tier
                entries.append(entry)
        torrent.handle.replace_trackers(entries)

    def apply_settings(self) -> None:
        """Have libtorrent do what a client has set."""
        settings = self.records.settings
        self.sessions.set_plain(settings.of_plain_session())
        for torrent in self.torrents_of(PLAIN):
            if torrent.is_between_sessions:
                continue
            if settings.pex_enabled:
                torrent.handle.unset_flags(lt.torrent_flags.disable_pex)
            else:
                torrent.handle.set_flags(lt.torrent_flags.disable_pex)

    def _tell_tracker(self, infohash: str) -> Totals:
        """Return what a torrent has moved, and keep that a tracker was told so."""
        torrent = self.torrents.get(infohash)
        if torrent is None or self.is_saved:  # libtorrent can't be asked while a session ends
            return self._left.get(infohash, NOTHING)
        totals = _totals_now(torrent)
        self.background.spawn(self._keep_totals([(torrent, totals)]))
        return totals

    async def _keep_totals(self, totals: Iterable[tuple[Torrent, Totals]]) -> None:
        async with self.records.changing:
            await self.records.put_each(
                (torrent, {"uploaded_bytes": moved.uploaded, "downloaded_bytes": moved.downloaded})
                for torrent, moved in totals
                if moved != _kept(torrent.record)
            )

    def tell_done(self, torrent: Torrent) -> None:
        """Tell that a torrent was downloaded, once its files are where they are to be."""
        if torrent.record.is_to_be_told and not torrent.record.folder_when_done:
            self.background.spawn(self._tell_done(torrent))

    async def _tell_done(self, torrent: Torrent) -> None:
        async with self.records.changing:
            if not torrent.record.is_to_be_told:
                return
            await self.records.put(torrent, is_to_be_told=False)
        for tell in self.on_done:
            tell(torrent)

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

    async def back_up(self) -> None:
        """Make a backup of all that is kept; a failure is logged."""
        try:
            await self.records.back_up()
        except StoreError as error:
            logger.warning("No backup of the torrents was made: %s", error)

    async def save(self) -> None:
        """Write where every torrent stands; nothing runs any more after it."""
        self.scheduler.end()
        here = [torrent for torrent in self.torrents.values() if not torrent.is_between_sessions]
        for torrent in here:
            torrent.handle.pause()
        try:
            await self.records.save_resume(here)
            totals = [(torrent, _totals_now(torrent)) for torrent in here]
            self._left = {torrent.record.infohash: moved for torrent, moved in totals}
            await self._keep_totals(totals)
            self.is_saved = True
        except StoreError as error:
            logger.warning("The progress of a torrent was not saved: %s", error)
        await self.background.wait(RESUME_TIMEOUT_S)


def _kept(record: Record) -> Totals:
    return Totals(record.uploaded_bytes, record.downloaded_bytes)


def _totals_now(torrent: Torrent) -> Totals:
    """Return what a torrent has moved until now, which its last status may not say yet."""
    if torrent.is_between_sessions:
        return torrent.totals
    return torrent.counted.totals_by(StatusSummary.of(torrent.handle.status()))
