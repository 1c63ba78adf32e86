"""At the start of the daemon: the torrents that were kept, and what was cut short of them."""

import asyncio
import logging
from collections.abc import Iterable

import libtorrent as lt

from tunnel_pool.daemon.storage import disk
from tunnel_pool.daemon.storage.record import Record
from tunnel_pool.daemon.storage.store import Deletion, StoredTorrent
from tunnel_pool.daemon.torrents.library import Library

logger = logging.getLogger(__name__)


async def load(library: Library, folder: str | None) -> None:
    """Restore the settings and open each torrent that was kept; one that can't be read is left as it is.

    A `folder` that is named replaces the one that a client has set. Raises StoreError.
    """
    torrents = await library.records.restore(folder)
    await _delete_given_up(library, torrents)
    for record, resume in torrents:
        try:
            parameters = lt.read_resume_data(resume)
            if record.moving_to:
                await _finish_move(library, record, parameters)
            else:
                library.open(record, parameters)
        except Exception as error:
            logger.error("A torrent can't be loaded, and stays as it is: %s", error)
    library.scheduler.tick()


async def _finish_move(library: Library, record: Record, parameters: lt.add_torrent_params) -> None:
    """End a move that was cut short, before libtorrent hears of the torrent."""
    names, error = disk.names_of(parameters), ""
    try:
        await asyncio.to_thread(disk.finish_move, names, record.folder, record.moving_to)
    except OSError as why:
        logger.error("A move that was cut short can't be ended: %s", why.strerror)
        error = f"its move to another folder was cut short, and can't be ended: {why.strerror}"
    if not error:
        record.folder, record.moving_to = record.moving_to, ""
        parameters.save_path = record.folder
        await library.records.add(record, parameters)
    library.open(record, parameters).error = error


async def _delete_given_up(library: Library, torrents: Iterable[StoredTorrent]) -> None:
    """Delete what could not be deleted before; files that a torrent has by now are its own."""
    deletions = await library.records.deletions()
    if not deletions:
        return
    kept: list[Deletion] = []
    for record, resume in torrents:
        try:
            names = disk.names_of(lt.read_resume_data(resume))
        except RuntimeError:
            logger.error("A torrent can't be read: what is left of others stays, as it may be its own")
            return
        for folder in filter(None, (record.folder, record.moving_to)):
            kept += disk.files_in(folder, names)
    left = await asyncio.to_thread(disk.without, deletions, kept)
    await asyncio.to_thread(disk.delete, left)
    await library.records.deleted(deletions)
