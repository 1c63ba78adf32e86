"""One libtorrent session of the daemon: the torrents of one hop count."""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import libtorrent as lt

from tunnel_pool.daemon.torrents.torrent import Torrent
from tunnel_pool.overlay.ground.pacing import Newest
from tunnel_pool.sandbox.lockdown import Lockdown
from tunnel_pool.system.errors import kind_of
from tunnel_pool.torrent.announces.account import Account
from tunnel_pool.torrent.sessions.libtorrent_session import LibtorrentSession

POLL_S, IDLE_POLL_S = 0.2, 1.0  # the longer nothing changes, the less often libtorrent is asked for statuses
RESUMED_POLL_S = 0.01
BELL_BYTES = 4096
TURN_S = 0.004  # how long other tasks wait for their turn
RESUMED_WITHIN_S = 5.0  # what takes longer hangs on a disk, and others need not wait for it
ALERT_QUEUE = 1 << 20  # alerts: each torrent may have some at once
MAX_ANNOUNCED = 1 << 14  # torrents whose accounts are remembered

logger = logging.getLogger(__name__)

OnAlert = Callable[[Torrent, object], None]
"""Called with each alert of libtorrent that is about a torrent, and with each new torrent_status."""


class DaemonSession(LibtorrentSession[Torrent]):
    def __init__(
        self, settings: dict[str, object], on_alert: OnAlert, nice: int, lockdown: Lockdown | None = None
    ) -> None:
        """Raises RuntimeError, as libtorrent does, when there are no descriptors left."""
        try:
            self._bell = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise RuntimeError(str(error.strerror)) from None
        super().__init__({**settings, "alert_queue_size": ALERT_QUEUE}, nice, lockdown)
        self._removing: dict[lt.torrent_handle, asyncio.Future[None]] = {}  # done once libtorrent has let go
        self._announced = Newest[bytes, Account](MAX_ANNOUNCED)  # by infohash
        self._on_alert = on_alert
        self._alerts_are_there = asyncio.Event()
        self._stopping: asyncio.Task[None] | None = None

    def start(self) -> None:
        asyncio.get_running_loop().add_reader(self._bell[0], self._alerts_came)
        self._session.set_alert_fd(self._bell[1])
        super().start()

    def add(self, parameters: lt.add_torrent_params) -> lt.torrent_handle:
        """Add a torrent to libtorrent; `register` it next, or its alerts are dropped. Raises RuntimeError."""
        handle: lt.torrent_handle = self._session.add_torrent(parameters)
        return handle

    def block(self, addresses: lt.ip_filter) -> None:
        """Have nothing to do with these addresses."""
        self._session.set_ip_filter(addresses)

    def account_of(self, infohash: bytes) -> Account | None:
        """Return the account of a private torrent: others are told apart from those of before by nobody.

        It is remembered, as libtorrent announces for the last time when a torrent is gone.
        """
        if infohash not in self._announced:
            torrent = next((known for known in self._torrents.values() if infohash in known.hashes), None)
            if torrent is None or not torrent.is_private or torrent.account is None:
                return None
            self._announced[infohash] = torrent.account
        return self._announced[infohash]

    def register(self, torrent: Torrent) -> None:
        """Report this torrent's alerts from now on."""
        self._torrents[torrent.handle] = torrent
        for infohash in torrent.hashes:
            self._announced.pop(infohash, None)  # of one that was here before

    def remove(self, torrent: Torrent) -> "asyncio.Future[None]":
        """Take a torrent out of the session; when the future is done, libtorrent has closed its files."""
        removed = self._removing[torrent.handle] = asyncio.get_running_loop().create_future()
        del self._torrents[torrent.handle]
        torrent.waiting.give_up("the torrent is gone")
        self._session.remove_torrent(torrent.handle)
        return removed

    def forget(self, torrent: Torrent) -> None:
        """Stop waiting for libtorrent to close the files of a torrent that was removed."""
        self._removing.pop(torrent.handle, None)

    def apply(self, settings: dict[str, object]) -> None:
        """Change libtorrent's settings."""
        self._session.apply_settings(settings)

    def set_limits(self, download_bytes_per_s: int, upload_bytes_per_s: int) -> None:
        """Limit the rates of all torrents of this session together; 0 is no limit."""
        self._session.apply_settings(
            {"download_rate_limit": download_bytes_per_s, "upload_rate_limit": upload_bytes_per_s}
        )

    def listen_port(self) -> int:
        return int(self._session.listen_port())

    def reconsider_peers(self, torrent: Torrent) -> None:
        """Have libtorrent count anew which of a torrent's known peers it may connect to.

        A finished torrent lets its seeders go and has no candidates left. libtorrent counts them again only while it
        connects to one, or when `max_failcount` changes: without that, the torrent stands still when more of it is
        wanted.
        """
        most = self._session.get_settings()["max_failcount"]
        for value in (most + 1, most):
            self._session.apply_settings({"max_failcount": value})
        connections = torrent.handle.max_connections()
        for value in (connections + 1, connections):  # a change makes libtorrent look whether it wants peers
            torrent.handle.set_max_connections(value)

    async def resumed(self) -> None:
        """Return when libtorrent has found what it had of each torrent; until then it says that nothing is there."""
        resuming = lt.torrent_status.states.checking_resume_data
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(RESUMED_WITHIN_S):
                while any(t.summary.state == resuming and not t.error for t in self._torrents.values()):  # noqa: ASYNC110
                    await asyncio.sleep(RESUMED_POLL_S)

    async def stop(self) -> None:
        """End the libtorrent session; the caller has saved what is to be kept.

        It may end with its last torrent and with the daemon at one time.
        """
        if self._stopping is None:
            self._stopping = asyncio.get_running_loop().create_task(self._stop())
        await asyncio.shield(self._stopping)

    async def _stop(self) -> None:
        self._stopped = True
        if self._poller is not None:
            self._poller.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._poller
        self._torrents.clear()
        self._removing.clear()
        asyncio.get_running_loop().remove_reader(self._bell[0])
        await self._end()
        for end in self._bell:
            os.close(end)

    async def _poll_forever(self) -> None:
        next_update_s, poll_s, have_come = 0.0, POLL_S, True
        while True:
            if (now_s := time.monotonic()) >= next_update_s:
                poll_s = POLL_S if have_come else min(2 * poll_s, IDLE_POLL_S)
                next_update_s, have_come = now_s + poll_s, False
                self._session.post_torrent_updates()
            if await self._read_alerts():
                have_come, next_update_s = True, min(next_update_s, now_s + POLL_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, next_update_s - time.monotonic())):
                    await self._alerts_are_there.wait()
            self._alerts_are_there.clear()

    def _alerts_came(self) -> None:
        """Note that libtorrent has alerts, which it says by bytes in a pipe."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._bell[0], BELL_BYTES)
        self._alerts_are_there.set()

    async def _read_alerts(self) -> bool:
        """Handle all alerts that have come, and return whether any did.

        Other tasks get a turn in between, as a thousand torrents send many.
        """
        turn_ends_s, have_come = time.monotonic() + TURN_S, False
        for alert in self._pop_alerts():
            have_come = True
            try:
                self._handle(alert)
            except Exception as error:
                logger.error("An alert of libtorrent could not be handled: %s", kind_of(error))
                logger.debug("The traceback of the failure", exc_info=True)
            if time.monotonic() >= turn_ends_s:
                await asyncio.sleep(0)
                turn_ends_s = time.monotonic() + TURN_S
        return have_come

    def _pop_alerts(self) -> Iterator[object]:
        """Yield alerts, which are valid until the next call, and the statuses of a state_update_alert."""
        for alert in self._session.pop_alerts():
            if isinstance(alert, lt.state_update_alert):
                yield from alert.status
            else:
                yield alert

    def _handle(self, alert: Any) -> None:
        kind = type(alert).__name__
        self._note_announce(alert)
        if isinstance(alert, lt.torrent_status):
            if (torrent := self._torrents.get(alert.handle)) is not None:
                self._on_alert(torrent, alert)
        elif kind == "torrent_removed_alert":
            if (removed := self._removing.pop(alert.handle, None)) is not None and not removed.done():
                removed.set_result(None)
        elif not isinstance(alert, lt.torrent_alert):
            self._handle_of_session(kind, alert)
        elif (torrent := self._torrents.get(alert.handle)) is not None:
            self._on_alert(torrent, alert)

    def _handle_of_session(self, kind: str, alert: Any) -> None:
        if kind == "listen_succeeded_alert":
            self._listening(alert)
        elif kind == "alerts_dropped_alert":
            logger.warning("libtorrent sent more alerts than its queue holds, and some were lost")
            for torrent in self._torrents.values():
                torrent.waiting.give_up("libtorrent's answer was lost")
                if torrent.waiting.is_writing:
                    torrent.handle.flush_cache()
