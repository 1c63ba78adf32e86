"""Notices torrents whose files are gone, by a disk that was unmounted for example, and that they are back."""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable

import libtorrent as lt

from tunnel_pool.daemon.rules.life import Event
from tunnel_pool.daemon.storage.disk import Identity
from tunnel_pool.daemon.storage.presence import (
    Part,
    Presence,
    expected_parts,
    identities,
    not_found,
    presence_of,
)
from tunnel_pool.daemon.torrents.background import Background
from tunnel_pool.daemon.torrents.records import Records
from tunnel_pool.daemon.torrents.torrent import Torrent

LOOK_FOR_MISSING_S = 5.0  # between two looks whether the files of a torrent are back

logger = logging.getLogger(__name__)


class Places:
    """Tells torrents that their files are gone, so that they stand still, or back: call `look` every second.

    libtorrent would download such a torrent anew, to a folder that it creates: on another disk than the torrent's own
    when that is not mounted.
    """

    def __init__(self, records: Records, background: Background, tick_soon: Callable[[], None]) -> None:
        self._records = records
        self._background = background
        self._tick_soon = tick_soon
        self._identities: dict[str, Identity | None] = {}  # of folders, as of the last look
        self._due: set[str] = set()  # torrents to be looked at whatever their folder is, by infohash
        self._next_for_missing_s = 0.0
        self._looking = False

    def suspect(self, torrent: Torrent) -> None:
        """Have a torrent looked at, as one of its files was not found."""
        self._due.add(torrent.record.infohash)

    def is_gone(self, folder: str) -> bool:
        """Return whether the folder of others, which had files there, is not there any more."""
        is_there = self._identities.get(folder) is not None
        torrents = self._records.torrents.values()
        return not is_there and any(each.is_missing and each.record.owned_folder == folder for each in torrents)

    def look(self) -> None:
        """Look at the folders of all torrents, unless a disk has not answered yet."""
        if not self._looking:
            self._looking = True
            self._background.spawn(self._look())

    async def _look(self) -> None:
        try:
            torrents = list(self._records.torrents.values())
            before = self._identities
            folders = {torrent.record.owned_folder for torrent in torrents}
            self._identities = await asyncio.to_thread(identities, folders)
            changed = {each for each in folders & before.keys() if before[each] != self._identities[each]}
            appeared = {each for each in changed if before[each] is None}  # libtorrent makes folders, too
            await self._judge_each(torrents, changed - appeared, appeared)
        finally:
            self._looking = False

    async def _judge_each(
        self, torrents: Iterable[Torrent], changed: Collection[str], appeared: Collection[str]
    ) -> None:
        now_s = time.monotonic()
        if look_for_missing := now_s >= self._next_for_missing_s:
            self._next_for_missing_s = now_s + LOOK_FOR_MISSING_S
        due, self._due = self._due, set()
        for torrent in torrents:
            is_due = torrent.record.owned_folder in changed or torrent.record.infohash in due
            if is_due and self._is_elsewhere(torrent):
                self._due.add(torrent.record.infohash)
            elif is_due or (torrent.is_missing and (look_for_missing or torrent.record.owned_folder in appeared)):
                await self._judge(torrent, torrent.record.owned_folder in changed)

    def _is_elsewhere(self, torrent: Torrent) -> bool:
        """Return whether libtorrent moves or checks its files, so that nothing can be said of them."""
        is_moving = torrent.is_between_sessions or torrent.is_moving or bool(torrent.record.moving_to)
        return self._records.has(torrent) and (is_moving or torrent.is_verifying or torrent.is_checking)

    async def _judge(self, torrent: Torrent, is_changed: bool) -> None:
        """Compare what is there of a torrent with what it should have."""
        if not self._records.has(torrent):
            return
        folder, handle, parts = torrent.record.owned_folder, torrent.handle, _parts_of(torrent)
        presence = await asyncio.to_thread(presence_of, parts)
        is_same = (torrent.record.owned_folder, torrent.handle) == (folder, handle)
        if not self._records.has(torrent) or self._is_elsewhere(torrent) or not is_same:
            return
        makes_folder = torrent.record.has_own_folder and not torrent.record.is_incoming  # libtorrent does, for itself
        is_folder_gone = self._identities.get(folder) is None and not makes_folder
        if presence is Presence.GONE or (not parts and is_folder_gone):
            self._lose(torrent)
        elif presence is Presence.SHORT or (is_changed and not torrent.is_missing and not torrent.is_finished):
            # Where the folder is another than a moment ago, libtorrent may have written to either.
            logger.warning("Files of a torrent are not as it left them: what is there is checked")
            torrent.recheck()
            self._tick_soon()
        elif torrent.is_missing:
            logger.info("The files of a torrent are back: it goes on")
            torrent.happened(Event.FOUND)
            if torrent.record.taking_over:  # what is there was never looked at
                torrent.recheck()
            self._tick_soon()

    def _lose(self, torrent: Torrent) -> None:
        if not torrent.is_missing:
            logger.warning("The files of a torrent are gone: it stands still until they are back")
            torrent.happened(Event.LOST, not_found(torrent.record.folder))
            self._tick_soon()


def _parts_of(torrent: Torrent) -> list[Part]:
    """Return the files that must be there of a torrent. Raises RuntimeError while it is between sessions."""
    if torrent.layout is None or not torrent.summary.total_done:
        return []
    has = torrent.handle.status(lt.torrent_handle.query_pieces).pieces
    return expected_parts(torrent.record, torrent.layout, torrent.file_path, has)
