"""Changes that the owner of the torrents asks for. Once a method returns, its change survives `kill -9`."""

import asyncio
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import libtorrent as lt

from tunnel_pool.daemon.errors import RequestError
from tunnel_pool.daemon.rules.hops import HopRules, check_labels, hops_of_labels, other_labels
from tunnel_pool.daemon.rules.paths import Entry
from tunnel_pool.daemon.rules.queue import moved
from tunnel_pool.daemon.rules.renames import clashes, renames_of
from tunnel_pool.daemon.rules.selection import newly_wanted
from tunnel_pool.daemon.storage import disk
from tunnel_pool.daemon.storage.record import Layout, LimitMode, Record, new_tracker_key
from tunnel_pool.daemon.storage.settings import Settings
from tunnel_pool.daemon.storage.store import Deletion
from tunnel_pool.daemon.torrents.hop_changes import REMOVE_TIMEOUT_S, HopChanges
from tunnel_pool.daemon.torrents.library import Library
from tunnel_pool.daemon.torrents.loading import files_are_gone
from tunnel_pool.daemon.torrents.moves import Moves, absolute, rename_file
from tunnel_pool.daemon.torrents.torrent import Torrent
from tunnel_pool.torrent.anonymous_torrents import allowed_trackers, left_out_trackers, strip
from tunnel_pool.torrent.isolation import PLAIN
from tunnel_pool.torrent.metainfo import infohash_of, name_of

MAX_TORRENTS = 1 << 16

logger = logging.getLogger(__name__)


@contextmanager
def refused() -> Iterator[None]:
    """Turn the ValueError of a wrong hop count or label into a RequestError."""
    try:
        yield
    except ValueError as error:
        raise RequestError(str(error)) from None


@dataclass(frozen=True, slots=True)
class AddRequest:
    """Says how a torrent is to be added; None leaves it to rules and settings."""

    folder: str | None = None
    hops: int | None = None
    labels: Sequence[str] = ()
    stopped: bool | None = None
    file_priorities: Sequence[int] = ()
    renamed: Mapping[int, str] = field(default_factory=dict)  # paths of files, by their indexes
    layout: Layout = Layout.ORIGINAL
    others: dict[str, Any] = field(default_factory=dict)  # fields of the record


class Changes:
    def __init__(self, library: Library, rules: HopRules, folders_by_label: dict[str, str] | None = None) -> None:
        self._library = library
        self.rules = rules
        self.folders_by_label = folders_by_label or {}
        self.hops = HopChanges(library)
        self.moves = Moves(library)
        self._deleting: set[asyncio.Task[None]] = set()

    def categories(self) -> dict[str, str]:
        """Return the labels that are categories, and the folder of each; it is empty where the usual one holds."""
        return {**self.folders_by_label, **self._library.records.settings.categories}

    # In and out

    async def add(self, parameters: lt.add_torrent_params, request: AddRequest) -> tuple[Torrent, bool]:
        """Return the torrent, and whether it was there before. Raises RequestError and StoreError."""
        library = self._library
        async with library.records.changing:
            if self._deleting:  # otherwise it would delete what is added again
                await asyncio.wait(self._deleting)
            if (known := library.find_by_hashes(parameters.info_hashes)) is not None:
                self._check_duplicate(known, request)
                self._complete(known, parameters)
                return known, True
            if len(library.torrents) >= MAX_TORRENTS:
                raise RequestError(f"{MAX_TORRENTS} torrents are the most")
            record = await self._record_of(parameters, request)
            await self.moves.place(record, parameters, request.renamed)
            parameters.save_path = record.folder
            await library.records.add(record, parameters)
            is_missing = library.places.is_gone(record.folder) or await files_are_gone(record, parameters)
            try:
                torrent = library.open(record, parameters, is_missing)
            except (RuntimeError, OSError) as error:
                await library.records.remove([record.infohash])
                raise RequestError(f"libtorrent refuses the torrent: {error}") from None
            with refused():
                if request.hops is not None or hops_of_labels(request.labels) is not None:
                    torrent.held_until_s = 0.0
        library.scheduler.tick()
        return torrent, False

    @staticmethod
    def _check_duplicate(known: Torrent, request: AddRequest) -> None:
        """Refuse a request for more hops than the torrent that is there has. Raises RequestError."""
        with refused():
            asked = request.hops if request.hops is not None else hops_of_labels(request.labels)
        if asked is not None and asked > known.record.hops:
            raise RequestError(
                f"the torrent is there already, with {known.record.hops} hops: raise them by `tunnel-pool set "
                f"{known.record.number} --hops {asked}`, or by the label hops:{asked}"
            )

    def _complete(self, known: Torrent, parameters: lt.add_torrent_params) -> None:
        """Give a torrent that lacks its metadata what this torrent file says of it."""
        if known.info is not None or parameters.ti is None or known.is_between_sessions:
            return
        known.handle.set_metadata(parameters.ti.info_section())
        if known.record.hops != PLAIN:
            strip(parameters, self._library.sessions.tracker_rules)
        tiers = list(parameters.tracker_tiers) + [0] * len(parameters.trackers)
        for url, tier in zip(parameters.trackers, tiers, strict=False):
            known.handle.add_tracker({"url": url, "tier": tier})
        known.error = ""

    async def _record_of(self, parameters: lt.add_torrent_params, request: AddRequest) -> Record:
        library = self._library
        labels = other_labels(request.labels)
        folders = self.categories()
        by_label = (folders[label] for label in labels if folders.get(label))
        folder = absolute(request.folder or next(by_label, library.records.settings.folder))
        with refused():
            check_labels(labels)
            hops = self.rules.hops(request.hops, request.labels, folder)
        infohash = infohash_of(parameters)
        fields = {"peer_limit": library.records.settings.peer_limit_per_torrent, **request.others}
        return Record(
            infohash=infohash,
            number=await library.records.new_number(),
            hops=hops,
            name=name_of(parameters) or infohash,
            folder=folder,
            position=len(library.torrents),
            added_s=parameters.added_time or time.time(),
            done_s=float(parameters.completed_time),
            labels=labels,
            peers=parameters.peers,
            stopped=not library.records.settings.start_added_torrents if request.stopped is None else request.stopped,
            file_priorities=list(request.file_priorities) or list(parameters.file_priorities),
            tracker_key=new_tracker_key(),
            layout=request.layout,
            **fields,
        )

    async def remove(self, torrents: Iterable[Torrent], delete_files: bool) -> None:
        """Remove torrents: they are gone when it returns, their files soon after. Raises StoreError."""
        library = self._library
        async with library.records.changing:
            torrents = [torrent for torrent in torrents if library.records.has(torrent)]
            # A thread looks at every file of every torrent. `changing` keeps the torrents as they are meanwhile.
            deletions = await asyncio.to_thread(self._files_only_of, torrents) if delete_files else []
            await library.records.remove([torrent.record.infohash for torrent in torrents], deletions)
            removals = [library.close(torrent) for torrent in torrents]
            await library.records.put_order(library.records.order())
        task = asyncio.get_running_loop().create_task(self._delete_when_free(removals, deletions))
        self._deleting.add(task)
        task.add_done_callback(self._deleting.discard)
        library.scheduler.tick()

    def _files_only_of(self, torrents: Iterable[Torrent]) -> list[Deletion]:
        """Return their files, without those that other torrents have, too."""
        infohashes = {torrent.record.infohash for torrent in torrents}
        kept: list[Deletion] = []
        own: list[Deletion] = []
        for torrent in self._library.torrents.values():
            if torrent.record.infohash not in infohashes:
                kept.extend(torrent_files(torrent))
            elif not torrent.record.taking_over:  # nobody knows yet whose they are
                own.extend(torrent_files(torrent))
        return disk.without(own, kept)

    async def _delete_when_free(self, removals: Sequence["asyncio.Future[None]"], deletions: list[Deletion]) -> None:
        if removals:
            await asyncio.wait(removals, timeout=REMOVE_TIMEOUT_S)
        if deletions:
            gone = await asyncio.to_thread(disk.delete, deletions)
            self._library.background.spawn(self._library.records.deleted(gone))

    # While they are there

    async def change(
        self, torrents: Iterable[Torrent], priorities: Callable[[Torrent], list[int]] | None = None, **changes: Any
    ) -> None:
        """Change fields of their records; `priorities` says those of its files. Raises RequestError and StoreError."""
        library = self._library
        if "labels" in changes:
            for torrent in (torrents := list(torrents)):
                with refused():
                    check_labels(label for label in changes["labels"] if label not in torrent.record.labels)
            for torrent in torrents:
                await self.hops.regroup(torrent, changes["labels"])
        async with library.records.changing:
            edits = []
            for torrent in filter(library.records.has, torrents):
                edit = {**changes, "edited_s": time.time()}
                if priorities is not None and not torrent.is_between_sessions:
                    edit |= await self._selection_of(torrent, priorities(torrent))
                edits.append((torrent, edit))
            await library.records.put_each(edits)
            for torrent, edit in edits:
                if torrent.is_between_sessions:  # libtorrent refused it
                    continue
                if "file_priorities" in edit:
                    torrent.handle.prioritize_files(edit["file_priorities"])
                    torrent.selections += torrent.layout is not None
                torrent.apply_limits()
        library.scheduler.tick()

    async def _selection_of(self, torrent: Torrent, priorities: list[int]) -> dict[str, Any]:
        """Return the fields of its record that say which files are wanted from now on. Raises RequestError."""
        files = torrent.layout.num_files() if torrent.layout is not None else 0
        wanted = newly_wanted(torrent.record.file_priorities, priorities, files)
        if wanted:
            await self._library.paths.check_wanted(torrent, wanted)
        return {"file_priorities": priorities, "exporting": sorted({*torrent.record.exporting, *wanted})}

    async def start(self, torrents: Iterable[Torrent], now: bool = False) -> None:
        """Start torrents; with `now`, past the queue. Raises StoreError."""
        torrents = list(torrents)
        library = self._library
        for torrent in torrents:
            if not torrent.is_missing:
                if torrent.error and torrent.record.taking_over and library.records.is_here(torrent):
                    torrent.recheck()
                torrent.error = ""
            torrent.active_s = time.monotonic()
            if now:
                torrent.held_until_s = 0.0
        # As in Transmission: who starts one that has given all wants it to give more.
        for torrent in torrents:
            if torrent.record.stopped_by_limit and (reached := library.scheduler.reached(torrent)):
                lifted: dict[str, Any] = dict.fromkeys(reached, LimitMode.UNLIMITED)
                await self.change([torrent], **lifted)
        await self.change(torrents, stopped=False, started_now=now, stopped_by_limit=False)

    async def stop(self, torrents: Iterable[Torrent]) -> None:
        """Raises StoreError."""
        await self.change(torrents, stopped=True, started_now=False)

    def verify(self, torrents: Iterable[Torrent]) -> None:
        """Check the files of those torrents whose metadata is known, and that stay where they are."""
        for torrent in torrents:
            if torrent.info is not None and not torrent.record.moving_to and self._library.records.is_here(torrent):
                torrent.recheck()
        self._library.scheduler.tick()

    def reannounce(self, torrents: Iterable[Torrent]) -> None:
        for torrent in filter(self._library.records.is_here, torrents):
            torrent.handle.force_reannounce()
            torrent.handle.force_dht_announce()

    async def set_trackers(self, torrent: Torrent, tiers: Sequence[Sequence[str]]) -> None:
        """Replace the trackers; with hops, those that the tunnels don't carry are left out. Raises StoreError."""
        if torrent.record.hops != PLAIN:
            rules = self._library.sessions.tracker_rules
            allowed = allowed_trackers(tiers, rules)
            if left_out := sum(map(len, tiers)) - sum(map(len, allowed)):
                logger.warning("%s", left_out_trackers(left_out, rules))
            tiers = allowed
        entries = []
        for tier, urls in enumerate(tiers):
            for url in urls:
                entry = lt.announce_entry(url)
                entry.tier = tier
                entries.append(entry)
        async with self._library.records.changing:
            if not self._library.records.has(torrent):
                return
            torrent.handle.replace_trackers(entries)
            await self._library.records.put_with_resume(torrent)

    async def rename(self, torrent: Torrent, path: str, name: str) -> None:
        """Rename a file or folder, as libtransmission's tr_torrentRenamePath. Raises RequestError and StoreError."""
        if torrent.layout is None:
            raise RequestError("the torrent's files are not known yet")
        if not name or "/" in name or name in (".", ".."):
            raise RequestError("that can't be the name of a file")
        library = self._library
        async with library.records.changing:
            if torrent.record.moving_to or not library.records.is_here(torrent):
                raise RequestError("the torrent is being moved")
            paths = {index: torrent.file_path(index) for index in torrent.file_indexes()}
            renames = renames_of(paths, path, name)
            if not renames:
                raise RequestError("the torrent has no such file or folder")
            new_places = [os.path.join(torrent.record.folder, new) for index, new in renames if new != paths[index]]
            if clashes(paths, dict(renames)) or any(map(os.path.lexists, new_places)):
                raise RequestError("cannot rename: there is something of that name")
            layout = torrent.layout
            entries = [Entry(new, layout.file_size(index)) for index, new in renames if new != paths[index]]
            await library.paths.check(torrent.record.infohash, torrent.record.folder, entries, may_share=False)
            for index, new in renames:
                await rename_file(torrent, index, new)
            await asyncio.to_thread(_leave_folders, torrent.record.folder, list(paths.values()))
            whole = "/" not in path and path == torrent.record.name
            torrent.update(torrent.handle.status())
            renamed: dict[str, Any] = {"name": name} if whole else {}
            await library.records.put_with_resume(torrent, **renamed)
            library.paths.note(torrent)

    async def queue_move(self, torrents: Iterable[Torrent], where: str) -> None:
        """Move torrents to the `top`, `up`, `down` or to the `bottom`. Raises StoreError."""
        async with self._library.records.changing:
            which = {torrent.record.infohash for torrent in torrents}
            await self._library.records.put_order(moved(self._library.records.order(), which, where))
        self._library.scheduler.tick()

    async def queue_to(self, torrent: Torrent, position: int) -> None:
        """Raises StoreError."""
        async with self._library.records.changing:
            order = [infohash for infohash in self._library.records.order() if infohash != torrent.record.infohash]
            order.insert(min(max(0, position), len(order)), torrent.record.infohash)
            await self._library.records.put_order(order)
        self._library.scheduler.tick()

    # For all

    async def edit_settings(self, edit: Callable[[Settings], Settings]) -> None:
        """Change the settings, as nothing else does meanwhile. Raises StoreError, and what `edit` does."""
        await self._library.records.edit_settings(edit)
        self._library.apply_settings()
        self._library.scheduler.tick()


def _leave_folders(folder: str, names: Iterable[str]) -> None:
    """Remove the folders that files were in, where nothing is left in them."""
    for name in names:
        disk.remove_empty_folders(Path(folder) / name, Path(folder))


def torrent_files(torrent: Torrent) -> list[Deletion]:
    """Return the torrent's files, in its folder and in the folder that it is being moved to."""
    names = [torrent.file_path(index) for index in torrent.file_indexes()]
    names.append(disk.parts_name(torrent.status.info_hashes))
    folders = filter(None, (torrent.record.folder, torrent.record.moving_to))
    found = [file for folder in folders for file in disk.files_in(folder, names)]
    own = torrent.record.folder
    if not torrent.record.folder_when_done:
        return found
    # Of an incomplete torrent, its own folder goes as well.
    return [Deletion(file.path, os.path.dirname(own)) if file.root == own else file for file in found]
