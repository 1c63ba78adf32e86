"""Where files of torrents are, and how they get elsewhere. Once a method returns, its change survives `kill -9`."""

import asyncio
import contextlib
import logging
import os
from collections.abc import Iterable
from typing import Any

import libtorrent as lt

from tunnel_pool.daemon.errors import RequestError
from tunnel_pool.daemon.storage import disk
from tunnel_pool.daemon.storage.presence import Part, Presence, presence_of
from tunnel_pool.daemon.storage.record import Record
from tunnel_pool.daemon.storage.settings import Settings
from tunnel_pool.daemon.storage.store import StoreError
from tunnel_pool.daemon.torrents.library import Library
from tunnel_pool.daemon.torrents.torrent import Torrent

ANSWER_TIMEOUT_S = 30.0

logger = logging.getLogger(__name__)


class Moves:
    def __init__(self, library: Library) -> None:
        self._library = library

    async def put_aside(self, record: Record, parameters: lt.add_torrent_params) -> None:
        """Have the torrent come to the folder for incomplete ones, unless something of it is where it is to be.

        There it has a folder of its own: others may have files of the same names.
        """
        settings = self._library.records.settings
        if not settings.incomplete_dir_enabled or any(parameters.have_pieces):
            return
        if self._library.places.is_gone(record.folder):  # and what is in it can't be seen
            return
        names = disk.names_of(parameters) if parameters.ti is not None else []
        places = [os.path.join(record.folder, name) for name in names]
        if not await asyncio.to_thread(lambda: any(map(os.path.exists, places))):
            aside = os.path.join(settings.incomplete_dir, record.infohash)
            record.folder, record.folder_when_done = aside, record.folder

    async def move(
        self, torrents: Iterable[Torrent], location: str, with_files: bool, *, is_tried_again: bool = False
    ) -> None:
        """Move torrents; return when it is kept where they are to be. Raises RequestError and StoreError.

        Nothing that is there is replaced. A move that fails has its torrent stand still with the error, unless it
        `is_tried_again` by itself.
        """
        folder, library = absolute(location), self._library
        async with library.records.changing:
            chosen = [torrent for torrent in torrents if library.records.is_here(torrent)]
            for torrent in chosen if with_files else ():
                await _check_move(torrent, folder)
            for torrent in chosen:
                if with_files and folder != torrent.record.folder:
                    await library.records.put(torrent, moving_to=folder)
                    torrent.is_moving, torrent.error = True, ""
                    library.background.spawn(self._move_files(torrent, folder, is_tried_again))
                elif not with_files:
                    await self._look_in(torrent, folder)
        library.scheduler.tick()

    async def _move_files(self, torrent: Torrent, folder: str, is_tried_again: bool) -> None:
        library = self._library
        torrent.moved = asyncio.get_running_loop().create_future()
        before, was_aside = torrent.record.folder, bool(torrent.record.folder_when_done)
        fields: dict[str, Any] = {"folder": folder, "moving_to": "", "folder_when_done": ""}
        try:
            torrent.handle.move_storage(folder, lt.move_flags_t.fail_if_exist)
            try:
                await torrent.moved
            except OSError as error:
                logger.warning("A torrent can't be moved: %s", error.strerror)
                if not is_tried_again:
                    torrent.error = f"it can't be moved: {error.strerror}"
                fields = {"moving_to": ""}
            async with library.records.changing:
                await library.records.put_with_resume(torrent, **fields)
            if was_aside and torrent.record.folder != before:
                await asyncio.to_thread(_leave, before)
            library.tell_done(torrent)
        except StoreError as error:
            torrent.error = f"where it was moved to is not kept: {error}; move it again"
            raise
        finally:
            torrent.is_moving = False
        library.scheduler.tick()

    async def _look_in(self, torrent: Torrent, folder: str) -> None:
        """Use and check the files that are in the folder already. Raises RequestError and StoreError."""
        if torrent.summary.total_done and not await asyncio.to_thread(_is_any_there, torrent, folder):
            raise RequestError(f"none of its files is in {folder}: it stays where it is")
        torrent.moved = asyncio.get_running_loop().create_future()
        torrent.handle.move_storage(folder, lt.move_flags_t.reset_save_path)
        await answered(torrent.moved, "cannot look in that folder")
        if torrent.info is not None:
            torrent.recheck()
        await self._library.records.put_with_resume(torrent, folder=folder, folder_when_done="")
        self._library.tell_done(torrent)


async def _check_move(torrent: Torrent, folder: str) -> None:
    """Raises RequestError."""
    if torrent.is_moving:
        raise RequestError("the torrent is being moved already")
    if torrent.is_missing:
        raise RequestError("its files are gone: set its location to where they are")
    if folder != torrent.record.folder and (there := await asyncio.to_thread(_first_there, torrent, folder)):
        raise RequestError(f"{there} is there already, and is not replaced: move it away, or look for the files there")


def _first_there(torrent: Torrent, folder: str) -> str:
    """Return a path in a folder that a file of the torrent is to have and something has; empty if there is none."""
    paths = (os.path.join(folder, torrent.file_path(index)) for index in torrent.file_indexes())
    return next(filter(os.path.lexists, paths), "")


def _leave(folder: str) -> None:
    """Remove the folder that an incomplete torrent had, if nothing is left in it."""
    with contextlib.suppress(OSError):
        os.rmdir(folder)


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


def _is_any_there(torrent: Torrent, folder: str) -> bool:
    files = (Part(os.path.join(folder, torrent.file_path(index)), 0) for index in torrent.file_indexes())
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
