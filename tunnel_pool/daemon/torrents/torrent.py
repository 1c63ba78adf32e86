"""A torrent at work, and what happens to it."""

import math
import time
from collections.abc import Collection
from dataclasses import dataclass

import libtorrent as lt

from tunnel_pool.contract import Address
from tunnel_pool.daemon.record import Record
from tunnel_pool.daemon.rules.life import Event, Orders
from tunnel_pool.daemon.rules.queue import Activity
from tunnel_pool.daemon.torrents.counted import Counted
from tunnel_pool.daemon.torrents.seen import Announced, Saved
from tunnel_pool.daemon.torrents.status import Seen
from tunnel_pool.daemon.torrents.view import NO_ROLE, Allowed, TorrentView
from tunnel_pool.overlay.ground.lanes import Lane

CAUTIOUS_BYTES_PER_S = 256_000


@dataclass(slots=True)
class Torrent(TorrentView):
    """Holds a torrent at work: its own methods alone change its fields, and count what a client may see of a change."""

    def __post_init__(self, first: lt.torrent_status) -> None:
        self.active_s = time.monotonic()
        self._see(Seen.of(first, self.active_s, None, self.record.infohash))

    # What happens to it

    def put(self, record: Record) -> None:
        """Have another record, which is kept already."""
        self.record = record
        self._note_change()

    def happened(self, event: Event, why: str = "", again_s: float = math.inf) -> None:
        """Go on with its life (rules/life.py). Raises ImpossibleEventError."""
        self.life.happened(event, why, again_s)
        self._note_change()

    def plan(self, turn: Activity) -> None:
        """Take what the queue, limits and disks let it do."""
        if turn is not self.life.turn:
            self.life.turn = turn
            self._note_change()

    def hold(self, until_s: float) -> None:
        """Have it contact nobody until then, in monotonic time."""
        self.life.held_until_s = until_s

    def release(self) -> None:
        """Hold it no longer."""
        self.hold(0.0)

    def update(self, status: lt.torrent_status) -> bool:
        """Take libtorrent's new status of it; return whether anything in it that decides or is shown has changed."""
        before = self.summary
        seen = Seen.of(status, time.monotonic(), self.seen, self.record.infohash)
        if seen.summary == before:
            self.seen = seen
            return False
        if seen.summary.is_finished and not before.is_finished and seen.summary.total_payload_download:
            self.waiting.is_writing = True
        self._see(seen)
        if seen.summary.payload_bytes != before.payload_bytes:
            self.active_s = self.changed_s
        return True

    def was_written(self) -> None:
        """Note that all that libtorrent has of it is in its files."""
        self.waiting.is_writing = False
        self._note_change()

    def _see(self, seen: Seen) -> None:
        self.seen = seen
        self.counted.count(seen.summary)
        self._note_change()

    def _note_change(self) -> None:
        self.changed_s = time.monotonic()
        self.count.value += 1
        self.changed = self.count.value

    def begin_anew(self) -> None:
        """Take it that something was just sent or received: the time without begins again."""
        self.active_s = time.monotonic()

    def notify(self, notice: str) -> None:
        """Tell its owner of something that it does not stand still for; nothing, when that is over."""
        if notice != self.notice:
            self.notice = notice
            self._note_change()

    def announced(self, url: str, announced: Announced) -> None:
        """Note what came of an announce just now."""
        before = self.trackers.get(url)
        self.trackers[url] = announced
        if before is None or before[2:] != announced[2:]:
            self._note_change()

    def found_at(self, tops: Collection[str]) -> None:
        """Note the topmost files or folders that its files are in."""
        self.top = min(tops) if len(tops) == 1 else ""

    def stood_still(self, now_s: float, is_reachable: bool) -> None:
        """Say why nothing comes to it, and what was tried."""
        self.standstill.said = self.standstill.sentence(now_s, self.summary.num_peers, is_reachable)
        self._note_change()

    def went_on(self) -> None:
        """Say no longer that nothing comes to it."""
        if self.standing:
            self.standstill.said = ""
            self._note_change()

    # Between sessions

    def leave_session(self) -> None:
        self.happened(Event.TAKEN_OUT)

    def go_to(self, lane: Lane) -> None:
        """Belong to another lane's session, which is given the torrent next."""
        self.lane = lane

    def enter_session(self, handle: lt.torrent_handle) -> None:
        """Be in a session that counts from 0 what it moves."""
        self.handle, self.selections, self.waiting.is_writing = handle, 0, False
        self.counted = Counted(self.totals)
        self.seen = self.seen._replace(info=None)  # which the new session has for itself
        self.update(handle.status())
        self.happened(Event.HANDED_OVER)
        self.apply_limits()

    # Its hidden swarms

    def take_role(self, seeds: bool, swarms: frozenset[bytes]) -> None:
        """Be in these hidden swarms, as a seeder or a downloader."""
        self.role = self.role._replace(seeds=seeds, swarms=swarms)

    def lose_role(self) -> None:
        """Be in no hidden swarm."""
        if self.role != NO_ROLE:
            self.role = NO_ROLE
            self._note_change()

    def add_end(self, peer: Address) -> None:
        """Connect to the other end of a hidden swarm's circuit."""
        self.role = self.role._replace(peers=self.role.peers | {peer})
        self._note_change()
        self.handle.connect_peer(peer)

    def give_up_peers(self, lost: frozenset[Address]) -> None:
        """Ask these other ends no longer."""
        self.role = self.role._replace(peers=self.role.peers - lost)
        self._note_change()

    # What was saved of it

    def kept_with_resume(self) -> None:
        """Note that its resume data is written with its record; it may lack pieces that are being checked now."""
        self.saved = Saved((), self.saved.at_s, self.saved.puts + 1)

    def was_saved(self, mark: tuple[int, ...]) -> None:
        """Note that it was saved as it was when `kept` was this."""
        self.saved = Saved(mark, time.monotonic(), self.saved.puts)

    # What libtorrent is to do

    def follow(self, orders: Orders) -> None:
        """Have libtorrent do as it is told. Raises RuntimeError."""
        handle = self.handle
        if orders.checks_only:
            handle.set_flags(lt.torrent_flags.stop_when_ready)
        if orders.runs and self.summary.is_uploading_only:
            handle.unset_flags(lt.torrent_flags.upload_mode)  # libtorrent never tries to write again by itself
        if orders.runs and self.is_paused:
            handle.resume()
            self.has_run = True
            self.begin_anew()
            if orders.checks_only:  # libtorrent may have checked and stopped since its last status
                handle.set_flags(lt.torrent_flags.stop_when_ready)
        elif not orders.runs and not self.is_paused:
            handle.pause()

    def unsettle(self) -> None:
        """Be looked at in each tick, until it does what it is to do."""
        self.settled = None

    def settle(self, is_reachable: bool) -> None:
        """Be left alone until something changes: it does what it is to do."""
        self.settled = self.changed, is_reachable

    def recheck(self) -> None:
        """Have libtorrent check which pieces are there; it goes on while the torrent is stopped."""
        self.happened(Event.VERIFY_BEGUN)
        self.handle.force_recheck()

    def check_again(self) -> None:
        """Have it checked because a file is too short."""
        self.checked_again_s = time.monotonic()
        self.recheck()

    def was_checked(self) -> None:
        """Note that libtorrent has read all that is there."""
        self.happened(Event.VERIFIED)
        if self.checked_again_s > 0:
            self.checked_again_s = time.monotonic()  # reading all of it may have taken long
        self.update(self.handle.status())

    def select(self, priorities: list[int]) -> None:
        """Have libtorrent want these files, by its priorities."""
        self.handle.prioritize_files(priorities)
        self.selections += self.layout is not None

    def was_selected(self) -> None:
        """Note that libtorrent has carried out a change of priorities."""
        self.selections = max(0, self.selections - 1)

    def set_cautious(self, is_cautious: bool) -> None:
        """Let it come slowly, or no longer: nobody knows yet whether there is room for all of it."""
        self._allow(self._allowed._replace(is_cautious=is_cautious))

    def set_share(self, share: tuple[int, int]) -> None:
        """Let it take so much of its group's limits, down and up in bytes a second; 0 is no limit."""
        self._allow(self._allowed._replace(down=share[0], up=share[1]))

    def _allow(self, allowed: Allowed) -> None:
        if allowed != self._allowed:
            self._allowed = allowed
            self.apply_limits()

    def apply_limits(self) -> None:
        """Have libtorrent keep what the record and its group say of speeds, peers and order."""
        record, handle, allowed = self.record, self.handle, self._allowed
        downs = [record.download_limit_kb * 1000 or 1] if record.download_limited else []
        ups = [record.upload_limit_kb * 1000 or 1] if record.upload_limited else []
        if allowed.is_cautious:
            downs.append(CAUTIOUS_BYTES_PER_S)
        handle.set_download_limit(min(filter(None, (*downs, allowed.down)), default=0))
        handle.set_upload_limit(min(filter(None, (*ups, allowed.up)), default=0))
        handle.set_max_connections(max(2, record.peer_limit))
        if record.sequential:
            handle.set_flags(lt.torrent_flags.sequential_download)
        else:
            handle.unset_flags(lt.torrent_flags.sequential_download)

    def measure(self, now_s: float, since_s: float) -> None:
        """Measure its speeds; all that is new to its summary has moved within the last `since_s`."""
        before = self.down_rate, self.up_rate
        if self.activity is not Activity.RUNNING:
            self._speeds.stop(self._payload)
        elif not self.is_measured:
            self._speeds.measure(self._payload, now_s, since_s)
        if (self.down_rate, self.up_rate) != before:
            self._note_change()
