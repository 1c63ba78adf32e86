"""Keeps the torrents' records and resume data: each change is on the disk before it holds."""

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

import libtorrent as lt
import msgspec

from tunnel_pool.daemon.record import Record, new_tracker_key
from tunnel_pool.daemon.storage import disk
from tunnel_pool.daemon.storage.settings import Settings, settings_of
from tunnel_pool.daemon.storage.store import Deletion, Store, StoredTorrent, StoreError
from tunnel_pool.daemon.torrents.torrent import Torrent
from tunnel_pool.torrent.metainfo import read_resume

RESUME_TIMEOUT_S = 10.0
MOST_LEFT_IN_ALL = 10_000  # files of removed torrents that are remembered, and such torrents


class Records:
    """Keeps the records and resume data of `torrents`, and a client's settings.

    Whoever changes a record holds `changing`.
    """

    def __init__(self, store: Store, torrents: Mapping[str, Torrent], folder: str) -> None:
        """`folder` is where torrents go until somebody says otherwise."""
        self.settings = Settings(folder=folder)
        self.changing = asyncio.Lock()
        self._store = store
        self.torrents = torrents
        self._next_number = 1
        self._left: dict[str, disk.Left] = {}  # files that removed torrents have left, by infohash

    async def restore(self, folder: str | None) -> list[StoredTorrent]:
        """Restore settings and the next number; return the torrents that were kept, in their order. Raises StoreError.

        A `folder` that is named replaces the one that a client has set.
        """
        if (kept := await self._store.setting("session")) is not None:
            self.settings = settings_of(kept) or self.settings
        if folder is not None:
            self.settings = msgspec.structs.replace(self.settings, folder=folder)
        if (number := await self._store.setting("next number")) is not None:
            self._next_number = int(number) if number.isdigit() else 1
        if (left := await self._store.setting("left")) is not None:
            with contextlib.suppress(msgspec.DecodeError):
                self._left = msgspec.json.decode(left, type=dict[str, disk.Left])
        stored = await self._store.torrents()
        records = [kept.record for kept in stored if kept.record is not None]
        self._next_number = max([self._next_number, *(record.number + 1 for record in records)])
        return sorted(stored, key=lambda kept: math.inf if kept.record is None else kept.record.position)

    @property
    def were_restored(self) -> bool:
        """Return whether they are those of a backup."""
        return self._store.was_restored

    async def note(self, name: str) -> bytes | None:
        """Return what was kept under a name beside the torrents. Raises StoreError."""
        return await self._store.setting(name)

    async def keep_note(self, name: str, value: bytes) -> None:
        """Keep something under a name beside the torrents. Raises StoreError."""
        await self._store.set_setting(name, value)

    async def set_aside(self, infohash: str) -> None:
        """Keep a copy of what can't be read of a torrent. Raises StoreError."""
        await self._store.set_aside(infohash)

    async def back_up(self) -> None:
        """Make a backup of all that is kept, if anything was changed since the last. Raises StoreError."""
        await self._store.back_up()

    async def choose_keys(self, records: Iterable[Record]) -> None:
        """Give those a key for trackers that have none, as they were kept before there were any. Raises StoreError."""
        without = [record for record in records if not record.tracker_key]
        for record in without:
            record.tracker_key = new_tracker_key()
        if without:
            await self._store.put_records(without)

    async def new_number(self) -> int:
        """Return a number by which remote clients name a torrent; none is given twice. Raises StoreError."""
        number = self._next_number
        self._next_number += 1
        await self._store.set_setting("next number", str(self._next_number).encode())
        return number

    async def edit_settings(self, edit: Callable[[Settings], Settings]) -> None:
        """Change the settings, as nothing else does meanwhile. Raises StoreError, and what `edit` does."""
        async with self.changing:
            settings = edit(self.settings)
            await self._store.set_setting("session", msgspec.json.encode(settings))
            self.settings = settings

    async def add(self, record: Record, parameters: lt.add_torrent_params) -> None:
        """Keep a torrent that is to be opened, or one in another place than it was. Raises StoreError."""
        resume = lt.write_resume_data_buf(parameters)
        try:
            read_resume(resume)
        except RuntimeError as error:  # the torrent would be gone after a restart
            raise StoreError(f"what is to be kept of {record.name} can't be read back: {error}") from None
        await self._store.put(record, resume)

    async def remove(self, infohashes: Iterable[str], deletions: Sequence[Deletion] = ()) -> None:
        """Forget torrents, and keep which files are to be deleted for them. Raises StoreError."""
        await self._store.remove(list(infohashes), list(deletions))

    async def leave(self, left: Mapping[str, disk.Left]) -> None:
        """Keep which files stay of torrents that are removed, for when these are added again. Raises StoreError."""
        kept = {**{name: files for name, files in self._left.items() if name not in left}, **left}
        self._left = dict(_newest(kept))
        await self._store.set_setting("left", msgspec.json.encode(self._left))

    def left_by(self, infohash: str) -> disk.Left:
        """Return the files that torrents of this infohash have left."""
        return self._left.get(infohash, {})

    async def deletions(self) -> list[Deletion]:
        """Return the files that are still to be deleted. Raises StoreError."""
        return await self._store.deletions()

    async def deleted(self, deletions: Sequence[Deletion]) -> None:
        """Forget files that were to be deleted. Raises StoreError."""
        await self._store.deleted(list(deletions))

    def has(self, torrent: Torrent) -> bool:
        """Return whether the torrent is still there, and was not removed meanwhile."""
        return self.torrents.get(torrent.record.infohash) is torrent

    def is_here(self, torrent: Torrent) -> bool:
        """Return whether the torrent is still there and a session has it, so that its handle can be asked."""
        return self.has(torrent) and not torrent.is_between_sessions

    # Changes of records

    async def put(self, torrent: Torrent, **changes: object) -> None:
        """Change its record; call it with `changing` held. Raises StoreError: nothing is changed then."""
        await self.put_each([(torrent, changes)])

    async def put_each(self, changes: Iterable[tuple[Torrent, dict[str, object]]]) -> None:
        """Change the records of several torrents, as `put` does: all of them, or none."""
        changed = [(each, msgspec.structs.replace(each.record, **new)) for each, new in changes if self.has(each)]
        if changed:
            await self._store.put_records([record for _, record in changed])
        for torrent, record in changed:
            torrent.put(record)

    async def put_with_resume(self, torrent: Torrent, with_peers: bool = True, **changes: object) -> bytes:
        """Change its record together with its resume data, which it returns. Raises StoreError."""
        record = msgspec.structs.replace(torrent.record, **{"edited_s": time.time(), **changes})
        resume = await self.resume_data(torrent)
        if not with_peers:
            parameters = read_resume(resume)
            parameters.peers = parameters.banned_peers = []
            resume = lt.write_resume_data_buf(parameters)
        torrent.kept_with_resume()
        if not self.has(torrent):
            raise StoreError("the torrent is gone")
        await self._store.put(record, resume)
        torrent.put(record)
        return resume

    async def save_resume(self, torrents: Iterable[Torrent]) -> None:
        """Write the resume data of those torrents that are in a libtorrent session. Raises StoreError."""
        here = [torrent for torrent in torrents if self.has(torrent) and not torrent.is_between_sessions]
        asked = [(torrent.handle, torrent.saved.puts) for torrent in here]
        kept = [torrent.summary.kept for torrent in here]
        answers = await asyncio.gather(*(self.resume_data(torrent) for torrent in here), return_exceptions=True)
        saved = [
            (torrent, mark, answer)
            for torrent, before, mark, answer in zip(here, asked, kept, answers, strict=True)
            # What was changed meanwhile has been kept with the change, and is newer.
            if isinstance(answer, bytes) and self.has(torrent) and (torrent.handle, torrent.saved.puts) == before
        ]
        await self._store.put_resumes([(torrent.record.infohash, answer) for torrent, _, answer in saved])
        for torrent, mark, _ in saved:
            torrent.was_saved(() if torrent.is_checking or torrent.is_verifying else mark)
        for torrent, answer in zip(here, answers, strict=True):
            if isinstance(answer, BaseException) and self.has(torrent) and not torrent.is_between_sessions:
                raise answer

    async def resume_data(self, torrent: Torrent) -> bytes:
        """Return the resume data as libtorrent has it now. Raises StoreError.

        It names pieces that libtorrent has found right and not written yet. These are written meanwhile: a kill would
        leave zeros in their place, which the next start would believe.
        """
        try:
            flags = lt.torrent_handle.save_info_dict | lt.torrent_handle.flush_disk_cache
            torrent.handle.save_resume_data(flags)
        except RuntimeError:
            raise StoreError("the torrent is gone") from None
        future = torrent.waiting.resume_data()
        try:
            async with asyncio.timeout(RESUME_TIMEOUT_S):
                return await asyncio.shield(future)  # its place in the row is kept: each request has one answer
        except TimeoutError:
            raise StoreError("libtorrent does not say where a torrent stands") from None

    # The order of the queue

    def order(self) -> list[str]:
        """Return the infohashes of all torrents, as the queue has them."""
        return [t.record.infohash for t in sorted(self.torrents.values(), key=lambda t: t.record.position)]

    async def put_order(self, order: Iterable[str]) -> None:
        """Have the queue in this order; call it with `changing` held. Raises StoreError."""
        ordered = enumerate(self.torrents[infohash] for infohash in order)
        await self.put_each(
            [(torrent, {"position": place}) for place, torrent in ordered if torrent.record.position != place]
        )


def _newest(left: Mapping[str, disk.Left]) -> Sequence[tuple[str, disk.Left]]:
    """Return those that were removed last, as far as MOST_LEFT_IN_ALL goes."""
    newest: list[tuple[str, disk.Left]] = []
    room = MOST_LEFT_IN_ALL
    for infohash in reversed(list(left)):
        room -= 1 + len(left[infohash])
        if room < 0:
            break
        newest.append((infohash, left[infohash]))
    return newest[::-1]
