"""A torrent as others see it: its record, its libtorrent handle, and what was last heard of it."""

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import InitVar, dataclass, field
from typing import NamedTuple

import libtorrent as lt

from tunnel_pool.contract import Address
from tunnel_pool.daemon.record import UNWANTED, Record
from tunnel_pool.daemon.rules.life import Check, Facts, Life, Place, State, Trouble
from tunnel_pool.daemon.rules.queue import Activity
from tunnel_pool.daemon.rules.selection import priority_of
from tunnel_pool.daemon.rules.speeds import Speeds
from tunnel_pool.daemon.rules.standstill import Standstill
from tunnel_pool.daemon.torrents.counted import Counted
from tunnel_pool.daemon.torrents.seen import NEVER_SAVED, Announced, Count, Saved, StatusSummary
from tunnel_pool.daemon.torrents.status import PeerInfos, Seen, hashes_of
from tunnel_pool.daemon.torrents.waiting import Waiting
from tunnel_pool.overlay.ground.lanes import Lane
from tunnel_pool.torrent.announces.account import Account, Totals
from tunnel_pool.torrent.entries import real_files


class HiddenRole(NamedTuple):
    """Says what a torrent does in its hidden swarms."""

    seeds: bool | None  # None while it is in none
    swarms: frozenset[bytes]  # by the hash that is looked up
    peers: frozenset[Address]  # end-to-end, to be asked until they are there


NO_ROLE = HiddenRole(None, frozenset(), frozenset())


class Allowed(NamedTuple):
    """Holds what a torrent may take besides its own limits."""

    down: int = 0  # of its group's limits, in bytes a second; 0 is no limit
    up: int = 0
    is_cautious: bool = False  # whether it comes slowly, as its size is not known yet and its disk is nearly full


NOTHING_SHARED = Allowed()


@dataclass(slots=True)
class TorrentView:
    """Holds what is known of a torrent, for those who read it alone; `Torrent` changes it."""

    count: Count  # of the changes to all torrents
    record: Record  # what its owner wants
    lane: Lane  # the lane of the session that it is in
    handle: lt.torrent_handle  # invalid while it is between sessions
    first: InitVar[lt.torrent_status]
    seen: Seen = field(init=False)  # what libtorrent said last
    life: Life = field(default_factory=Life)  # change it by `happened`
    account: Account | None = None  # with its trackers
    counted: Counted = field(default_factory=Counted)
    has_run: bool = False  # whether anybody may have heard of it since it was added
    changed: int = 0  # what `count` was after the last change
    changed_s: float = 0.0  # monotonic
    active_s: float = 0.0  # monotonic, when something was last sent or received
    top: str = ""  # the file or folder that all its files are in; empty where there are several
    notice: str = ""  # what its owner should see to, although it goes on
    waiting: Waiting = field(default_factory=Waiting)  # for libtorrent's answers
    trackers: dict[str, Announced] = field(default_factory=dict)  # when each was last heard, by URL
    role: HiddenRole = NO_ROLE  # in its hidden swarms
    checked_again_s: float = -math.inf  # monotonic, when it was checked because a file was too short
    saved: Saved = NEVER_SAVED
    standstill: Standstill = field(default_factory=lambda: Standstill(time.monotonic()))
    selections: int = 0  # changes of its files' priorities that libtorrent has not carried out yet
    # What `changed` and whether its lane could be reached were when it did what it is to do; None while it does not.
    settled: tuple[int, bool] | None = None
    _allowed: Allowed = NOTHING_SHARED
    _speeds: Speeds = field(default_factory=Speeds)
    _peers: PeerInfos = field(default_factory=PeerInfos)

    @property
    def status(self) -> lt.torrent_status:
        return self.seen.status

    @property
    def summary(self) -> StatusSummary:
        return self.seen.summary

    def facts(self, now_s: float, has_way: bool = False) -> Facts:
        """Return what decides, besides its life, what it is to do; `has_way`: peers can be reached."""
        record, is_incoming, summary = self.record, self.record.is_incoming, self.summary
        is_moving = bool(record.moving_to)
        return Facts(
            now_s,
            summary.is_checking,
            self.is_finished,
            is_moving and not is_incoming,
            is_moving and is_incoming,
            record.taking_over,
            record.untouched,
            has_way,
        )

    @property
    def state(self) -> State:
        """Return what it does, in one word."""
        return self.life.state(self.facts(time.monotonic()))

    @property
    def error(self) -> str:
        """Return why it stands still, empty where it does not."""
        return self.life.why

    @property
    def standing(self) -> str:
        """Return why nothing comes, and what was tried; empty where nothing was."""
        return self.standstill.said

    @property
    def activity(self) -> Activity:
        """Return what the queue, limits and disks let it do."""
        return self.life.turn

    @property
    def is_missing(self) -> bool:
        """Return whether its files are gone, for which it stands still."""
        return self.life.trouble is Trouble.MISSING

    @property
    def is_moving(self) -> bool:
        """Return whether libtorrent moves its files now."""
        return self.life.place is Place.MOVING

    @property
    def is_between_sessions(self) -> bool:
        return self.life.place is Place.BETWEEN_SESSIONS

    @property
    def is_verifying(self) -> bool:
        """Return whether its files are being checked on request, which goes on while it is stopped."""
        return self.life.check is Check.VERIFYING

    @property
    def is_private(self) -> bool:
        return self.seen.is_private

    @property
    def hash_string(self) -> str:
        """Return the hash by which others know it: v1's if it has one, as most clients name one that has both."""
        return self.seen.hash_string

    @property
    def down_rate(self) -> int:
        """Return its payload that comes, in bytes a second."""
        return self._speeds.down

    @property
    def up_rate(self) -> int:
        """Return its payload that goes, in bytes a second."""
        return self._speeds.up

    @property
    def is_checking(self) -> bool:
        return self.summary.is_checking

    @property
    def is_finished(self) -> bool:
        """Return whether all that is wanted is there, in its files."""
        return self.summary.is_finished and not self.waiting.is_writing

    @property
    def is_going_home(self) -> bool:
        """Return whether its files are to be elsewhere once it is whole, and can be, as far as is known."""
        return bool(self.record.folder_when_done) and not self.notice

    @property
    def is_paused(self) -> bool:
        """Return whether libtorrent has paused it."""
        return self.summary.is_paused

    @property
    def totals(self) -> Totals:
        """Return what it has moved in all."""
        return self.counted.totals

    def seeding_s(self, now_s: float) -> float:
        """Return for how long it has run with all that is wanted there."""
        if not self.is_finished:
            return 0.0
        return float(self.status.finished_duration.total_seconds() + self._since_status_s(now_s))

    def active_s_by(self, now_s: float) -> float:
        """Return for how long it has run."""
        return float(self.status.active_duration.total_seconds() + self._since_status_s(now_s))

    def _since_status_s(self, now_s: float) -> float:
        """Return how long it has run since its last status: libtorrent says nothing of an idle torrent."""
        return 0.0 if self.is_paused else now_s - self.seen.at_s

    @property
    def peers(self) -> frozenset[Address]:
        """Return the other ends of its hidden swarms, to be asked until they are there."""
        return self.role.peers

    @property
    def peer_count(self) -> int:
        """Return how many BitTorrent peers are connected."""
        return self.summary.num_peers

    @property
    def knows_peers(self) -> bool:
        """Return whether anybody is known who may be a peer."""
        return self.summary.knows_peers

    @property
    def _payload(self) -> tuple[int, int]:
        return self.summary.total_payload_download, self.summary.total_payload_upload

    @property
    def is_measured(self) -> bool:
        """Return whether nothing comes or goes, and nothing did since its speeds were measured."""
        return self._speeds.is_idle(self._payload)

    def peer_infos(self) -> Sequence[lt.peer_info]:
        """Return its BitTorrent peers, as of the last second. Raises RuntimeError while it is between sessions."""
        if not self.summary.num_peers:
            return ()
        return self._peers.of(self.handle, time.monotonic())

    @property
    def hashes(self) -> set[bytes]:
        return hashes_of(self.status.info_hashes)

    @property
    def known_swarms(self) -> frozenset[bytes]:
        """Return the hidden swarms that it could be in; that of v2's hash is known once the metadata is."""
        return self.seen.swarms

    @property
    def info(self) -> lt.torrent_info | None:
        """Return the metadata, None until it is known."""
        return self.seen.info

    @property
    def layout(self) -> lt.file_storage | None:
        """Return the layout of its files, None until the metadata is known."""
        return self.info.layout() if self.info is not None else None

    def file_indexes(self) -> list[int]:
        """Return the indexes of its files as its owner sees them, without those that only pad."""
        return real_files(self.layout) if self.layout is not None else []

    def file_bytes(self) -> list[int]:
        """Return how many bytes are there of each file, 0 while libtorrent can't say.

        Raises RuntimeError while it is between sessions.
        """
        assert self.layout is not None
        there = self.handle.file_progress(lt.torrent_handle.piece_granularity)
        return [*there, *[0] * (self.layout.num_files() - len(there))]

    def file_path(self, index: int) -> str:
        """Return the path of a file in the torrent's folder, as it was renamed."""
        (path,) = self.file_paths([index])
        return path

    def file_paths(self, indexes: Iterable[int]) -> list[str]:
        """Return the paths of files in the torrent's folder, as they were renamed; none before they are known."""
        layout, renamed = self.layout, self.status.renamed_files
        return [] if layout is None else [str(renamed.file_path(layout, index)) for index in indexes]

    @property
    def progress(self) -> float:
        """Return how much of what is wanted is there, from 0 to 1; 1 when its last piece was checked."""
        wanted = self.summary.total_wanted
        return (wanted - self.left_bytes) / wanted if wanted else 0.0

    @property
    def left_bytes(self) -> int:
        """Return what is missing of what is wanted; libtorrent counts a piece as done before its hash is checked.

        A byte is missing until its files are where clients look for them, too.
        """
        left = max(0, self.summary.total_wanted - self.summary.total_wanted_done)
        is_there = self.is_finished and not self.is_going_home
        return left if is_there else max(left, min(1, self.summary.total_wanted))

    def priority(self, index: int) -> int:
        """Return libtorrent's priority of a file."""
        return priority_of(self.record.file_priorities, index)

    def is_wanted(self, index: int) -> bool:
        return self.priority(index) != UNWANTED
