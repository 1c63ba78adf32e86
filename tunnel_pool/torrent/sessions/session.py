"""One libtorrent session for one hop count, set up so that nothing leaves outside the tunnels."""

import asyncio
import contextlib
import errno
import logging
import shutil
import time
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any

import libtorrent as lt

from tunnel_pool.contract import Address
from tunnel_pool.sandbox.lockdown import Lockdown
from tunnel_pool.socks5.messages import Secret
from tunnel_pool.system.errors import UserError
from tunnel_pool.torrent.anonymous_torrents import left_out_trackers, strip, tracker_rules
from tunnel_pool.torrent.entries import parts_of, places_in
from tunnel_pool.torrent.leftovers import take_leftovers
from tunnel_pool.torrent.metainfo import hidden_hashes_of, infohash_of
from tunnel_pool.torrent.sessions.added import Added, TorrentStatus, flags_of
from tunnel_pool.torrent.sessions.libtorrent_session import LibtorrentSession
from tunnel_pool.torrent.sessions.resume_files import ResumeFiles
from tunnel_pool.torrent.sessions.session_settings import anonymous_settings
from tunnel_pool.torrent.takeover import bring, look_at, stranger

POLL_S = 0.2
RESUME_INTERVAL_S = 5.0
RECONNECT_S = 2.0
LOOKS = 200
LOOK_S = 0.005
STOP_TIMEOUT_S = 5.0
CHECKED_S = 2.0  # within which libtorrent has looked at resume data

IN_THE_WAY = "{} is there already, and is no file of this torrent: move it away, or choose another folder by --save"

logger = logging.getLogger(__name__)


class TorrentSession(LibtorrentSession[Added]):
    """Runs torrents over one SOCKS5 server. `start`, then `add`; `stop` saves where they stand."""

    def __init__(
        self,
        socks_port: int,
        resume_dir: Path,
        dht: bool = False,
        private: bool = False,
        *,
        secret: Secret | None = None,
        lockdown: Lockdown | None = None,
    ) -> None:
        """Raises UserError when `resume_dir` can't be made."""
        self._resume_files = ResumeFiles(resume_dir)
        self.on_changed: Callable[[], object] = lambda: None  # called when a torrent's status has changed
        super().__init__(anonymous_settings(socks_port, dht, private, secret), lockdown=lockdown)
        self._rules = tracker_rules(lockdown is not None, private)
        self._by_infohash: dict[str, Added] = {}  # by the infohash with which each was added
        self._changed = asyncio.Event()
        self._beginnings: set[asyncio.Task[None]] = set()
        self._writes: set[asyncio.Task[None]] = set()

    @property
    def statuses(self) -> list[TorrentStatus]:
        return [torrent.status for torrent in self._torrents.values()]

    def add(
        self, parameters: lt.add_torrent_params, save_dir: Path, peers: Iterable[Address] = (), seed: bool = False
    ) -> str:
        """Add a torrent, where it stood if it is known; returns its infohash. Raises UserError.

        With `seed`, the files are taken to be complete; pieces are checked as they are asked for.
        """
        infohash = infohash_of(parameters)
        if infohash in self._by_infohash:
            return infohash
        aside = save_dir / f".{infohash}.incoming"
        is_resumed = is_own = False
        if not seed:
            saved, is_own = self._resume_files.read(infohash, parameters, (save_dir, aside))
            if saved is not None:
                parameters, is_resumed = saved, True
        is_aside = not seed and (parameters.ti is None or (is_resumed and Path(parameters.save_path) == aside))
        takes_over = not (seed or is_own or is_aside) and _take_over(parameters, save_dir)
        parameters.save_path = str(aside if is_aside else save_dir)
        if left_out := strip(parameters, self._rules):
            logger.warning("%s", left_out_trackers(left_out, self._rules))
        parameters.flags = flags_of(parameters, seed, takes_over)
        try:
            handle = self._session.add_torrent(parameters)
        except RuntimeError as error:
            raise UserError(f"cannot add torrent {infohash}: {error}") from None
        status = TorrentStatus(infohash, parameters.name or infohash, 0, 0, 0, 0, 0, 0, False)
        torrent = Added(handle, frozenset(peers), status, seed)
        self._by_infohash[infohash] = self._torrents[handle] = torrent
        torrent.is_unjudged = takes_over
        torrent.home = save_dir if is_aside else None
        if takes_over:
            handle.resume()
        begin = self._take_over(torrent, parameters) if takes_over else self._begin(torrent, parameters, is_resumed)
        _spawn(begin, self._beginnings)
        return infohash

    async def _go_home(self, torrent: Added) -> None:
        """Move the files of a torrent that a magnet link named to its folder, unless others' files are there."""
        home, handle = torrent.home, torrent.handle
        assert home is not None
        status = handle.status()
        aside = Path(status.save_path)
        parameters = lt.add_torrent_params()
        parameters.ti, parameters.save_path = status.torrent_file, str(home)
        assert parameters.ti is not None
        layout = parameters.ti.layout()
        parameters.renamed_files = {
            index: status.renamed_files.file_path(layout, index) for index in range(layout.num_files())
        }
        torrent.moved = asyncio.get_running_loop().create_future()
        try:
            takes_over = await asyncio.to_thread(_take_over, parameters, home)
            if takes_over:
                torrent.is_unjudged = True
                handle.pause()
            flags = lt.move_flags_t
            handle.move_storage(str(home), flags.reset_save_path if takes_over else flags.fail_if_exist)
            await torrent.moved
        except UserError as error:
            handle.pause()
            torrent.error = str(error)
            self._tell_changed()
            return
        if takes_over:
            await asyncio.to_thread(bring, aside, home)
            torrent.checked.clear()
            handle.force_recheck()
            handle.set_flags(lt.torrent_flags.stop_when_ready)
            handle.resume()
            await self._take_over(torrent, parameters)
            if torrent.error is not None:
                return
        await asyncio.to_thread(shutil.rmtree, aside, ignore_errors=True)
        torrent.home = None
        for _ in range(LOOKS):
            if not torrent.saving:
                break
            await asyncio.sleep(LOOK_S)
        self._request_save(torrent)  # a kill that comes before would have these files checked
        self._on_statuses([handle.status()])

    async def _take_over(self, torrent: Added, parameters: lt.add_torrent_params) -> None:
        """Begin once what is there was checked, if it is the torrent's own."""
        await torrent.checked.wait()  # libtorrent has stopped it then
        has = torrent.handle.status(lt.torrent_handle.query_pieces).pieces
        assert parameters.ti is not None
        entries = places_in(parameters, parameters.save_path)
        path = await asyncio.to_thread(stranger, parts_of(parameters.ti.layout(), entries, has))
        if path:
            torrent.handle.pause()  # it is, unless libtorrent has missed that it is to stop when it is ready
            torrent.error = IN_THE_WAY.format(path)
            self._tell_changed()
        else:
            torrent.is_unjudged = False
            await self._begin(torrent, parameters, is_resumed=False)

    async def _begin(self, torrent: Added, parameters: lt.add_torrent_params, is_resumed: bool) -> None:
        """Resume a torrent, once libtorrent has checked its resume data: it then connects to known peers at once.

        What a killed run has written since it saved this data is taken before.
        """
        for _ in range(LOOKS):
            if torrent.handle.status(0).state != lt.torrent_status.checking_resume_data:
                break
            await asyncio.sleep(LOOK_S)
        if is_resumed:
            with contextlib.suppress(TimeoutError):  # libtorrent checks all files, and finds the pieces by itself
                async with asyncio.timeout(CHECKED_S):
                    await torrent.checked.wait()
                await take_leftovers(torrent.handle, parameters)
        if torrent.error is None:
            self.connect_peers()
            torrent.handle.resume()
        if torrent.may_go_home and torrent.handle.status().has_metadata:
            await self._go_home(torrent)

    def add_peer(self, infohash: str, peer: Address) -> None:
        """Connect to a peer, again and again until it is lost (`reconnect`)."""
        torrent = self._by_infohash.get(infohash)
        if torrent is not None and not self._stopped:
            torrent.peers |= {peer}
            torrent.handle.connect_peer(peer)

    def set_download_limit(self, bytes_per_s: int) -> None:
        """Limit all torrents together, in bytes a second; 0 is no limit."""
        self._session.apply_settings({"download_rate_limit": bytes_per_s})

    async def wait_changed(self, timeout_s: float) -> None:
        """Return when a status changed or the time is up.

        Raises UserError when a download can't go on, or no seed can.
        """
        self._changed.clear()
        # asyncio.wait_for (Python 3.11) forgets Ctrl-C that comes together with the change.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        self.check(others_go_on=self.goes_on)

    @property
    def goes_on(self) -> bool:
        """Return whether there is a torrent that can go on."""
        return any(torrent.error is None for torrent in self._torrents.values())

    def check(self, others_go_on: bool) -> None:
        """Raises UserError when a download can't go on, or a seed can't and no other torrent does."""
        if self._poller is not None and self._poller.done():
            self._poller.result()
        for torrent in self._torrents.values():
            if torrent.error is not None and not (torrent.seed and others_go_on):
                raise UserError(torrent.error)

    async def stop(self) -> None:
        """Save every torrent's state, then end the session."""
        self._stopped = True
        for beginning in self._beginnings:
            beginning.cancel()
        if self._poller is not None:
            self._poller.cancel()
        self._session.pause()
        for torrent in self._torrents.values():
            self._request_save(torrent)
        deadline_s = time.monotonic() + STOP_TIMEOUT_S
        while any(torrent.saving for torrent in self._torrents.values()) and time.monotonic() < deadline_s:
            self._handle_alerts()
            await asyncio.sleep(0.02)
        if self._writes:
            await asyncio.wait(self._writes)
        await self._end()

    # Resume data

    def _request_save(self, torrent: Added, flags: int = 0) -> None:
        """Have what libtorrent has found right written, and told of: a kill would leave zeros in its place."""
        if not (torrent.saving or torrent.is_unjudged) and torrent.handle.is_valid():
            torrent.saving = True
            always = lt.torrent_handle.save_info_dict | lt.torrent_handle.flush_disk_cache
            torrent.handle.save_resume_data(always | flags)

    def _write(self, torrent: Added, data: bytes) -> None:
        _spawn(self._write_off_loop(torrent, data), self._writes)

    async def _write_off_loop(self, torrent: Added, data: bytes) -> None:
        """Write one state of a torrent at a time, so that an older one can't come last."""
        try:
            await asyncio.to_thread(self._resume_files.write, torrent.status.infohash, data)
        except OSError as error:
            logger.warning("Resume data of a torrent was not written: %s", error.strerror)
        torrent.saving = False

    # libtorrent's alerts

    async def _poll_forever(self) -> None:
        next_save_s = time.monotonic() + RESUME_INTERVAL_S
        next_connect_s = 0.0
        while True:
            self._session.post_torrent_updates()
            self._handle_alerts()
            now_s = time.monotonic()
            if now_s >= next_save_s:
                next_save_s = now_s + RESUME_INTERVAL_S
                for torrent in self._torrents.values():
                    self._request_save(torrent, lt.torrent_handle.only_if_modified)
            if now_s >= next_connect_s:
                next_connect_s = now_s + RECONNECT_S
                self.connect_peers()
            await asyncio.sleep(POLL_S)

    def _handle_alerts(self) -> None:
        for alert in self._session.pop_alerts():
            self._note_announce(alert)
            match type(alert).__name__:
                case "state_update_alert":
                    self._on_statuses(alert.status)
                case "save_resume_data_alert":
                    self._write(self._torrents[alert.handle], lt.write_resume_data_buf(alert.params))
                case "save_resume_data_failed_alert":
                    self._torrents[alert.handle].saving = False
                case "torrent_checked_alert":
                    self._torrents[alert.handle].checked.set()
                case "torrent_finished_alert":
                    self._on_finished(self._torrents[alert.handle])
                case "cache_flushed_alert" if self._torrents[alert.handle].is_writing:
                    self._torrents[alert.handle].is_writing = False
                    self._on_statuses([alert.handle.status()])
                case "listen_succeeded_alert":
                    self._listening(alert)
                case "file_error_alert":
                    self._on_file_error(self._torrents[alert.handle], alert)
                case _:
                    self._on_place(alert)

    def _on_finished(self, torrent: Added) -> None:
        """Have written what libtorrent has in memory alone: it tells of the end before."""
        torrent.is_writing = True
        torrent.handle.flush_cache()
        self._request_save(torrent)

    def _on_place(self, alert: Any) -> None:
        """Go on with a torrent whose files have become known, or have been moved."""
        match type(alert).__name__:
            case "metadata_received_alert" if self._torrents[alert.handle].may_go_home:
                _spawn(self._go_home(self._torrents[alert.handle]), self._beginnings)
            case "storage_moved_alert" | "storage_moved_failed_alert":
                self._on_moved(self._torrents[alert.handle], alert)

    @staticmethod
    def _on_moved(torrent: Added, alert: Any) -> None:
        if torrent.moved is None or torrent.moved.done():
            return
        if isinstance(alert, lt.storage_moved_alert):
            torrent.moved.set_result(None)
        else:
            why = f"cannot move it to {torrent.home}: {alert.error.message()}"
            torrent.moved.set_exception(UserError(f"{why}: make room there, or choose another folder by --save"))

    def _on_file_error(self, torrent: Added, alert: Any) -> None:
        """Handle a torrent that libtorrent has stopped for an error of a file."""
        if torrent.error is not None:
            return  # said once
        hint = "make room and start the same command again" if alert.error.value() == errno.ENOSPC else "mend it"
        verb = "read" if torrent.seed else "write"
        torrent.error = f"cannot {verb} {alert.filename()}: {alert.error.message()}; {hint}"
        if torrent.seed:
            logger.error("%s, and start again: it is not seeded meanwhile", torrent.error)
        self._tell_changed()

    def _on_statuses(self, statuses: Iterable[lt.torrent_status]) -> None:
        for status in statuses:
            torrent = self._torrents[status.handle]
            torrent.status = TorrentStatus(
                infohash=torrent.status.infohash,
                name=status.name or torrent.status.name,
                done_bytes=status.total_wanted_done,
                wanted_bytes=status.total_wanted if status.has_metadata else 0,
                downloaded_bytes=status.total_payload_download,
                uploaded_bytes=status.total_payload_upload,
                download_bytes_per_s=status.download_payload_rate,
                peers=status.num_peers,
                knows_peers=status.list_peers > 0,
                finished=status.has_metadata and status.is_finished and torrent.home is None and not torrent.is_writing,
                hidden_hashes=tuple(hidden_hashes_of(status.info_hashes)),
            )
            self._tell_changed()

    def _tell_changed(self) -> None:
        self._changed.set()
        self.on_changed()


def _take_over(parameters: lt.add_torrent_params, folder: Path) -> bool:
    """Return whether files are there that may be the torrent's. Raises UserError where one is not for certain."""
    is_any_there, in_the_way = look_at(entry for _, entry in places_in(parameters, str(folder)))
    if in_the_way:
        raise UserError(IN_THE_WAY.format(in_the_way))
    return is_any_there


def _spawn(work: Coroutine[Any, Any, None], tasks: set[asyncio.Task[None]]) -> None:
    task = asyncio.get_running_loop().create_task(work)
    tasks.add(task)
    task.add_done_callback(tasks.discard)
