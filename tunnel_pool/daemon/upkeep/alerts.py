"""Acts on what libtorrent tells of the daemon's torrents."""

import asyncio
import errno
import logging
import time
from typing import Any

import libtorrent as lt

from tunnel_pool.daemon.changes.moves import Moves
from tunnel_pool.daemon.rules.life import Event
from tunnel_pool.daemon.rules.queue import Activity
from tunnel_pool.daemon.rules.selection import priorities_of_chosen
from tunnel_pool.daemon.rules.unregistered import asked_again_in_s
from tunnel_pool.daemon.storage.store import StoreError
from tunnel_pool.daemon.torrents.library import Library
from tunnel_pool.daemon.torrents.paths import given_up, written_unwanted
from tunnel_pool.daemon.torrents.seen import Announced
from tunnel_pool.daemon.torrents.torrent import Torrent
from tunnel_pool.torrent.announces.words import refusal_of, warning_of

FILE_TOO_SHORT = 23  # in libtorrent's category (error_code.hpp)
CHECK_AGAIN_S = 60.0
TRY_AGAIN_S = 60.0
SAME_ANNOUNCE_S = 10.0  # a torrent that has two hashes is announced by both within so long
WARNED_BEFORE_S = 2.0  # a tracker's warning is told of so much before its peers, at most
STALE_S = 5.0  # how long reads that were asked for before may still fail

logger = logging.getLogger(__name__)


class AlertReader:
    """Acts on libtorrent's alerts; each kind has a method here of its type's name, and others are passed over."""

    def __init__(self, library: Library, moves: Moves) -> None:
        self._library = library
        self._moves = moves
        self._asked_again: set[tuple[str, str]] = set()  # infohashes and URLs of trackers that will be

    def read(self, torrent: Torrent, alert: object) -> None:
        method = getattr(self, f"_{type(alert).__name__}", None)
        if method is not None:
            method(torrent, alert)

    def _torrent_status(self, torrent: Torrent, status: lt.torrent_status) -> None:
        was_finished = torrent.is_finished
        if not torrent.update(status):
            return
        if was_finished and not torrent.is_finished and not torrent.is_checking:
            self._library.sessions.ensure_open(torrent.lane).reconsider_peers(torrent)  # more of it is wanted

    def _save_resume_data_alert(self, torrent: Torrent, alert: lt.save_resume_data_alert) -> None:
        """Answer one request for resume data, in the order they were made."""
        if torrent.is_checking or torrent.is_verifying:
            # libtorrent would later take the pieces checked so far for all that are there.
            alert.params.have_pieces = alert.params.verified_pieces = []
        _answer(torrent.waiting.next_resuming(), lt.write_resume_data_buf(alert.params))

    def _save_resume_data_failed_alert(self, torrent: Torrent, alert: lt.save_resume_data_failed_alert) -> None:
        _refuse(torrent.waiting.next_resuming(), StoreError(alert.error.message()))

    def _read_piece_alert(self, torrent: Torrent, alert: lt.read_piece_alert) -> None:
        """Hand the bytes of a piece to those who wait for them."""
        if alert.error.value() == errno.ECANCELED:
            return  # its last reader left; who asked for it since then hears of it once more
        for future in torrent.waiting.take_for_piece(alert.piece):
            if alert.error.value():
                future.set_exception(OSError(alert.error.value(), alert.error.message()))
            else:
                future.set_result(alert.buffer)

    def _metadata_received_alert(self, torrent: Torrent, alert: lt.metadata_received_alert) -> None:
        torrent.update(torrent.handle.status())
        if any(torrent.hashes & other.hashes for other in self._library.torrents.values() if other is not torrent):
            # A hybrid that was added by the one hash and by the other.
            torrent.happened(Event.FAILED, "it is here twice: remove this one or the other")
        priorities = priorities_of_chosen(torrent.record.chosen_files, torrent.file_indexes())
        if priorities:
            torrent.select(priorities)
        torrent.waiting.expect_arrival()
        self._library.background.spawn(self._take_in(torrent, priorities))

    def _torrent_finished_alert(self, torrent: Torrent, alert: lt.torrent_finished_alert) -> None:
        """Note when a torrent was finished; libtorrent also tells of those that were before this start."""
        torrent.update(torrent.handle.status())
        if torrent.waiting.is_writing:
            torrent.handle.flush_cache()  # libtorrent tells of the end before it has written all of it
        else:
            self._finished(torrent)

    def _cache_flushed_alert(self, torrent: Torrent, alert: lt.cache_flushed_alert) -> None:
        if torrent.waiting.is_writing:
            torrent.was_written()
            self._library.scheduler.tick_soon()
            self._finished(torrent)

    def _finished(self, torrent: Torrent) -> None:
        if torrent.is_finished and not torrent.record.done_s:
            self._library.background.spawn(self._finish(torrent))

    def _torrent_checked_alert(self, torrent: Torrent, alert: lt.torrent_checked_alert) -> None:
        torrent.was_checked()
        self._library.scheduler.tick_soon()
        self._exported(torrent)
        if torrent.record.taking_over or torrent.record.untouched:
            self._library.background.spawn(self._library.paths.judge(torrent))

    def _file_prio_alert(self, torrent: Torrent, alert: lt.file_prio_alert) -> None:
        torrent.was_selected()
        self._torrent_status(torrent, torrent.handle.status())  # libtorrent does not say by itself that less is wanted
        self._exported(torrent)
        self._library.background.spawn(self._keep_written(torrent))

    def _exported(self, torrent: Torrent) -> None:
        """Note that the bytes of files wanted of late are in the files, or are fetched again."""
        if torrent.record.exporting and not torrent.selections:
            self._library.background.spawn(self._keep_exported(torrent))

    async def _keep_exported(self, torrent: Torrent) -> None:
        async with self._library.records.changing:
            if not torrent.selections and self._library.records.has(torrent) and not torrent.is_between_sessions:
                await self._library.records.put_with_resume(torrent, exporting=[])

    async def _keep_written(self, torrent: Torrent) -> None:
        """Keep which unwanted files have come, or may come yet, now that libtorrent knows which are unwanted."""
        records = self._library.records
        async with records.changing:
            if torrent.selections or not records.is_here(torrent) or torrent.record.taking_over:
                return
            written = await asyncio.to_thread(written_unwanted, torrent)
            if written != set(torrent.record.written):
                await records.put(torrent, written=sorted(written))

    async def _finish(self, torrent: Torrent) -> None:
        async with self._library.records.changing:  # its name may be kept just now
            if torrent.record.done_s:
                return
            is_news = torrent.totals.downloaded > 0
            await self._library.records.put(torrent, done_s=time.time(), is_to_be_told=is_news)
        self._library.tell_done(torrent)
        self._library.paths.look_again(torrent)
        await self._library.records.save_resume([torrent])

    async def _take_in(self, torrent: Torrent, priorities: list[int]) -> None:
        """Keep the name, and give the files their places, of a torrent whose metadata has come."""
        self._library.paths.note(torrent)
        try:
            async with self._library.records.changing:
                written = sorted(given_up(torrent, priorities))
                fields = {"file_priorities": priorities, "chosen_files": [], "written": written} if priorities else {}
                await self._library.records.put(torrent, name=torrent.status.name, **fields)
        finally:
            await self._moves.settle(torrent)
        self._library.scheduler.tick()  # only now it is known whether there is room for it
        await self._library.records.save_resume([torrent])

    def _tracker_reply_alert(self, torrent: Torrent, alert: lt.tracker_reply_alert) -> None:
        now_s, before = time.time(), torrent.trackers.get(alert.tracker_url())
        said = ""
        if before is not None and before.is_warning and now_s < before.at_s + WARNED_BEFORE_S:
            said = before.said
        torrent.announced(alert.tracker_url(), Announced(now_s, alert.num_peers, said, is_warning=bool(said)))

    def _tracker_warning_alert(self, torrent: Torrent, alert: lt.tracker_warning_alert) -> None:
        """Keep what a tracker warns of; libtorrent tells of its peers after that."""
        torrent.announced(alert.tracker_url(), Announced(time.time(), 0, warning_of(alert), is_warning=True))

    def _tracker_error_alert(self, torrent: Torrent, alert: lt.tracker_error_alert) -> None:
        said, is_refusal = refusal_of(alert)
        before = torrent.trackers.get(alert.tracker_url())
        if before is not None and not before.said and time.time() < before.at_s + SAME_ANNOUNCE_S:
            return  # of a hybrid's two hashes, the tracker takes one
        torrent.announced(alert.tracker_url(), Announced(time.time(), 0, said, is_refusal))
        if is_refusal:
            self._ask_again_while_new(torrent, alert.tracker_url(), said)

    def _ask_again_while_new(self, torrent: Torrent, url: str, said: str) -> None:
        """Ask a tracker again that does not know the torrent yet."""
        wait_s = asked_again_in_s(said, time.time() - torrent.record.added_s)
        if wait_s is None or (torrent.record.infohash, url) in self._asked_again:
            return
        self._asked_again.add((torrent.record.infohash, url))
        asyncio.get_running_loop().call_later(wait_s, self._ask_now, torrent, url)

    def _ask_now(self, torrent: Torrent, url: str) -> None:
        self._asked_again.discard((torrent.record.infohash, url))
        if self._library.records.is_here(torrent) and torrent.activity is Activity.RUNNING:
            self._library.sessions.ensure_open(torrent.lane).ask_tracker(torrent.handle, url)

    def _storage_moved_alert(self, torrent: Torrent, alert: lt.storage_moved_alert) -> None:
        _answer(torrent.waiting.moved, alert.storage_path())

    def _storage_moved_failed_alert(self, torrent: Torrent, alert: lt.storage_moved_failed_alert) -> None:
        _refuse(torrent.waiting.moved, OSError(alert.error.value(), alert.error.message()))

    def _file_renamed_alert(self, torrent: Torrent, alert: lt.file_renamed_alert) -> None:
        _answer(torrent.waiting.renamed, None)

    def _file_rename_failed_alert(self, torrent: Torrent, alert: lt.file_rename_failed_alert) -> None:
        _refuse(torrent.waiting.renamed, OSError(alert.error.value(), alert.error.message()))

    def _file_error_alert(self, torrent: Torrent, alert: lt.file_error_alert) -> None:
        """Handle a torrent that libtorrent has stopped for an error of a file."""
        torrent.handle.clear_error()
        if alert.error.value() in (errno.ENOSPC, errno.EDQUOT):
            self._library.scheduler.disk_is_full(torrent, alert.error.value() == errno.EDQUOT)
        elif not _is_too_short(alert.error) or not self._check_again(torrent):
            why = f"{alert.error.message()}: {alert.filename()}; it is tried again every minute"
            self._failed(torrent, Event.FAILED_FOR_NOW, why)
            self._library.places.suspect(torrent)

    def _check_again(self, torrent: Torrent) -> bool:
        """Find out what is left of files that have lost some of what was in them, and have the rest downloaded again.

        Return False when that was done a moment ago, and did not help.
        """
        since_s = time.monotonic() - torrent.checked_again_s
        if torrent.is_verifying or since_s < STALE_S:
            return True  # others had read there before
        is_elsewhere = torrent.record.moving_to or torrent.is_moving or torrent.is_between_sessions
        if since_s < CHECK_AGAIN_S or is_elsewhere:
            return False
        logger.warning("A file of a torrent is shorter than it was: what is there is checked")
        torrent.check_again()
        self._library.scheduler.tick_soon()
        return True

    def _torrent_error_alert(self, torrent: Torrent, alert: lt.torrent_error_alert) -> None:
        """Handle a torrent that libtorrent has stopped; of a file's error a file_error_alert has told already."""
        if not torrent.error and not _is_too_short(alert.error):
            self._failed(torrent, Event.HALTED, alert.error.message())

    def _failed(self, torrent: Torrent, event: Event, why: str) -> None:
        if not torrent.error:
            logger.warning("A torrent stands still, as libtorrent had an error; clients show which")
        torrent.happened(event, why, time.monotonic() + TRY_AGAIN_S)
        self._library.scheduler.tick_soon()


def _is_too_short(error: lt.error_code) -> bool:
    """Return whether a file ends before what libtorrent knows to be in it."""
    return error.value() == FILE_TOO_SHORT and error.category().name() == lt.libtorrent_category().name()


def _answer(future: "asyncio.Future[Any] | None", result: Any) -> None:
    """Resolve the future of the caller who waits for this alert, if there is one."""
    if future is not None and not future.done():
        future.set_result(result)


def _refuse(future: "asyncio.Future[Any] | None", error: Exception) -> None:
    if future is not None and not future.done():
        future.set_exception(error)
