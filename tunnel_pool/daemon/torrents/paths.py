"""Knows which torrent owns which path: none writes to a file that is another's, or that was there and is nobody's.

A file that is there already when a torrent comes is refused where it can't be the torrent's. Where its size fits, the
torrent takes it over: nothing is downloaded until libtorrent has checked what is there, and found some of it right.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import islice

import libtorrent as lt

from tunnel_pool.daemon.errors import RequestError
from tunnel_pool.daemon.record import UNWANTED, Record
from tunnel_pool.daemon.rules.life import Event
from tunnel_pool.daemon.rules.path_registry import PathRegistry
from tunnel_pool.daemon.rules.paths import final_paths, first_clash, is_inside, renames, spellings_of
from tunnel_pool.daemon.rules.selection import priority_of
from tunnel_pool.daemon.storage import disk
from tunnel_pool.daemon.storage.store import StoreError
from tunnel_pool.daemon.torrents.background import Background
from tunnel_pool.daemon.torrents.records import Records
from tunnel_pool.daemon.torrents.torrent import Torrent
from tunnel_pool.torrent.entries import Entry, Part, parts_of, pieces_of
from tunnel_pool.torrent.takeover import look_at, stranger

JUDGED_AGAIN_S = 5.0
LOOKS_AT_ONCE = 64  # torrents whose turn has come; the others ask again in the next tick
TO_DO = "move it away and verify the torrent, or set another location"

logger = logging.getLogger(__name__)


class Paths:
    """Knows which path belongs to which torrent: `note` each torrent whenever its files get other paths."""

    def __init__(self, records: Records, background: Background, tick_soon: Callable[[], None]) -> None:
        self._records = records
        self._background = background
        self._tick_soon = tick_soon
        self._unlooked: dict[str, Torrent] = {}  # those that wait for a look before they begin
        self._registry = PathRegistry()
        self._real: dict[str, str] = {}  # folders without symbolic links, by their names

    async def learn(self, folders: Iterable[str]) -> None:
        """Find out which folders these are, which may be other ones by now."""
        names = [folder for folder in folders if folder]
        found = await asyncio.to_thread(lambda: [os.path.realpath(folder) for folder in names])
        self._real.update(zip(names, found, strict=True))

    def note(self, torrent: Torrent) -> None:
        """Keep where a torrent has its files, and where they are to go."""
        if torrent.layout is None:
            return
        tops = {path.partition("/")[0] for path in torrent.file_paths(torrent.file_indexes())}
        torrent.found_at(tops)
        places = (os.path.join(self._real.get(folder, folder), top) for folder in _folders(torrent) for top in tops)
        self._registry.put(torrent.record.infohash, places)

    def forget(self, infohash: str) -> None:
        self._registry.drop(infohash)

    # When its files are known, or go elsewhere

    async def choose(self, record: Record, parameters: lt.add_torrent_params, wished: Mapping[int, str]) -> None:
        """Give a new torrent's files their paths in the folder that it is to have. Raises RequestError."""
        assert parameters.ti is not None
        parameters.renamed_files = await self.choice(
            record, record.final_folder, parameters.ti, parameters.renamed_files, wished
        )

    async def choice(
        self,
        record: Record,
        folder: str,
        info: lt.torrent_info,
        repaired: Mapping[int, str],
        wished: Mapping[int, str],
    ) -> dict[int, str]:
        """Return those paths of a torrent's files that are not as it says itself. Raises RequestError."""
        spellings = await asyncio.to_thread(spellings_of, info, repaired, record.layout, record.infohash)
        if not (wished or spellings.unchanged) and spellings.own == spellings.portable:
            return renames(info, repaired, spellings.own)
        is_case_sensitive = True
        if spellings.own != spellings.portable:
            is_case_sensitive = await asyncio.to_thread(disk.is_case_sensitive, folder)
        if not all(map(is_inside, wished.values())):
            raise RequestError("a file of the torrent is outside its folder")

        def is_there(path: str) -> bool:
            return os.path.lexists(os.path.join(folder, path))

        paths = await asyncio.to_thread(final_paths, spellings, wished, is_there, is_case_sensitive)
        if paths is None:
            raise RequestError("two files of the torrent would have one path")
        return renames(info, repaired, paths)

    async def check(self, record: Record, folder: str, entries: Iterable[Entry], *, may_share: bool) -> bool:
        """Return whether other torrents have some of these files, too, which this one is to have in a folder.

        Raises RequestError where one of them would be in the way of another torrent's; with `may_share`, files of one
        size may be those of both. Where neither of two torrents has its files there yet, the one that was added first
        is let in.
        """
        await self.learn([folder])
        real = self._real[folder]
        mine = await asyncio.to_thread(_below, real, entries)
        folded, does_share = await asyncio.to_thread(_folded, mine), False
        for other in self._near(record.infohash, mine):
            theirs = self._entries_of(other, comes_home=other.record.number < record.number)
            in_the_way = await asyncio.to_thread(first_clash, mine, theirs, may_share)
            theirs_folded = _folded(theirs)
            if not in_the_way and (like_one := await asyncio.to_thread(first_clash, folded, theirs_folded, may_share)):
                in_the_way = "" if await asyncio.to_thread(disk.is_case_sensitive, folder) else like_one
            if in_the_way:
                raise RequestError(
                    f"{in_the_way} is a file of torrent {other.record.number}, {other.record.name}: "
                    "choose another folder"
                )
            does_share = does_share or not {path for path, _ in folded}.isdisjoint(path for path, _ in theirs_folded)
        return does_share

    def _near(self, infohash: str, entries: Iterable[Entry]) -> list[Torrent]:
        """Return the other torrents that have files near these."""
        torrents = self._records.torrents
        near = self._registry.near(entry.path for entry in entries)
        return [torrents[each] for each in sorted(near - {infohash}) if each in torrents]

    def _entries_of(self, torrent: Torrent, *, comes_home: bool = False) -> list[Entry]:
        """Return a torrent's files by their whole paths; with `comes_home`, those of its final folder, too."""
        named = _folders(torrent) if comes_home else filter(None, (torrent.record.folder, torrent.record.moving_to))
        folders = [self._real.get(folder, folder) for folder in named]
        return [Entry(os.path.join(folder, name), size) for name, size in entries_of(torrent) for folder in folders]

    async def check_wanted(self, torrent: Torrent, indexes: Collection[int]) -> None:
        """Raises RequestError where one of these files, which was not wanted yet, is another's or a stranger's."""
        record, untouched = torrent.record, untouched_files(torrent, indexes)
        files = zip(torrent.file_indexes(), entries_of(torrent), strict=True)
        if missing := [entry for index, entry in files if index in untouched]:
            await self.check(record, record.folder, missing, may_share=False)
            is_any_there, is_own = await self.take_over(record.infohash, record.folder, missing)
            if is_any_there and not is_own:
                raise RequestError("a file of that name is there already: move it away first")

    async def check_own(self, torrent: Torrent) -> None:
        """Raises RequestError where another's file is at a place to which the torrent has written nothing."""
        left = self._records.left_by(torrent.record.infohash)
        if path := await asyncio.to_thread(_stranger_of, torrent, left):
            raise RequestError(f"{path} is there, and is no file of this torrent: move it away first")

    async def take_over(self, infohash: str, folder: str, entries: Iterable[Entry]) -> tuple[bool, bool]:
        """Return whether any of these files is there, and whether all that are were left there by the torrent.

        Raises RequestError where one can't be the torrent's.
        """
        places = await asyncio.to_thread(_below, folder, entries)
        is_any_there, in_the_way = await asyncio.to_thread(look_at, places)
        if in_the_way:
            raise RequestError(
                f"{in_the_way} is there already, and is no file of this torrent: move it away, or choose another folder"
            )
        left = self._records.left_by(infohash)
        return is_any_there, bool(left) and await asyncio.to_thread(disk.are_left, places, left)

    def look_first(self, torrent: Torrent) -> None:
        """Look for files that came to a torrent's places while it waited, and let it begin where there are none."""
        if not self._unlooked:
            self._background.spawn(self._look_first())
        self._unlooked[torrent.record.infohash] = torrent

    async def _look_first(self) -> None:
        records = self._records
        async with records.changing:
            torrents, self._unlooked = dict(islice(self._unlooked.items(), LOOKS_AT_ONCE)), {}
            found: list[tuple[Torrent, dict[str, object]]] = []
            for torrent in torrents.values():
                record = torrent.record
                if not records.is_here(torrent) or not record.untouched or torrent.is_moving or record.moving_to:
                    continue
                try:
                    is_any_there, is_own = await self.take_over(record.infohash, record.folder, entries_of(torrent))
                except RequestError as error:
                    self._stand_still(torrent, str(error))
                else:
                    takes_over = record.taking_over or (is_any_there and not is_own)
                    found.append((torrent, {"untouched": False, "taking_over": takes_over}))
            await records.put_each(found)
            for torrent, fields in found:
                if fields["taking_over"]:
                    torrent.recheck()
        self._tick_soon()

    @staticmethod
    def _stand_still(torrent: Torrent, why: str) -> None:
        logger.warning("A torrent stands still, as files that are there are not its own; clients show which")
        torrent.happened(Event.FAILED, why)

    # When what was there has been checked

    async def judge(self, torrent: Torrent) -> None:
        """Let a torrent go on that takes files over, or say why it stands still; a full disk only delays that."""
        while True:
            try:
                return await self._judge(torrent)
            except StoreError as error:
                logger.warning("A torrent whose files were there already waits: %s", error)
            await asyncio.sleep(JUDGED_AGAIN_S)

    async def _judge(self, torrent: Torrent) -> None:
        records = self._records
        async with records.changing:
            is_checked = not (torrent.is_checking or torrent.is_verifying)
            record = torrent.record
            # One that waits, and has nothing, is looked at before it begins.
            is_found = record.taking_over or (record.untouched and torrent.summary.total_done > 0)
            if not (records.is_here(torrent) and is_found and is_checked):
                return
            parts = _parts_of(torrent)
            why = self._others_first(torrent, parts)
            if not why and (path := await asyncio.to_thread(stranger, parts)):
                why = f"{path} is there already, and holds nothing of this torrent: {TO_DO}"
            if why:
                self._stand_still(torrent, why)
            else:
                is_untouched = record.untouched and not torrent.summary.total_done
                await records.put(torrent, taking_over=False, untouched=is_untouched)
        self._tick_soon()

    def _others_first(self, torrent: Torrent, parts: Iterable[Part]) -> str:
        """Return why a torrent has to leave a file to another torrent that has it, too; empty if it need not."""
        missing = {self._real_path(part.entry.path, torrent) for part in parts if not part.is_whole}
        if not missing:
            return ""
        for other in self._near(torrent.record.infohash, (Entry(path, 0) for path in missing)):
            both = missing.intersection(path for path, _ in self._entries_of(other))
            if both and not other.record.taking_over:
                return (
                    f"{min(both)} is a file of torrent {other.record.number}, {other.record.name}, too, and not whole: "
                    "it goes on by itself once that one is, or in another folder"
                )
        return ""

    def _real_path(self, path: str, torrent: Torrent) -> str:
        folder = torrent.record.folder
        return os.path.join(self._real.get(folder, folder), os.path.relpath(path, folder))

    def look_again(self, changed: Torrent) -> None:
        """Have those torrents checked again that wait for the files of one that is whole now, or gone."""
        entries = self._entries_of(changed)
        for other in self._near(changed.record.infohash, entries):
            if other.record.taking_over and other.error and self._records.is_here(other):
                other.recheck()
        self._tick_soon()


def entries_of(torrent: Torrent) -> list[Entry]:
    """Return a torrent's files, by their paths in its folder."""
    layout = torrent.layout
    if layout is None:
        return []
    indexes = torrent.file_indexes()
    return [
        Entry(path, layout.file_size(index)) for index, path in zip(indexes, torrent.file_paths(indexes), strict=True)
    ]


def untouched_files(torrent: Torrent, indexes: Collection[int]) -> set[int]:
    """Return those of these files that libtorrent has written nothing to. Raises RuntimeError between sessions."""
    layout = torrent.layout
    assert layout is not None
    has = torrent.handle.status(lt.torrent_handle.query_pieces).pieces
    touched = {each["piece_index"] for each in torrent.handle.get_download_queue()}
    touched.update(piece for piece, is_there in enumerate(has) if is_there)
    return {index for index in indexes if touched.isdisjoint(pieces_of(layout, index))}


def given_up(torrent: Torrent, priorities: Sequence[int]) -> set[int]:
    """Return the files that these priorities want no longer: the torrent may have written them.

    Those of them that are not there may come yet, as libtorrent has blocks in memory, and takes pieces out of the parts
    file for changes that it has not carried out: `written_unwanted` says afterwards which came.
    """
    if torrent.layout is None or torrent.record.untouched:
        return set()
    return {i for i in torrent.file_indexes() if torrent.is_wanted(i) and priority_of(priorities, i) == UNWANTED}


def those_there(torrent: Torrent) -> list[int]:
    """Return which of the unwanted files that its record says are written are there: libtorrent creates no others."""
    record = torrent.record
    if not record.written or torrent.layout is None:
        return record.written
    folders = list(filter(None, (record.folder, record.moving_to)))
    paths = zip(record.written, torrent.file_paths(record.written), strict=True)
    return [index for index, path in paths if any(os.path.lexists(os.path.join(folder, path)) for folder in folders)]


def never_written(torrent: Torrent) -> set[int]:
    """Return those files to which nothing was written by the torrent, by its record and by its pieces."""
    return _never_written(torrent, torrent.record.written)


def _never_written(torrent: Torrent, unwanted: Iterable[int]) -> set[int]:
    """Return the files to which nothing was written; to these `unwanted` ones something was.

    What unwanted files share with wanted ones is in the parts file. While no session has the torrent, nobody knows of
    pieces: its record says all.
    """
    layout, record = torrent.layout, torrent.record
    if layout is None:
        return set()
    indexes = set(torrent.file_indexes())
    if record.untouched:
        return indexes
    written = {index for index in indexes if torrent.is_wanted(index)} | set(unwanted)
    others = indexes - written
    if not others or torrent.is_between_sessions:
        return others
    shared = {piece for index in written for piece in pieces_of(layout, index)}
    has = torrent.handle.status(lt.torrent_handle.query_pieces).pieces
    pieces = {each["piece_index"] for each in torrent.handle.get_download_queue()} - shared
    return {
        index
        for index in others
        if not any(piece in pieces or (piece not in shared and has[piece]) for piece in pieces_of(layout, index))
    }


def written_unwanted(torrent: Torrent) -> set[int]:
    """Return those files that are wanted no longer, and to which something was written.

    Ask once libtorrent has carried out that they are unwanted.
    """
    unwanted = {index for index in torrent.file_indexes() if not torrent.is_wanted(index)}
    return unwanted - _never_written(torrent, those_there(torrent))


def _stranger_of(torrent: Torrent, left: disk.Left) -> str:
    """Return the first path of a file that the torrent has neither written nor left; empty if there is none."""
    paths = torrent.file_paths(sorted(never_written(torrent)))
    return next(disk.strangers((os.path.join(torrent.record.folder, path) for path in paths), left), "")


def _folders(torrent: Torrent) -> list[str]:
    record = torrent.record
    return list(filter(None, (record.folder, record.moving_to, record.folder_when_done)))


def _below(folder: str, entries: Iterable[Entry]) -> list[Entry]:
    return [Entry(os.path.join(folder, path), size) for path, size in entries]


def _folded(entries: Iterable[Entry]) -> list[Entry]:
    return [Entry(path.casefold(), size) for path, size in entries]


def _parts_of(torrent: Torrent) -> list[Part]:
    """Raises RuntimeError while it is between sessions."""
    layout = torrent.layout
    if layout is None:
        return []
    has = torrent.handle.status(lt.torrent_handle.query_pieces).pieces
    files = zip(torrent.file_indexes(), entries_of(torrent), strict=True)
    folder = torrent.record.folder
    return parts_of(layout, ((index, Entry(os.path.join(folder, path), size)) for index, (path, size) in files), has)
