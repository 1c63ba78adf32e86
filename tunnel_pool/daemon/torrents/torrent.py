"""A torrent at work: its record, its libtorrent handle, and what was last heard of it."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import libtorrent as lt

from tunnel_pool.contract import Address
from tunnel_pool.daemon.rules.queue import Activity
from tunnel_pool.daemon.rules.selection import priority_of
from tunnel_pool.daemon.rules.speeds import Speeds
from tunnel_pool.daemon.rules.standstill import Standstill
from tunnel_pool.daemon.storage.record import UNWANTED, Record
from tunnel_pool.daemon.torrents.counted import Counted
from tunnel_pool.daemon.torrents.seen import Announced, Count, StatusSummary
from tunnel_pool.daemon.torrents.waiting import Waiting
from tunnel_pool.overlay.clients.lanes import Lane
from tunnel_pool.pooled.hidden_services import lookup_hash
from tunnel_pool.torrent.announces.account import Account, Totals
from tunnel_pool.torrent.entries import real_files
from tunnel_pool.torrent.metainfo import hidden_hashes_of

PEERS_FOR_S = 1.0
CAUTIOUS_BYTES_PER_S = 256_000


SEEN = frozenset(
    (
        "record",
        "summary",
        "activity",
        "error",
        "notice",
        "standing",
        "is_verifying",
        "peers",
        "down_rate",
        "up_rate",
        "handle",
    )
)


@dataclass(slots=True)
class Torrent:
    count: Count  # counts changes in any of SEEN
    record: Record
    lane: Lane  # the lane of the session that it is in
    handle: lt.torrent_handle  # invalid while it is `is_between_sessions`
    status: lt.torrent_status  # change it by `update`
    status_s: float = field(init=False)  # monotonic, when libtorrent gave it
    summary: StatusSummary = field(init=False)
    is_private: bool = field(init=False)
    hash_string: str = ""  # by which others know it: v1's hash if it has one, as most clients name one that has both
    top: str = ""  # the file or folder that all its files are in; empty where there are several
    changed: int = field(init=False)  # what `count` was after the last change in any of SEEN
    activity: Activity = Activity.STOPPED
    error: str = ""
    notice: str = ""  # what its owner should see to, although it goes on
    standing: str = ""  # why nothing comes, and what was tried
    peers: frozenset[Address] = frozenset()  # end-to-end, to be asked until they are there
    hidden: bool | None = None  # its role in its hidden swarms: True seeder, False downloader, None when it is in none
    swarms: frozenset[bytes] = frozenset()  # the hidden swarms that it is in, by the hash that is looked up
    waiting: Waiting = field(default_factory=Waiting)  # for libtorrent's answers
    trackers: dict[str, Announced] = field(default_factory=dict)  # when each was last heard, by URL
    is_between_sessions: bool = False
    held_until_s: float = 0.0  # monotonic; until then it contacts nobody: its client may say its hop count
    has_run: bool = False  # whether anybody may have heard of it since it was added
    is_moving: bool = False  # whether libtorrent moves its files now
    checked_again_s: float = float("-inf")  # monotonic, when it was checked because a file was too short
    is_verifying: bool = False  # whether its files are being checked on request; this goes on while it is stopped
    try_again_s: float = float("inf")  # monotonic, when it is started again that a file's error has stopped
    is_cautious: bool = False  # whether it comes slowly, as its size is not known yet and its disk is nearly full
    is_missing: bool = False  # whether its files are gone, for which it stands still
    saved: tuple[int, ...] = ()  # what `kept` was when it was saved last
    saved_s: float = 0.0  # monotonic
    standstill: Standstill = field(default_factory=lambda: Standstill(time.monotonic()))
    selections: int = 0  # changes of its files' priorities that libtorrent has not carried out yet
    resumes_put: int = 0  # how often resume data was written with a change of its record
    payload_bytes: int = 0  # both ways, as of `active_s`
    active_s: float = 0.0  # monotonic, when something was last sent or received
    changed_s: float = 0.0  # monotonic
    down_rate: int = 0  # payload, bytes a second
    up_rate: int = 0
    account: Account | None = None  # with its trackers
    counted: Counted = field(default_factory=Counted)
    _all_swarms: frozenset[bytes] | None = None  # its hidden swarms, once its metadata names them all
    # What `changed` and whether its lane could be reached were when it did what it is to do; None while it does not.
    settled: tuple[int, bool] | None = None
    _share: tuple[int, int] = (0, 0)  # what it may take of its group's limits
    _speeds: Speeds = field(default_factory=Speeds)
    _peer_infos: tuple[float, Sequence[lt.peer_info]] = (-PEERS_FOR_S, ())  # when (monotonic), and the peers of then

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)
        if name in SEEN:
            self.count.value += 1
            object.__setattr__(self, "changed", self.count.value)

    def __post_init__(self) -> None:
        self.status_s = time.monotonic()
        self._look(StatusSummary.of(self.status))

    def update(self, status: lt.torrent_status) -> bool:
        """Take libtorrent's new status of it; return whether anything in it that decides or is shown has changed."""
        self.status, self.status_s = status, time.monotonic()
        summary = StatusSummary.of(status)
        if summary == self.summary:
            return False
        self._look(summary)
        return True

    def _look(self, summary: StatusSummary) -> None:
        if not self.hash_string or (summary.has_metadata and not self.summary.has_metadata):
            hashes = self.status.info_hashes
            self.hash_string = str(hashes.v1) if hashes.has_v1() else self.record.infohash
        self.summary = summary
        self.counted.count(summary)
        self.is_private = self.info is not None and self.info.priv()

    @property
    def is_checking(self) -> bool:
        return self.summary.is_checking

    @property
    def is_finished(self) -> bool:
        """Return whether all that is wanted is there."""
        return self.summary.is_finished

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
        return 0.0 if self.is_paused else now_s - self.status_s

    def recheck(self) -> None:
        """Have libtorrent check which pieces are there; it goes on while the torrent is stopped."""
        self.error, self.is_missing, self.is_verifying = "", False, True
        self.handle.force_recheck()

    def set_cautious(self, is_cautious: bool) -> None:
        """Let it come slowly, or no longer: nobody knows yet whether there is room for all of it."""
        if is_cautious is not self.is_cautious:
            self.is_cautious = is_cautious
            self.apply_limits()

    def set_share(self, share: tuple[int, int]) -> None:
        """Let it take so much of its group's limits, down and up in bytes a second; 0 is no limit."""
        if share != self._share:
            self._share = share
            self.apply_limits()

    def apply_limits(self) -> None:
        """Have libtorrent keep what the record and its group say of speeds, peers and order."""
        record, handle = self.record, self.handle
        downs = [record.download_limit_kb * 1000 or 1] if record.download_limited else []
        ups = [record.upload_limit_kb * 1000 or 1] if record.upload_limited else []
        if self.is_cautious:
            downs.append(CAUTIOUS_BYTES_PER_S)
        handle.set_download_limit(min(filter(None, (*downs, self._share[0])), default=0))
        handle.set_upload_limit(min(filter(None, (*ups, self._share[1])), default=0))
        handle.set_max_connections(max(2, record.peer_limit))
        if record.sequential:
            handle.set_flags(lt.torrent_flags.sequential_download)
        else:
            handle.unset_flags(lt.torrent_flags.sequential_download)

    @property
    def peer_count(self) -> int:
        """Return how many BitTorrent peers are connected."""
        return self.summary.num_peers

    @property
    def _payload(self) -> tuple[int, int]:
        return self.summary.total_payload_download, self.summary.total_payload_upload

    @property
    def is_measured(self) -> bool:
        """Return whether nothing comes or goes, and nothing did since its speeds were measured."""
        return self._speeds.is_idle(self._payload)

    def measure(self, now_s: float, since_s: float) -> None:
        """Measure its speeds; all that is new to `summary` has moved within the last `since_s`."""
        if self.activity is not Activity.RUNNING:
            self._speeds.stop(self._payload)
        elif not self.is_measured:
            self._speeds.measure(self._payload, now_s, since_s)
        if (self.down_rate, self.up_rate) != (self._speeds.down, self._speeds.up):
            self.down_rate, self.up_rate = self._speeds.down, self._speeds.up

    def peer_infos(self) -> Sequence[lt.peer_info]:
        """Return its BitTorrent peers, as of the last second. Raises RuntimeError while it is between sessions."""
        if not self.summary.num_peers:
            return ()
        now_s = time.monotonic()
        if now_s >= self._peer_infos[0] + PEERS_FOR_S:
            # libtorrent's own thread answers, when it has time.
            self._peer_infos = now_s, self.handle.get_peer_info()
        return self._peer_infos[1]

    @property
    def hashes(self) -> set[bytes]:
        return hashes_of(self.status.info_hashes)

    @property
    def known_swarms(self) -> frozenset[bytes]:
        """Return the hidden swarms that it could be in; that of v2's hash is known once the metadata is."""
        if self._all_swarms is not None:
            return self._all_swarms
        known = frozenset(map(lookup_hash, hidden_hashes_of(self.status.info_hashes)))
        if self.summary.has_metadata:
            self._all_swarms = known
        return known

    @property
    def info(self) -> lt.torrent_info | None:
        """Return the metadata, None until it is known."""
        return self.status.torrent_file if self.summary.has_metadata else None

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
        assert self.layout is not None
        return str(self.status.renamed_files.file_path(self.layout, index))

    @property
    def progress(self) -> float:
        """Return how much of what is wanted is there, from 0 to 1; 1 when its last piece was checked."""
        wanted = self.summary.total_wanted
        return (wanted - self.left_bytes) / wanted if wanted else 0.0

    @property
    def left_bytes(self) -> int:
        """Return what is missing of what is wanted; libtorrent counts a piece as done before its hash is checked."""
        left = max(0, self.summary.total_wanted - self.summary.total_wanted_done)
        return left if self.is_finished else max(left, min(1, self.summary.total_wanted))

    def priority(self, index: int) -> int:
        """Return libtorrent's priority of a file."""
        return priority_of(self.record.file_priorities, index)

    def is_wanted(self, index: int) -> bool:
        return self.priority(index) != UNWANTED


def hashes_of(hashes: lt.info_hash_t) -> set[bytes]:
    """Return the hashes by which a torrent may be known, in 20 bytes each."""
    return {each[:20] for each in hidden_hashes_of(hashes)}
