"""At the start of the daemon: the torrents that were kept, and what was cut short of them."""

import asyncio
import contextlib
import logging
from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

import libtorrent as lt

from tunnel_pool.daemon.changes.moves import Moves
from tunnel_pool.daemon.changes.restoring import Kept, restored
from tunnel_pool.daemon.errors import RequestError
from tunnel_pool.daemon.record import Record
from tunnel_pool.daemon.rules.life import Event
from tunnel_pool.daemon.rules.tiers import tiers_in
from tunnel_pool.daemon.storage import disk
from tunnel_pool.daemon.storage.presence import Presence, kept_parts, not_found, presence_of
from tunnel_pool.daemon.storage.store import Deletion
from tunnel_pool.daemon.torrents.library import Library
from tunnel_pool.daemon.torrents.paths import those_there
from tunnel_pool.daemon.torrents.torrent import Torrent
from tunnel_pool.torrent.leftovers import take_leftovers

logger = logging.getLogger(__name__)


class Interrupted(NamedTuple):
    """A download that a kill has cut short, and what was saved of it."""

    torrent: Torrent
    parameters: lt.add_torrent_params


async def load(library: Library, moves: Moves, folder: str | None, was_ended: bool) -> list[Interrupted]:
    """Restore the settings and open each torrent that was kept; one that can't be read stands still.

    A `folder` that is named replaces the one that a client has set. `was_ended` says that the run before this one was
    not killed: else the downloads that it has cut short are returned. Raises StoreError.
    """
    interrupted = []
    torrents = await restored(library.records, folder)
    library.apply_settings()
    await _delete_given_up(library, torrents)
    await library.records.choose_keys(kept.record for kept in torrents)
    folders = {folder for record, _, _ in torrents for folder in (record.folder, record.final_folder)}
    await library.paths.learn(folders)
    for record, parameters, damage in torrents:
        try:
            _take_trackers(record, parameters)
            if parameters.ti is None and not record.folder_when_done:  # of a version that had them in the folder itself
                await moves.place(record, parameters, {})
            error = await _finish_move(library, record, parameters) if record.moving_to else damage
            is_missing = await _is_missing(library, record, parameters, was_ended)
            torrent = library.open(record, parameters, is_missing)
            if not is_missing:  # a kill may have come before it was seen that some were not written
                record.written = await asyncio.to_thread(those_there, torrent)
            if error:
                torrent.happened(Event.FAILED, error)
            if not (was_ended or is_missing or record.done_s or record.taking_over or record.untouched):
                interrupted.append(Interrupted(torrent, parameters))
            if torrent.info is not None and record.is_incoming:
                torrent.waiting.expect_arrival()
                library.background.spawn(moves.settle(torrent))
        except Exception as why:
            logger.error("A torrent can't be loaded, and stays as it is: %s", why)
    for torrent in library.torrents.values():
        if (
            not torrent.is_missing
            and not torrent.summary.total_done
            and library.places.is_gone(torrent.record.owned_folder)
        ):
            torrent.happened(Event.LOST, torrent.error or not_found(torrent.record.folder))
    library.scheduler.tick()
    return interrupted


async def take_leftovers_of(library: Library, interrupted: Iterable[Interrupted]) -> None:
    """Give libtorrent the pieces that were written since they were saved last: at most 20 s of each download."""
    for torrent, parameters in interrupted:
        if library.records.is_here(torrent) and not torrent.is_checking:
            goes_on = partial(_is_in_place, library, torrent, torrent.handle, torrent.record.folder)
            with contextlib.suppress(RuntimeError):  # it is removed
                await take_leftovers(torrent.handle, parameters, goes_on)


def _is_in_place(library: Library, torrent: Torrent, handle: lt.torrent_handle, folder: str) -> bool:
    """Return whether a torrent's files are its own, and where they were."""
    record = torrent.record
    is_moved = record.folder != folder or record.moving_to or record.taking_over
    return library.records.is_here(torrent) and torrent.handle == handle and not is_moved


def _take_trackers(record: Record, parameters: lt.add_torrent_params) -> None:
    """Note the trackers and web seeds of a torrent that was kept by a version that had them in resume data alone."""
    if record.knows_trackers:
        return
    with contextlib.suppress(UnicodeError, RequestError):  # libtorrent's Python can't get at what is no text
        record.trackers = tiers_in(parameters)
        record.web_seeds = list(parameters.url_seeds)
    record.knows_trackers = True


async def _is_missing(library: Library, record: Record, parameters: lt.add_torrent_params, was_ended: bool) -> bool:
    """Return whether a torrent's files are gone; have libtorrent check them where they can't be as it left them."""
    if await files_are_gone(record, parameters):
        return True
    if not was_ended and disk.has_parts(record.folder, parameters):
        forget_pieces(parameters)
    elif library.records.were_restored and not record.done_s:
        forget_pieces(parameters)  # it has had more since the backup
    return False


async def files_are_gone(record: Record, parameters: lt.add_torrent_params) -> bool:
    """Return whether a torrent's files are gone; have those checked that are shorter than they were."""
    presence = await asyncio.to_thread(presence_of, kept_parts(record, parameters))
    if presence is Presence.GONE:
        logger.warning("The files of a torrent are gone: it stands still until they are back")
        return True
    if presence is Presence.SHORT:
        logger.warning("Files of a torrent are missing or shorter than they were: what is there is checked")
        forget_pieces(parameters)
    return False


def forget_pieces(parameters: lt.add_torrent_params) -> None:
    """Have libtorrent check a torrent's files instead of believing its resume data.

    libtorrent writes the header of a parts file, which says what is where in it, only when it closes or moves that
    file (libtorrent's src/part_file.cpp). After `kill -9` the header may be older than the resume data: pieces that
    the torrent is said to have are missing, or others are in their place.
    """
    parameters.have_pieces, parameters.verified_pieces, parameters.unfinished_pieces = [], [], {}
    parameters.flags &= ~lt.torrent_flags.seed_mode


async def _finish_move(library: Library, record: Record, parameters: lt.add_torrent_params) -> str:
    """End a move that was cut short, before libtorrent hears of the torrent; return the error, or nothing."""
    names = disk.names_of(parameters)
    try:
        await asyncio.to_thread(disk.finish_move, names, record.folder, record.moving_to)
    except OSError as why:
        logger.error("A move that was cut short can't be ended: %s", why.strerror)
        in_the_way = f" ({why.filename})" if isinstance(why, FileExistsError) else ""
        return f"its move to another folder was cut short, and can't be ended: {why.strerror}{in_the_way}"
    record.folder, record.moving_to, record.folder_when_done = record.moving_to, "", ""
    parameters.save_path = record.folder
    await library.records.add(record, parameters)
    return ""


async def _delete_given_up(library: Library, torrents: Iterable[Kept]) -> None:
    """Delete what could not be deleted before; files that a torrent has by now are its own."""
    deletions = await library.records.deletions()
    if not deletions:
        return
    kept: list[Deletion] = []
    for record, parameters, damage in torrents:
        if damage:
            logger.error("A torrent can't be read: what is left of others stays, as it may be its own")
            return
        names = disk.names_of(parameters)
        for folder in filter(None, (record.folder, record.moving_to)):
            kept += disk.files_in(folder, names)
    left = await asyncio.to_thread(disk.without, deletions, kept)
    await asyncio.to_thread(disk.delete, left)
    await library.records.deleted(deletions)
