"""Notices downloads that stand still, and has them go on."""

import logging
import time

from tunnel_pool.daemon.changes.hop_changes import HopChanges
from tunnel_pool.daemon.errors import RequestError
from tunnel_pool.daemon.rules.life import Event
from tunnel_pool.daemon.rules.queue import Activity
from tunnel_pool.daemon.rules.standstill import Step
from tunnel_pool.daemon.torrents.library import Library
from tunnel_pool.daemon.torrents.torrent import Torrent
from tunnel_pool.torrent.metainfo import read_resume
from tunnel_pool.torrent.sessions.lost_peers import connect_anew, is_end_to_end

logger = logging.getLogger(__name__)


class Watchdog:
    """Helps downloads that stand still: call `look` every second."""

    def __init__(self, library: Library, hops: HopChanges) -> None:
        self._library = library
        self._hops = hops

    def look(self) -> None:
        """Help each download from which nothing has come for long."""
        now_s = time.monotonic()
        for torrent in list(self._library.torrents.values()):
            if torrent.life.is_to_be_tried(now_s):
                torrent.happened(Event.TRIED_AGAIN)
            standstill, step = torrent.standstill, None
            if _should_move(torrent, now_s):
                step = standstill.look(now_s, (torrent.summary.total_done, torrent.summary.total_payload_download))
            else:
                standstill.moved(now_s)
            if step is not None:
                self._help(torrent, step)
            elif not standstill.attempts:
                torrent.went_on()

    def _help(self, torrent: Torrent, step: Step) -> None:
        library = self._library
        torrent.stood_still(time.monotonic(), library.sessions.is_reachable(torrent.lane))
        logger.debug("A download stands still: %s", torrent.standing)
        library.background.spawn(self._ask_again(torrent) if step is Step.ASK_AGAIN else self._open_anew(torrent))

    async def _ask_again(self, torrent: Torrent) -> None:
        """Ask its known peers, its trackers and the DHT again. Raises StoreError."""
        library = self._library
        peers = read_resume(await library.records.resume_data(torrent)).peers
        if not library.records.is_here(torrent):
            return
        session = library.sessions.ensure_open(torrent.lane)
        session.reconsider_peers(torrent)
        for peer in dict.fromkeys([*peers, *torrent.record.peers]):
            if not is_end_to_end(peer):
                connect_anew(torrent.handle, peer)
        session.ask_trackers(torrent.handle)
        torrent.handle.force_dht_announce()

    async def _open_anew(self, torrent: Torrent) -> None:
        try:
            await self._hops.open_anew(torrent)
        except RequestError as error:
            logger.debug("A download that stands still is not opened anew: %s", error)


def _should_move(torrent: Torrent, now_s: float) -> bool:
    """Return whether the download should receive data now."""
    is_at_work = torrent.activity is Activity.RUNNING and not torrent.is_finished and not torrent.error
    is_elsewhere = torrent.is_between_sessions or torrent.is_moving or torrent.record.moving_to
    is_waiting = torrent.is_checking or torrent.is_verifying or torrent.life.held_until_s > now_s
    return is_at_work and not is_elsewhere and not is_waiting
