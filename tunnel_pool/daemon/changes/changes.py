"""Changes that the owner of the torrents asks for. Once a method returns, its change survives `kill -9`."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence

import libtorrent as lt

from tunnel_pool.daemon.changes.edits import (
    AddPeers,
    AddRequest,
    Edit,
    Enqueue,
    Move,
    Reannounce,
    Remove,
    Rename,
    Requeue,
    Run,
    Select,
    SetHops,
    Verify,
)
from tunnel_pool.daemon.changes.hop_changes import HopChanges
from tunnel_pool.daemon.changes.loading import files_are_gone
from tunnel_pool.daemon.changes.moves import Moves, absolute
from tunnel_pool.daemon.changes.planning import Plan, fields_of, hops_after, last, refused
from tunnel_pool.daemon.changes.removals import Removals
from tunnel_pool.daemon.changes.renaming import check_rename, rename
from tunnel_pool.daemon.errors import RequestError
from tunnel_pool.daemon.record import LimitMode, Record, new_tracker_key
from tunnel_pool.daemon.rules.hops import HopRules, check_labels, hops_of_labels, other_labels
from tunnel_pool.daemon.rules.life import Event
from tunnel_pool.daemon.rules.queue import moved
from tunnel_pool.daemon.rules.selection import newly_wanted
from tunnel_pool.daemon.rules.tiers import merged, tiers_in
from tunnel_pool.daemon.storage.settings import Settings
from tunnel_pool.daemon.torrents.library import Library
from tunnel_pool.daemon.torrents.paths import given_up
from tunnel_pool.daemon.torrents.torrent import Torrent
from tunnel_pool.torrent.metainfo import infohash_of, name_of
from tunnel_pool.torrent.sessions.lost_peers import connect_anew

MAX_TORRENTS = 1 << 16
LEAVE_NOTHING = Verify, Reannounce, Requeue  # in a torrent's record that says when its owner edited it

logger = logging.getLogger(__name__)


class Changes:
    def __init__(self, library: Library, rules: HopRules, folders_by_label: dict[str, str] | None = None) -> None:
        self._library = library
        self.rules = rules
        self.folders_by_label = folders_by_label or {}
        self.hops = HopChanges(library)
        self.moves = Moves(library)
        self.removals = Removals(library)

    def categories(self) -> dict[str, str]:
        """Return the labels that are categories, and the folder of each; it is empty where the usual one holds."""
        return {**self.folders_by_label, **self._library.records.settings.categories}

    # In and out

    async def add(self, parameters: lt.add_torrent_params, request: AddRequest) -> tuple[Torrent, bool]:
        """Return the torrent, and whether it was there before. Raises RequestError and StoreError."""
        library = self._library
        async with library.records.changing:
            await self.removals.ended()  # otherwise they would delete what is added again
            if (known := library.find_by_hashes(parameters.info_hashes)) is not None:
                self._check_duplicate(known, request)
                await self._complete(known, parameters)
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
                    torrent.release()
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

    async def _complete(self, known: Torrent, parameters: lt.add_torrent_params) -> None:
        """Give a torrent that lacks its metadata what this torrent file says of it."""
        if known.info is not None or parameters.ti is None or known.is_between_sessions:
            return
        known.handle.set_metadata(parameters.ti.info_section())
        trackers = merged(known.record.trackers, tiers_in(parameters))
        web_seeds = [*dict.fromkeys([*known.record.web_seeds, *parameters.url_seeds])]
        await self._library.records.put(known, trackers=trackers, web_seeds=web_seeds)
        self._library.replace_trackers(known)
        known.happened(Event.FORGIVEN)

    async def _record_of(self, parameters: lt.add_torrent_params, request: AddRequest) -> Record:
        library = self._library
        labels = other_labels(request.labels)
        folders = self.categories()
        by_label = (folders[label] for label in labels if folders.get(label))
        folder = absolute(request.folder or next(by_label, library.records.settings.folder))
        with refused():
            check_labels(labels)
            hops = self.rules.hops(request.hops, request.labels, folder)
        self.hops.check_device(hops)
        infohash, is_known = infohash_of(parameters), parameters.ti is not None
        fields = {"peer_limit": library.records.settings.peer_limit_per_torrent, **request.others}
        return Record(
            infohash=infohash,
            number=await library.records.new_number(),
            hops=hops,
            name=name_of(parameters) or infohash,
            folder=folder,
            folder_when_done=absolute(request.folder_when_done) if request.folder_when_done else "",
            position=len(library.torrents),
            added_s=parameters.added_time or time.time(),
            done_s=float(parameters.completed_time),
            labels=labels,
            peers=parameters.peers,
            stopped=not library.records.settings.start_added_torrents if request.stopped is None else request.stopped,
            file_priorities=list(request.file_priorities) or list(parameters.file_priorities if is_known else ()),
            chosen_files=[] if is_known else [at for at, each in enumerate(parameters.file_priorities) if each],
            tracker_key=new_tracker_key(),
            layout=request.layout,
            trackers=tiers_in(parameters),
            knows_trackers=True,
            web_seeds=list(parameters.url_seeds),
            **fields,
        )

    # While they are there

    async def apply(self, torrents: Iterable[Torrent], *edits: Edit) -> str:
        """Make all of these edits to each of the torrents; a wrong one leaves all torrents as they are.

        What is changed is kept when this returns. Files of torrents that are removed are gone soon after.

        Return a sentence on what others know already of a torrent that gets hops, empty when they know nothing. Raises
        RequestError and StoreError.
        """
        return await asyncio.shield(self._apply(torrents, edits))  # whoever asks may hang up

    async def _apply(self, torrents: Iterable[Torrent], edits: Sequence[Edit]) -> str:
        torrents, records = list(torrents), self._library.records
        match edits:
            case [Remove(delete_files)]:
                await self.removals.remove(torrents, delete_files)
                return ""
        await self.moves.arrived(torrents)
        async with records.changing:
            plans = [await self._plan(each, edits) for each in torrents if records.has(each)]
            told = await self._carry_out(plans)
            if (requeue := last(edits, Requeue)) is not None:
                which = {torrent.record.infohash for torrent in torrents}
                await records.put_order(moved(records.order(), which, requeue.where))
        self._library.scheduler.tick()
        return told

    async def _plan(self, torrent: Torrent, edits: Sequence[Edit]) -> Plan:
        """Return what the edits make of a torrent, which stays as it is. Raises RequestError."""
        if last(edits, Remove) is not None:
            raise RequestError("a torrent that is removed can't be changed")
        is_kept = not all(isinstance(edit, LEAVE_NOTHING) for edit in edits)
        plan = Plan(torrent, edits, torrent.record.hops, {"edited_s": time.time()} if is_kept else {})
        for edit in edits:
            plan.fields |= await self._fields_of(torrent, edit)
        if (said := last(edits, SetHops)) is not None:
            plan.hops = hops_after(torrent.record, said)
        if (renaming := last(edits, Rename)) is not None:
            plan.renamed = await check_rename(self._library, torrent, renaming)
        plan.changes_session = self.hops.check(torrent, plan.hops, plan.fields.get("labels", torrent.record.labels))
        if (move := last(edits, Move)) is not None:
            await self.moves.check(torrent, move)
        return plan

    async def _fields_of(self, torrent: Torrent, edit: Edit) -> dict[str, object]:
        """Return the fields of its record that an edit sets. Raises RequestError."""
        match edit:
            case Select():
                return await self._selection_of(torrent, edit)
            case Run():
                return self._fields_of_start(torrent, edit)
            case _:
                return fields_of(torrent.record, edit)

    async def _carry_out(self, plans: Sequence[Plan]) -> str:
        """Return what others know already of the torrents that get hops."""
        records, told = self._library.records, {""}
        for plan in plans:  # what libtorrent may refuse comes first
            if plan.renamed is not None:
                await rename(self._library, plan.torrent, plan.renamed)
        for plan in plans:
            if plan.changes_session:
                told.add(await self.hops.carry_out(plan.torrent, plan.hops, plan.fields))
        staying = [plan for plan in plans if plan.fields and not plan.changes_session]
        await records.put_each((plan.torrent, plan.fields) for plan in staying)
        for plan in staying:
            self._tell_libtorrent(plan)
        for plan in plans:
            await self._do(plan)
        return max(told)

    async def _do(self, plan: Plan) -> None:
        """Do what is more than another record. Raises RequestError and StoreError."""
        torrent, edits = plan.torrent, plan.edits
        if last(edits, SetHops) is not None:
            torrent.release()
        if (run := last(edits, Run)) is not None:
            self._restart(torrent, run)
        if (enqueue := last(edits, Enqueue)) is not None:
            await self._queue_to(torrent, enqueue.position)
        if (move := last(edits, Move)) is not None:
            await self.moves.begin(torrent, move)
        if self._library.records.is_here(torrent):
            self._ask_libtorrent(plan)

    @staticmethod
    def _ask_libtorrent(plan: Plan) -> None:
        """Have libtorrent do what changes nothing that is kept."""
        torrent = plan.torrent
        is_moving = torrent.is_moving or torrent.record.moving_to
        if last(plan.edits, Verify) is not None and torrent.info is not None and not is_moving:
            torrent.recheck()
        if (named := last(plan.edits, AddPeers)) is not None:
            for peer in named.peers:
                connect_anew(torrent.handle, peer)
        if last(plan.edits, Reannounce) is not None:
            torrent.handle.force_reannounce()
            torrent.handle.force_dht_announce()

    def _tell_libtorrent(self, plan: Plan) -> None:
        torrent = plan.torrent
        if torrent.is_between_sessions:  # libtorrent refused it
            return
        if "file_priorities" in plan.fields:
            torrent.select(plan.fields["file_priorities"])
        if "trackers" in plan.fields:
            self._library.replace_trackers(torrent)
        torrent.apply_limits()

    async def _selection_of(self, torrent: Torrent, edit: Select) -> dict[str, object]:
        """Return the fields of its record that say which files are wanted from now on. Raises RequestError."""
        if torrent.is_between_sessions:
            return {}
        priorities = edit.priorities(torrent)
        files = torrent.layout.num_files() if torrent.layout is not None else 0
        wanted = newly_wanted(torrent.record.file_priorities, priorities, files)
        record, paths = torrent.record, self._library.paths
        written = {*record.written}
        if not record.taking_over:  # else all that is there is looked at, before any of it is used
            if new := {*wanted} - written:
                await paths.check_wanted(torrent, new)
            written.update(given_up(torrent, priorities))
        return {
            "file_priorities": priorities,
            "exporting": sorted({*record.exporting, *wanted}),
            "written": sorted(written - {*wanted}),
        }

    def _fields_of_start(self, torrent: Torrent, edit: Run) -> dict[str, object]:
        """Return what is kept of a start. As in Transmission, one that has given all is then wanted to give more."""
        fields: dict[str, object] = {"stopped": False, "started_now": edit.now, "stopped_by_limit": False}
        if torrent.record.stopped_by_limit:
            fields |= dict.fromkeys(self._library.scheduler.reached(torrent), LimitMode.UNLIMITED)
        return fields

    def _restart(self, torrent: Torrent, edit: Run) -> None:
        """Have a torrent tried that stands still for an error."""
        if not torrent.is_missing:
            if torrent.error and torrent.record.taking_over and self._library.records.is_here(torrent):
                torrent.recheck()
            torrent.happened(Event.FORGIVEN)
        torrent.begin_anew()
        if edit.now:
            torrent.release()

    async def _queue_to(self, torrent: Torrent, position: int) -> None:
        """Raises StoreError."""
        order = [infohash for infohash in self._library.records.order() if infohash != torrent.record.infohash]
        order.insert(min(max(0, position), len(order)), torrent.record.infohash)
        await self._library.records.put_order(order)

    # For all

    async def edit_settings(self, edit: Callable[[Settings], Settings]) -> None:
        """Change the settings, as nothing else does meanwhile. Raises StoreError, and what `edit` does."""
        await self._library.records.edit_settings(edit)
        self._library.apply_settings()
        self._library.scheduler.tick()
