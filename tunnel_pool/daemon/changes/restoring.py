"""Restores the torrents that were kept, with a stand-in for each that can't be read."""

import time
from typing import NamedTuple

import libtorrent as lt

from tunnel_pool.daemon.record import Record, new_tracker_key
from tunnel_pool.daemon.storage.store import StoredTorrent
from tunnel_pool.daemon.torrents.records import Records
from tunnel_pool.overlay.ground.config import MAX_HOPS
from tunnel_pool.torrent.metainfo import name_of, parse_link, read_resume

OF_RECORD = "what was kept of it was damaged: say its hops, labels and folder again, and start it"
OF_RESUME = "what was kept of it was damaged: add its torrent file again, or start it to have it found by its infohash"


class Kept(NamedTuple):
    record: Record
    parameters: lt.add_torrent_params
    damage: str  # what its owner is told when some of it could not be read


async def restored(records: Records, folder: str | None) -> list[Kept]:
    """Restore the settings; return the torrents that were kept, in their order.

    A `folder` that is named replaces the one that a client has set. Raises StoreError.
    """
    stored = await records.restore(folder)
    torrents = [await _mended(records, each, position) for position, each in enumerate(stored)]
    return [torrent for torrent in torrents if torrent is not None]


async def _mended(records: Records, stored: StoredTorrent, position: int) -> Kept | None:
    """Return a torrent, the unreadable half of which is replaced; None when its infohash is none.

    Nobody knows any more how many hops a torrent has whose record can't be read: it gets the most there are.
    """
    parameters, damage = _parameters(stored), ""
    if stored.record is None or parameters is None:
        await records.set_aside(stored.infohash)
    if parameters is None:
        damage = OF_RESUME
        if (parameters := parse_link(stored.infohash)) is None:
            return None
    if (record := stored.record) is None:
        damage = OF_RECORD
        record = Record(
            infohash=stored.infohash,
            number=await records.new_number(),
            hops=MAX_HOPS,
            name=name_of(parameters) or stored.infohash,
            folder=parameters.save_path or records.settings.folder,
            position=position,
            added_s=time.time(),
            stopped=True,
            tracker_key=new_tracker_key(),
        )
        await records.add(record, parameters)
    return Kept(record, parameters, damage)


def _parameters(stored: StoredTorrent) -> lt.add_torrent_params | None:
    """Return what libtorrent is given of a torrent, None when it can't be read."""
    try:
        return read_resume(stored.resume)
    except (RuntimeError, TypeError):
        return None
