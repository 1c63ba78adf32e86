"""A torrent at work: its record, its libtorrent handle, and what was last heard of it."""

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import libtorrent as lt

from tunnel_pool.contract import Address
from tunnel_pool.daemon.rules.queue import Activity
from tunnel_pool.daemon.rules.selection import priority_of
from tunnel_pool.daemon.rules.speeds import Speeds
from tunnel_pool.daemon.rules.standstill import Standstill
from tunnel_pool.daemon.storage.disk import real_files
from tunnel_pool.daemon.storage.record import UNWANTED, Record
from tunnel_pool.daemon.storage.store import StoreError
from tunnel_pool.overlay.clients.lanes import Lane
from tunnel_pool.pooled.hidden_services import lookup_hash
from tunnel_pool.torrent.announces.account import Account, Totals
from tunnel_pool.torrent.metainfo import hidden_hashes_of

S = lt.torrent_status
CHECKING = (S.checking_files, S.checking_resume_data)
NOTHING = Totals(0, 0)
PEERS_FOR_S = 1.0
CAUTIOUS_BYTES_PER_S = 256_000
PAUSED = int(lt.torrent_flags.paused)
UPLOAD_MODE = int(lt.torrent_flags.upload_mode)


class StatusSummary(NamedTuple):
    """The fields of libtorrent's status that change what we do or show; the others change with time alone."""

    state: Any
    flags: int
    has_metadata: bool
    finished: bool
    error: int
    num_peers: int
    num_seeds: int
    total_wanted: int
    total_wanted_done: int
    total_done: int
    total_failed_bytes: int
    all_time_download: int
    all_time_upload: int
    total_payload_download: int
    total_payload_upload: int
    progress_ppm: int
    distributed_copies: float

    @property
    def kept(self) -> tuple[int, ...]:
        """Return what is worth a save when it changes; libtorrent's own flag asks for one each second that goes by."""
        return (
            self.has_metadata,
            self.finished,
            self.total_wanted,
            self.total_done,
            self.total_failed_bytes,
            self.all_time_download,
            self.all_time_upload,
        )

    @staticmethod
    def of(status: lt.torrent_status) -> "StatusSummary":
        return StatusSummary(
            status.state,
            int(status.flags),
            status.has_metadata,
            status.is_finished,
            status.errc.value(),
            status.num_peers,
            status.num_seeds,
            status.total_wanted,
            status.total_wanted_done,
            status.total_done,
            status.total_failed_bytes,
            status.all_time_download,
            status.all_time_upload,
            status.total_payload_download,
            status.total_payload_upload,
            status.progress_ppm,
            status.distributed_copies,
        )


class Announced(NamedTuple):
    """Says when a tracker answered, and how many peers it named; or that it did not."""

    at_s: float  # since the epoch
    peers: int


class Count:
    """A counter of the changes to torrents that a client may see."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0


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
    is_checking: bool = field(init=False)
    is_finished: bool = field(init=False)  # whether all that is wanted is there
    is_paused: bool = field(init=False)  # whether libtorrent has paused it
    is_uploading_only: bool = field(init=False)  # libtorrent could not write, and does not try again
    is_private: bool = field(init=False)
    changed: int = field(init=False)  # what `count` was after the last change in any of SEEN
    activity: Activity = Activity.STOPPED
    error: str = ""
    notice: str = ""  # what its owner should see to, although it goes on
    standing: str = ""  # why nothing comes, and what was tried
    peers: frozenset[Address] = frozenset()  # end-to-end, to be asked until they are there
    hidden: bool | None = None  # its role in its hidden swarms: True seeder, False downloader, None when it is in none
    swarms: frozenset[bytes] = frozenset()  # the hidden swarms that it is in, by the hash that is looked up
    resuming: deque["asyncio.Future[bytes]"] = field(default_factory=deque)  # who waits for resume data, in order
    reading: dict[int, set["asyncio.Future[bytes]"]] = field(default_factory=dict)  # who waits for a piece's bytes
    trackers: dict[str, Announced] = field(default_factory=dict)  # when each was last heard, by URL
    moved: "asyncio.Future[str] | None" = None
    renamed: "asyncio.Future[None] | None" = None
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
    # What it has moved in all: libtorrent's own all_time_upload loses up to a second when it is paused.
    totals: Totals = NOTHING
    moved_before: Totals = NOTHING  # by the last time that libtorrent began to count from 0
    _counted: StatusSummary | None = None  # what it has counted since
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
        self.summary = summary
        self._count(summary)
        self.is_checking = summary.state in CHECKING
        self.is_finished = bool(summary.has_metadata and summary.finished and not self.is_checking)
        self.is_paused = bool(summary.flags & PAUSED)
        self.is_uploading_only = bool(summary.flags & UPLOAD_MODE)
        self.is_private = self.info is not None and self.info.priv()

    def seeding_s(self, now_s: float) -> float:
        """Return for how long it has run with all that is wanted there."""
        if not self.is_finished:
            return 0.0
        since = 0.0 if self.is_paused else now_s - self.status_s  # libtorrent says nothing of an idle torrent
        return float(self.status.finished_duration.total_seconds() + since)

    def begin_count(self, before: Totals) -> None:
        """Note that libtorrent counts from 0, and what was moved before."""
        self.totals = self.moved_before = before
        self._counted = None

    def totals_by(self, summary: StatusSummary) -> Totals:
        """Return what it has moved in all by a status, which is as new as the last one or newer."""
        before = self.totals if self._has_begun_anew(summary) else self.moved_before
        return before + _moved(summary)

    def _has_begun_anew(self, summary: StatusSummary) -> bool:
        """Return whether it was paused and started, and libtorrent counts from 0 again."""
        last = self._counted
        return last is not None and (
            summary.total_payload_upload < last.total_payload_upload
            or summary.total_payload_download < last.total_payload_download
        )

    def _count(self, summary: StatusSummary) -> None:
        if self._has_begun_anew(summary):
            self.begin_count(self.totals)
        self._counted = summary
        self.totals = self.moved_before + _moved(summary)

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

    def next_resuming(self) -> "asyncio.Future[bytes] | None":
        """Return the future that the next answer about resume data is for."""
        return self.resuming.popleft() if self.resuming else None

    def give_up(self, why: str) -> None:
        """Fail everything that was asked of libtorrent, as no answer comes any more."""
        readers = [future for waiting in self.reading.values() for future in waiting]
        for future in (*self.resuming, *readers, self.moved, self.renamed):
            if future is not None and not future.done():
                future.set_exception(StoreError(why))
                future.exception()  # keeps asyncio from complaining when nobody waits
        self.resuming.clear()
        self.reading.clear()

    def expect_piece(self, number: int) -> "asyncio.Future[bytes]":
        """Return a future of the piece's bytes, or its error (OSError, StoreError); `expect_no_more` ends it."""
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.reading.setdefault(number, set()).add(future)
        return future

    def expect_no_more(self, number: int, future: "asyncio.Future[bytes]") -> None:
        """Forget a future that `expect_piece` gave."""
        future.cancel()
        waiting = self.reading.get(number, set())
        waiting.discard(future)
        if not waiting:
            self.reading.pop(number, None)

    def is_expected(self, number: int) -> bool:
        return any(not future.done() for future in self.reading.get(number, ()))

    def take_expecting(self, number: int) -> list["asyncio.Future[bytes]"]:
        """Return the futures that still wait for the piece."""
        return [future for future in self.reading.pop(number, ()) if not future.done()]

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


def _moved(summary: StatusSummary) -> Totals:
    return Totals(summary.total_payload_upload, max(0, summary.total_payload_download - summary.total_failed_bytes))


def hashes_of(hashes: lt.info_hash_t) -> set[bytes]:
    """Return the hashes by which a torrent may be known, in 20 bytes each."""
    return {each[:20] for each in hidden_hashes_of(hashes)}
