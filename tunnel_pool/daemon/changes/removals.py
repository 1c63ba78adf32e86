"""Torrents that are removed: what goes of them, and what is known of the files that stay."""

import asyncio
import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence

from tunnel_pool.daemon.changes.hop_changes import REMOVE_TIMEOUT_S
from tunnel_pool.daemon.storage import disk
from tunnel_pool.daemon.storage.store import Deletion, StoreError
from tunnel_pool.daemon.torrents.library import Library
from tunnel_pool.daemon.torrents.paths import never_written
from tunnel_pool.daemon.torrents.torrent import Torrent
from tunnel_pool.torrent.entries import Entry


class Removals:
    def __init__(self, library: Library) -> None:
        self._library = library
        self._letting_go: set[asyncio.Task[None]] = set()

    async def ended(self) -> None:
        """Return when no file of a removed torrent is in use, or still to be deleted."""
        if self._letting_go:
            await asyncio.wait(self._letting_go)

    async def remove(self, torrents: Iterable[Torrent], delete_files: bool) -> None:
        """Remove torrents: they are gone when it returns, their files soon after. Raises StoreError."""
        library = self._library
        async with library.records.changing:
            torrents = [torrent for torrent in torrents if library.records.has(torrent)]
            # A thread looks at every file of every torrent. `changing` keeps the torrents as they are meanwhile.
            deletions = await asyncio.to_thread(self._files_only_of, torrents) if delete_files else []
            left = {} if delete_files else await asyncio.to_thread(self._places_of, torrents)
            await self._leave(left, may_come=True)  # for a kill that comes before libtorrent has closed them
            await library.records.remove([torrent.record.infohash for torrent in torrents], deletions)
            removals = [library.close(torrent) for torrent in torrents]
            await library.records.put_order(library.records.order())
        task = asyncio.get_running_loop().create_task(self._let_go(removals, deletions, left))
        self._letting_go.add(task)
        task.add_done_callback(self._letting_go.discard)
        library.scheduler.tick()

    def _files_only_of(self, torrents: Iterable[Torrent]) -> list[Deletion]:
        """Return their files, without those that other torrents have, too."""
        infohashes = {torrent.record.infohash for torrent in torrents}
        kept = [
            file
            for torrent in self._library.torrents.values()
            if torrent.record.infohash not in infohashes
            for file in torrent_files(torrent, torrent.file_indexes())
        ]
        return disk.without([file for torrent in torrents for file in self._files_of(torrent)], kept)

    def _places_of(self, torrents: Iterable[Torrent]) -> dict[str, list[Entry]]:
        """Return where files of torrents can be, without those that may be others'."""
        return {
            torrent.record.infohash: [Entry(file.path, 0) for file in self._files_of(torrent)]
            for torrent in torrents
            if not torrent.record.taking_over
        }

    def _files_of(self, torrent: Torrent) -> list[Deletion]:
        """Return where files of a torrent can be, without places where only another's is."""
        record = torrent.record
        if record.taking_over:  # nobody knows yet whose they are
            return []
        left = self._library.records.left_by(record.infohash)
        unwritten = never_written(torrent)
        files = torrent_files(torrent, set(torrent.file_indexes()) - unwritten)
        others = torrent_files(torrent, unwritten, with_parts=False)
        strangers = set(disk.strangers((file.path for file in others), left))
        files += [file for file in others if file.path not in strangers]
        if torrent.is_moving:  # nothing was there when that began
            return files
        return [file for file in files if not disk.is_in_the_way(file, record.folder, record.moving_to)]

    async def _let_go(
        self, removals: Sequence["asyncio.Future[None]"], deletions: list[Deletion], left: Mapping[str, list[Entry]]
    ) -> None:
        """Once libtorrent has closed the files, delete those that are to go, and note those that stay."""
        if removals:
            await asyncio.wait(removals, timeout=REMOVE_TIMEOUT_S)
        if deletions:
            gone = await asyncio.to_thread(disk.delete, deletions)
            self._library.background.spawn(self._library.records.deleted(gone))
        with contextlib.suppress(StoreError):  # what was there before is known
            await self._leave(left)

    async def _leave(self, places: Mapping[str, list[Entry]], *, may_come: bool = False) -> None:
        """Keep which files stay, or `may_come` yet, of torrents that are removed, by infohash. Raises StoreError."""
        records = self._library.records
        if not places:
            return
        before = {infohash: records.left_by(infohash) for infohash in places}
        await records.leave(await asyncio.to_thread(_look, places, before, may_come))


def _look(places: Mapping[str, list[Entry]], before: Mapping[str, disk.Left], may_come: bool) -> dict[str, disk.Left]:
    return {
        infohash: disk.left_at(entries, before[infohash], may_come=may_come) for infohash, entries in places.items()
    }


def torrent_files(torrent: Torrent, indexes: Iterable[int], *, with_parts: bool = True) -> list[Deletion]:
    """Return these of the torrent's files, in its folder and in the folder that it is being moved to."""
    names = torrent.file_paths(indexes)
    if with_parts:
        names.append(disk.parts_name(torrent.status.info_hashes))
    folders = filter(None, (torrent.record.folder, torrent.record.moving_to))
    found = [file for folder in folders for file in disk.files_in(folder, names)]
    own = torrent.record.folder
    if not torrent.record.has_own_folder:
        return found
    # Of an incomplete torrent, its own folder goes as well.
    return [Deletion(file.path, os.path.dirname(own)) if file.root == own else file for file in found]
