"""Places files of torrents, and moves them. Once a method returns, its change survives `kill -9`."""

import asyncio
import contextlib
import logging
import os
from collections.abc import Iterable, Mapping
from typing import Any

import libtorrent as lt

from tunnel_pool.daemon.changes.edits import Move
from tunnel_pool.daemon.errors import RequestError
from tunnel_pool.daemon.record import INCOMING, Record
from tunnel_pool.daemon.rules.life import Event
from tunnel_pool.daemon.storage import disk
from tunnel_pool.daemon.storage.presence import Part, Presence, presence_of
from tunnel_pool.daemon.storage.settings import Settings
from tunnel_pool.daemon.storage.store import StoreError
from tunnel_pool.daemon.torrents.library import Library
from tunnel_pool.daemon.torrents.paths import entries_of
from tunnel_pool.daemon.torrents.torrent import Torrent
from tunnel_pool.torrent.entries import Entry, entries_in, kept_name
from tunnel_pool.torrent.takeover import look_at

ANSWER_TIMEOUT_S = 30.0
NOT_ITS_OWN = "files that are there may not be its own: verify it first, and move those away that are not"

logger = logging.getLogger(__name__)


class Moves:
    def __init__(self, library: Library) -> None:
        self._library = library

    async def place(self, record: Record, parameters: lt.add_torrent_params, renamed: Mapping[int, str]) -> None:
        """Say where a new torrent's files come to be, by their indexes where its owner has `renamed` them.

        It comes to a folder of its own when there is one for incomplete ones, unless something of it is where it is to
        be; and while its files are not known, as another's may be there. Raises RequestError.
        """
        paths = self._library.paths
        is_gone = self._library.places.is_gone(record.folder)  # and what is in it can't be seen
        is_any_there = has_some = any(parameters.have_pieces)
        if parameters.ti is not None:
            await paths.choose(record, parameters, renamed)
            entries = await asyncio.to_thread(lambda: [entry for _, entry in entries_in(parameters)])
            does_share = await paths.check(record, record.folder, entries, may_share=True)
            if not has_some:
                is_any_there, is_own = await paths.take_over(record.infohash, record.folder, entries)
                record.taking_over = (is_any_there and not is_own) or does_share or is_gone
                record.untouched = not record.taking_over
        if not is_gone and not is_any_there and not record.folder_when_done:
            self._put_aside(record, parameters.ti is not None)
        await paths.learn([record.folder, record.folder_when_done])

    def _put_aside(self, record: Record, is_known: bool) -> None:
        settings = self._library.records.settings
        if settings.incomplete_dir_enabled:
            aside = os.path.join(settings.incomplete_dir, record.infohash)
        elif not is_known:
            aside = os.path.join(record.folder, f".{record.infohash}{INCOMING}")
        else:
            return
        record.folder, record.folder_when_done = aside, record.folder
        record.taking_over = record.untouched = False  # nobody else has files there

    async def arrived(self, torrents: Iterable[Torrent]) -> None:
        """Wait until the files of torrents that have just become known are at their places, or can't be there.

        That is a matter of a moment: whoever changes such a torrent need not be told to ask again.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                for torrent in torrents:
                    await torrent.waiting.arrival()

    async def settle(self, torrent: Torrent) -> None:
        """Give the files of a torrent their places, which are known only now. Raises StoreError."""
        try:
            await self._settle(torrent)
        finally:
            if not torrent.is_moving:
                torrent.waiting.arrived()

    async def _settle(self, torrent: Torrent) -> None:
        records = self._library.records
        async with records.changing:
            record = torrent.record
            if not records.is_here(torrent) or not record.folder_when_done or torrent.error or record.moving_to:
                return
            if torrent.is_moving or torrent.info is None:
                return
            try:
                is_any_there, is_own = await self._choose_paths(torrent)
                if is_any_there:
                    await self._look_in(torrent, record.folder_when_done, leaves_nothing=True, is_own=is_own)
                elif record.is_incoming:
                    await self._begin_move(torrent, record.folder_when_done, is_tried_again=True)
                else:
                    await records.put_with_resume(torrent)
            except RequestError as error:
                if record.is_incoming:
                    torrent.happened(Event.FAILED, str(error))
                    logger.warning("A torrent stands still, as its files have no place; clients show why")
                else:
                    torrent.notify(f"it stays in the folder for incomplete ones: {error}")

    async def _choose_paths(self, torrent: Torrent) -> tuple[bool, bool]:
        """Rename the files as they are to be in the folder that they go to.

        Return whether any is there already, and whether all of these were left there by it. Raises RequestError.
        """
        record, info, paths = torrent.record, torrent.info, self._library.paths
        assert info is not None
        given = dict(enumerate(torrent.file_paths(range(info.layout().num_files()))))
        chosen = await paths.choice(record, record.folder_when_done, info, given, {})
        for index in torrent.file_indexes():
            path = kept_name(chosen, info.layout(), index)
            if path != given[index]:
                await rename_file(torrent, index, path)
        torrent.update(torrent.handle.status())
        found = await self._look(torrent, record.folder_when_done)
        paths.note(torrent)
        return found

    async def bring_home(self, torrent: Torrent) -> None:
        """Move a torrent to its own folder; a move that fails is tried again. Raises RequestError and StoreError."""
        async with self._library.records.changing:
            home = Move(torrent.record.folder_when_done)
            if home.folder and self._library.records.is_here(torrent):
                await self.check(torrent, home)
                await self._begin_move(torrent, home.folder, is_tried_again=True)
        self._library.scheduler.tick()

    async def check(self, torrent: Torrent, edit: Move) -> None:
        """Raises RequestError where the torrent can't be moved: nothing that is there is replaced."""
        if not self._library.records.is_here(torrent):
            return
        folder = absolute(edit.folder)
        if torrent.is_moving:
            raise RequestError("the torrent is being moved already")
        if edit.with_files and torrent.record.taking_over and not _has_nothing(torrent):
            raise RequestError(NOT_ITS_OWN)
        if edit.with_files and not torrent.record.taking_over:
            await self._library.paths.check_own(torrent)
            await self._check_move(torrent, folder)
        else:
            await self._check_look(torrent, folder)

    async def begin(self, torrent: Torrent, edit: Move) -> None:
        """Have a torrent's files in another folder; return when it is kept where they are to be.

        A move that fails has its torrent stand still with the error. Raises RequestError and StoreError.
        """
        folder = absolute(edit.folder)
        if not self._library.records.is_here(torrent):
            return
        if torrent.info is None and torrent.record.folder_when_done:
            # Its files go there once they are known.
            await self._library.records.put_with_resume(torrent, folder_when_done=folder)
        elif not edit.with_files or torrent.record.taking_over:  # which has nothing of its own to move
            _, is_own = await self._look(torrent, folder)  # once more: another edit may have taken its time
            await self._look_in(torrent, folder, is_own=is_own)
        elif folder != torrent.record.folder:
            await self._begin_move(torrent, folder, is_tried_again=False)

    async def _begin_move(self, torrent: Torrent, folder: str, is_tried_again: bool) -> None:
        await self._library.records.put(torrent, moving_to=folder)
        self._library.paths.note(torrent)
        torrent.happened(Event.MOVE_BEGUN)
        self._library.background.spawn(self._move_files(torrent, folder, is_tried_again))

    async def _move_files(self, torrent: Torrent, folder: str, is_tried_again: bool) -> None:
        library = self._library
        moved = torrent.waiting.move()
        before, was_aside = torrent.record.folder, torrent.record.has_own_folder
        fields: dict[str, Any] = {"folder": folder, "moving_to": "", "folder_when_done": ""}
        try:
            is_incoming = torrent.record.is_incoming
            # Nothing is in that folder if it has not run, before a kill either.
            was_there = is_incoming and await asyncio.to_thread(_is_any_there, torrent, before)
            try:
                torrent.handle.move_storage(folder, lt.move_flags_t.fail_if_exist)
                await moved
            except OSError as error:
                logger.warning("A torrent can't be moved: %s", error.strerror)
                if not is_tried_again:
                    torrent.happened(Event.FAILED, f"it can't be moved: {error.strerror}")
                await asyncio.to_thread(_undo, torrent, before, folder)
                fields = {"moving_to": ""}
            async with library.records.changing:
                if is_incoming and "folder" in fields:
                    fields["untouched"] = not (was_there or torrent.has_run or torrent.summary.total_done)
                await library.records.put_with_resume(torrent, **fields)
                if is_incoming and torrent.record.untouched and torrent.has_run:  # its turn has come meanwhile
                    await library.records.put(torrent, untouched=False)
                library.paths.note(torrent)
        except StoreError as error:
            torrent.happened(Event.FAILED, f"where it was moved to is not kept: {error}; move it again")
            raise
        finally:
            torrent.happened(Event.MOVE_ENDED)
            torrent.waiting.arrived()
        if was_aside and torrent.record.folder != before:
            await asyncio.to_thread(_leave, before)
        library.tell_done(torrent)
        library.scheduler.tick()

    async def _look(self, torrent: Torrent, folder: str) -> tuple[bool, bool]:
        """Return whether any of a torrent's files is in a folder, and whether all of these were left there by it.

        Those that another torrent has, too, count as there. Raises RequestError.
        """
        entries, paths = entries_of(torrent), self._library.paths
        does_share = await paths.check(torrent.record, folder, entries, may_share=True)
        is_any_there, is_own = await paths.take_over(torrent.record.infohash, folder, entries)
        return is_any_there or does_share, is_own and not does_share

    async def _check_look(self, torrent: Torrent, folder: str) -> None:
        """Raises RequestError."""
        if torrent.summary.total_done and not await asyncio.to_thread(_is_any_there, torrent, folder):
            raise RequestError(f"none of its files is in {folder}: it stays where it is")
        await self._look(torrent, folder)

    async def _look_in(
        self, torrent: Torrent, folder: str, *, leaves_nothing: bool = False, is_own: bool = False
    ) -> None:
        """Use and check the files that are in the folder already. Raises RequestError and StoreError.

        With `leaves_nothing`, what has come to the folder before is deleted. `is_own`: all of the files are its own.
        """
        before, records = torrent.record.folder, self._library.records
        takes_over = torrent.info is not None and not is_own
        home = torrent.record.folder_when_done
        # Kept first: what libtorrent writes there from now on is its own, also after `kill -9`.
        await records.put(torrent, folder=folder, folder_when_done="", taking_over=takes_over, written=[])
        moved = torrent.waiting.move()
        torrent.handle.pause()
        torrent.handle.move_storage(folder, lt.move_flags_t.reset_save_path)
        try:
            await answered(moved, "cannot look in that folder")
        except RequestError:
            await records.put(torrent, folder=before, folder_when_done=home, taking_over=False)
            raise
        finally:
            if torrent.info is not None:
                torrent.recheck()
                torrent.update(torrent.handle.status())  # it was paused a moment ago
        await records.put_with_resume(torrent)
        self._library.paths.note(torrent)
        if leaves_nothing:
            names = [entry.path for entry in entries_of(torrent)]
            await asyncio.to_thread(disk.delete, disk.files_in(before, names))
            await asyncio.to_thread(_leave, before)
        self._library.tell_done(torrent)

    async def _check_move(self, torrent: Torrent, folder: str) -> None:
        """Raises RequestError."""
        if torrent.is_missing:
            raise RequestError("its files are gone: set its location to where they are")
        if folder == torrent.record.folder:
            return
        await self._library.paths.check(torrent.record, folder, entries_of(torrent), may_share=False)
        if there := await asyncio.to_thread(_first_there, torrent, folder):
            raise RequestError(
                f"{there} is there already, and is not replaced: move it away, or look for the files there"
            )


def _first_there(torrent: Torrent, folder: str) -> str:
    """Return a path in a folder that a file of the torrent is to have and something has; empty if there is none."""
    nothing_fits = -1
    return look_at(Entry(os.path.join(folder, path), nothing_fits) for path, _ in entries_of(torrent))[1]


def _has_nothing(torrent: Torrent) -> bool:
    """Return whether files that were there have been checked, and are all others'."""
    return bool(torrent.error) and not torrent.summary.total_done and not torrent.is_checking


def _leave(folder: str) -> None:
    """Remove the folder that an incomplete torrent had, if nothing is left in it."""
    with contextlib.suppress(OSError):
        os.rmdir(folder)


async def rename_file(torrent: Torrent, index: int, path: str) -> None:
    """Rename a file in the torrent's folder. Raises RequestError."""
    renamed = torrent.waiting.rename()
    torrent.handle.rename_file(index, path)
    await answered(renamed, "cannot rename")


def absolute(folder: str) -> str:
    """Raises RequestError."""
    if not os.path.isabs(folder) or "\0" in folder:
        raise RequestError("name a folder by its whole path, from /")
    return os.path.normpath(folder)


def check_folders(settings: Settings) -> None:
    """Raises RequestError."""
    absolute(settings.folder)
    if settings.incomplete_dir_enabled and not settings.incomplete_dir:
        raise RequestError("name the folder for incomplete torrents, too: incomplete-dir, or temp_path")
    if settings.incomplete_dir:
        absolute(settings.incomplete_dir)


def _undo(torrent: Torrent, source: str, target: str) -> None:
    names = [*torrent.file_paths(torrent.file_indexes()), disk.parts_name(torrent.status.info_hashes)]
    try:
        disk.undo_move(names, source, target)
    except OSError as error:
        logger.warning("Copies of a torrent that could not be moved are left: %s", error.strerror)


def _is_any_there(torrent: Torrent, folder: str) -> bool:
    files = (Part(os.path.join(folder, path), 0) for path in torrent.file_paths(torrent.file_indexes()))
    return presence_of(files) is not Presence.GONE


async def answered(future: "asyncio.Future[Any]", what: str) -> None:
    """Wait until libtorrent has done it. Raises RequestError."""
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            await future
    except TimeoutError:
        raise RequestError(f"{what}: libtorrent does not answer") from None
    except OSError as error:
        raise RequestError(f"{what}: {error.strerror}") from None
