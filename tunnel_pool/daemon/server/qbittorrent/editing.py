"""Makes the changes that qBittorrent's clients ask for of torrents."""

import ipaddress

from tunnel_pool.contract import Address
from tunnel_pool.daemon.changes.changes import Changes
from tunnel_pool.daemon.changes.edits import (
    AddPeers,
    Edit,
    EditTrackers,
    Move,
    QueueEnd,
    Reannounce,
    Remove,
    Rename,
    Requeue,
    Run,
    Select,
    SetFields,
    Stop,
    Tiers,
    ToggleSequential,
    Verify,
)
from tunnel_pool.daemon.errors import ConflictError, RequestError
from tunnel_pool.daemon.record import NORMAL, LimitMode
from tunnel_pool.daemon.rules.tiers import merged
from tunnel_pool.daemon.server.qbittorrent.fields import GLOBAL_LIMIT, NO_LIMIT, PRIORITIES
from tunnel_pool.daemon.server.qbittorrent.preferences import speed_fields
from tunnel_pool.daemon.server.qbittorrent.reading import Reading
from tunnel_pool.daemon.server.qbittorrent.words import Call, Words
from tunnel_pool.daemon.storage.settings import MAX_COUNT
from tunnel_pool.daemon.torrents.library import Library
from tunnel_pool.daemon.torrents.torrent import Torrent
from tunnel_pool.torrent.metainfo import MAX_LINK_PEERS
from tunnel_pool.torrent.sessions.lost_peers import is_end_to_end

MAX_PORT = 0xFFFF
NOT_STOPPED = ("Default", "Stop", "", "-1", "0")  # ways of ending that are ours


class Editing:
    def __init__(self, library: Library, changes: Changes, reading: Reading) -> None:
        self._library = library
        self._changes = changes
        self._reading = reading

    def calls(self) -> dict[str, Call]:
        stop, start = self._for_each(Stop()), self._for_each(Run())
        return {
            "torrents/addPeers": self._add_peers,
            "torrents/addTrackers": self._add_trackers,
            "torrents/bottomPrio": self._queue_move("bottom"),
            "torrents/decreasePrio": self._queue_move("down"),
            "torrents/delete": self._delete,
            "torrents/editTracker": self._edit_tracker,
            "torrents/filePrio": self._file_priority,
            "torrents/increasePrio": self._queue_move("up"),
            "torrents/pause": stop,
            "torrents/reannounce": self._reannounce,
            "torrents/recheck": self._recheck,
            "torrents/removeTrackers": self._remove_trackers,
            "torrents/rename": self._rename,
            "torrents/renameFile": self._rename_path,
            "torrents/renameFolder": self._rename_path,
            "torrents/resume": start,
            "torrents/setAutoManagement": self._refuse("enable", "a torrent's folder is what was last set"),
            "torrents/setDownloadLimit": self._set_limit("download"),
            "torrents/setDownloadPath": self._set_download_path,
            "torrents/setForceStart": self._set_force_start,
            "torrents/setLocation": self._set_location,
            "torrents/setSavePath": self._set_save_path,
            "torrents/setShareLimits": self._set_share_limits,
            "torrents/setSuperSeeding": self._refuse("value", "there is no super seeding"),
            "torrents/setUploadLimit": self._set_limit("upload"),
            "torrents/start": start,
            "torrents/stop": stop,
            "torrents/toggleFirstLastPiecePrio": self._toggle_ends,
            "torrents/toggleSequentialDownload": self._for_each(ToggleSequential()),
            "torrents/topPrio": self._queue_move("top"),
        }

    def _for_each(self, edit: Edit) -> Call:
        async def call(words: Words) -> None:
            await self._changes.apply(self._reading.several(words), edit)

        return call

    def _queue_move(self, where: QueueEnd) -> Call:
        async def call(words: Words) -> None:
            torrents = self._reading.several(words)
            if not self._library.records.settings.download_queue_enabled:
                raise ConflictError("Torrent queueing must be enabled")
            await self._changes.apply(torrents, Requeue(where))

        return call

    @staticmethod
    def _refuse(name: str, why: str) -> Call:
        """Return what accepts that something stays off, and refuses to switch it on."""

        async def call(words: Words) -> None:
            words.text("hashes")
            if words.flag(name):
                raise ConflictError(why)

        return call

    async def _toggle_ends(self, words: Words) -> None:
        raise ConflictError("the first and last pieces can't come first: use sequential download")

    async def _set_force_start(self, words: Words) -> None:
        torrents, now = self._reading.several(words), bool(words.flag("value"))
        await self._changes.apply(torrents, Run(now))

    async def _delete(self, words: Words) -> None:
        await self._changes.apply(self._reading.several(words), Remove(bool(words.flag("deleteFiles"))))

    async def _recheck(self, words: Words) -> None:
        await self._changes.apply(self._reading.several(words), Verify())

    async def _reannounce(self, words: Words) -> None:
        await self._changes.apply(self._reading.several(words), Reannounce())

    async def _set_location(self, words: Words) -> None:
        await self._move(self._reading.several(words), words.text("location").strip())

    async def _set_save_path(self, words: Words) -> None:
        await self._move(self._reading.several(words, "id"), words.text("path"))

    async def _set_download_path(self, words: Words) -> None:
        words.text("id")
        if words.text("path"):
            raise ConflictError("the folder for incomplete torrents is that of all: temp_path")

    async def _move(self, torrents: list[Torrent], folder: str) -> None:
        if not folder:
            raise RequestError("Save path cannot be empty")
        await self._changes.apply(torrents, Move(folder))

    def _set_limit(self, kind: str) -> Call:
        async def call(words: Words) -> None:
            limit = words.number("limit")
            await self._changes.apply(self._reading.several(words), SetFields(speed_limit(kind, limit)))

        return call

    async def _set_share_limits(self, words: Words) -> None:
        torrents = self._reading.several(words)
        await self._changes.apply(torrents, SetFields(share_limits(words)))

    async def _file_priority(self, words: Words) -> None:
        priority = PRIORITIES.get(words.number("priority"))
        if priority is None:
            raise RequestError("Priority is not valid")
        torrent = self._reading.one(words)
        if torrent.layout is None:
            raise ConflictError("Torrent's metadata has not yet downloaded")
        indexes = torrent.file_indexes()
        chosen = {indexes[place] for place in words.places("id", len(indexes))}

        def priorities(torrent: Torrent) -> list[int]:
            before = torrent.record.file_priorities
            priorities = before + [NORMAL] * (max(chosen, default=-1) + 1 - len(before))
            return [priority if index in chosen else each for index, each in enumerate(priorities)]

        await self._changes.apply([torrent], Select(priorities))

    async def _rename(self, words: Words) -> None:
        name = " ".join(words.text("name").split())
        torrent = self._reading.one(words)
        if not name:
            raise ConflictError("Incorrect torrent name")
        if torrent.info is None:
            raise ConflictError("it has no name of its own until its metadata is known")
        await self._changes.apply([torrent], SetFields({"name": name}))

    async def _rename_path(self, words: Words) -> None:
        torrent, old, new = self._reading.one(words), words.text("oldPath"), words.text("newPath")
        folder, _, name = new.rpartition("/")
        if folder != old.rpartition("/")[0]:
            raise ConflictError("a file or folder can be renamed, and stays in the folder that it is in")
        await self._changes.apply([torrent], Rename(old, name))

    async def _add_peers(self, words: Words) -> dict[str, dict[str, int]]:
        """Return how many peers were added to each torrent, and how many of those named were none."""
        named = words.several("peers")
        peers = [peer for each in named[:MAX_LINK_PEERS] if (peer := _peer_of(each)) is not None]
        if not peers:
            raise RequestError("No valid peers were specified")
        torrents = self._reading.several(words)
        await self._changes.apply(torrents, AddPeers(peers))
        return {each.hash_string: {"added": len(peers), "failed": len(named) - len(peers)} for each in torrents}

    async def _add_trackers(self, words: Words) -> None:
        text = words.text("urls").replace("\r", "")
        added = [tier.split() for tier in text.split("\n\n")]
        await self._changes.apply(
            self._reading.several(words, "hash"), EditTrackers(lambda tiers: merged(tiers, added))
        )

    async def _edit_tracker(self, words: Words) -> None:
        torrent = self._reading.one(words)
        old = words.text("url", words.given.get("origUrl"))  # its name until 2.13
        new, tier = words.text("newUrl", old), words.number("tier", -1)

        def edited(tiers: Tiers) -> Tiers:
            known = {url for urls in tiers for url in urls}
            if old not in known:
                raise ConflictError("Tracker not found")
            if new != old and new in known:
                raise ConflictError("New tracker URL already exists")
            if tier < 0:
                return [[new if url == old else url for url in urls] for urls in tiers]
            tiers = [[url for url in urls if url != old] for urls in tiers]
            place = min(tier, len(tiers))
            tiers[place : place + 1] = [[*(tiers[place] if place < len(tiers) else ()), new]]
            return tiers

        await self._changes.apply([torrent], EditTrackers(edited))

    async def _remove_trackers(self, words: Words) -> None:
        gone = set(words.urls("urls"))

        def left(tiers: Tiers) -> Tiers:
            return [[url for url in urls if url not in gone] for urls in tiers]

        await self._changes.apply(self._reading.several(words, "hash"), EditTrackers(left))


def _peer_of(text: str) -> Address | None:
    """Return a peer by IP:PORT, an IPv6 address in brackets; None for what is none, and for a name."""
    host, _, port = text.rpartition(":")
    try:
        peer = str(ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))), int(port)
    except ValueError:
        return None
    return peer if 0 < peer[1] <= MAX_PORT and not is_end_to_end(peer) else None


def speed_limit(kind: str, limit: int) -> dict[str, object]:
    """Return the fields of a record that a limit of its `download` or `upload` sets, in bytes a second."""
    return speed_fields(f"{kind}_limit_kb", f"{kind}_limited", limit)


def share_limits(words: Words) -> dict[str, object]:
    """Return the fields of a record by limits of ratio and times in minutes, of those that are given.

    Raises RequestError.
    """
    action = words.text("shareLimitAction", "")
    if action not in NOT_STOPPED:
        raise ConflictError("a torrent that has given all is stopped, and nothing else")
    fields: dict[str, object] = {}
    for name, mode, value in (
        ("ratioLimit", "ratio_mode", "ratio_limit"),
        ("seedingTimeLimit", "seeding_mode", "seeding_limit_min"),
        ("inactiveSeedingTimeLimit", "idle_mode", "idle_limit_min"),
    ):
        if not words.given.get(name):
            continue
        limit = words.fraction(name)
        if limit < 0:
            if limit not in (GLOBAL_LIMIT, NO_LIMIT):
                raise RequestError(
                    f"{name} is a limit, {NO_LIMIT} for none, or {GLOBAL_LIMIT} for that of all torrents"
                )
            fields[mode] = LimitMode.UNLIMITED if limit == NO_LIMIT else LimitMode.GLOBAL
        else:
            fields[mode] = LimitMode.SINGLE
            fields[value] = min(limit, MAX_COUNT) if name == "ratioLimit" else min(int(limit), MAX_COUNT)
    return fields
