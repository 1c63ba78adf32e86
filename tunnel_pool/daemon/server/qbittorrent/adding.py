"""torrents/add: torrents from links and files, with all that qBittorrent's clients may say of them."""

from dataclasses import replace

import libtorrent as lt

from tunnel_pool.daemon.changes.changes import Changes
from tunnel_pool.daemon.changes.edits import (
    AddRequest,
    Requeue,
    SetFields,
)
from tunnel_pool.daemon.errors import ConflictError, NoTorrentError, RequestError
from tunnel_pool.daemon.record import NORMAL, Layout
from tunnel_pool.daemon.server.qbittorrent.categories import checked_category, split_tags
from tunnel_pool.daemon.server.qbittorrent.editing import share_limits, speed_limit
from tunnel_pool.daemon.server.qbittorrent.fields import PRIORITIES
from tunnel_pool.daemon.server.qbittorrent.labels import Labels
from tunnel_pool.daemon.server.qbittorrent.words import Call, Words
from tunnel_pool.daemon.sources import of_source
from tunnel_pool.daemon.torrents.torrent import Torrent
from tunnel_pool.torrent.entries import real_files
from tunnel_pool.torrent.metainfo import read_metainfo

# What we have not; another value than these is refused.
HAS_NOT = {
    "stopCondition": (("", "None"), "a torrent can be added stopped, and does not stop by itself before it is done"),
    "downloader": (("",), "there are no search plugins"),
}
OFF = {
    "firstLastPiecePrio": "the first and last pieces can't come first: use sequentialDownload",
    "useDownloadPath": "the folder for incomplete torrents is that of all: temp_path",
}


class Adding:
    def __init__(self, changes: Changes, labels: Labels) -> None:
        self._changes = changes
        self._labels = labels

    def calls(self) -> dict[str, Call]:
        return {"torrents/add": self._add}

    async def _add(self, words: Words) -> dict[str, object]:
        """Add each link and file. What fails is counted, and is an error where nothing is added.

        `skip_checking` and `seedMode` are passed over: files that are there are always checked.
        """
        for name, (usual, why) in HAS_NOT.items():
            if words.text(name, "").strip() not in usual:
                raise ConflictError(f"{name}: {why}")
        for name, why in OFF.items():
            if words.flag(name):
                raise ConflictError(f"{name}: {why}")
        wish = await self._wish(words)
        added: list[str] = []
        errors: list[RequestError] = []
        sources: list[str | lt.add_torrent_params] = [*_links(words), *_torrents(words)]
        for source in sources:
            try:
                added.append((await self._add_one(source, wish, words)).hash_string)
            except RequestError as error:
                errors.append(error)
        if not added:
            raise ConflictError(str(errors[0]) if errors else "no torrent was named")
        counts = {"success_count": len(added), "failure_count": len(errors), "pending_count": 0}
        return {**counts, "added_torrent_ids": added}

    async def _wish(self, words: Words) -> AddRequest:
        """Return what holds for all that this call adds; a category that is new is made. Raises RequestError."""
        category = words.text("category", "").strip()
        tags, hops = split_tags(words.several("tags", ",") if "tags" in words else ())
        if category:
            await self._labels.ensure(checked_category(category))
        folder = words.text("savepath", "").strip()
        if words.flag("autoTMM") and category:
            folder = self._labels.folder_of(category)
        others = {
            **share_limits(words),
            **speed_limit("download", words.number("dlLimit", -1)),
            **speed_limit("upload", words.number("upLimit", -1)),
            "sequential": bool(words.flag("sequentialDownload")),
            "started_now": bool(words.flag("forced")),
        }
        is_stopped = words.flag("stopped")
        return AddRequest(
            folder=folder or None,
            hops=hops,
            labels=[label for label in (category, *tags) if label],
            stopped=words.flag("paused") if is_stopped is None else is_stopped,  # its name until 2.11
            layout=_layout(words.text("contentLayout", "")),
            others=others,
        )

    async def _add_one(self, source: str | lt.add_torrent_params, wish: AddRequest, words: Words) -> Torrent:
        """Raises RequestError."""
        parameters = of_source(source, files=False) if isinstance(source, str) else source
        if "filePriorities" in words and parameters.ti is not None:
            wish = _with_priorities(wish, parameters.ti, words.several("filePriorities", ","))
        torrent, was_there = await self._changes.add(parameters, wish)
        if was_there:
            raise ConflictError("the torrent is there already")
        if name := " ".join(words.text("rename", "").split()):
            await self._changes.apply([torrent], SetFields({"name": name}))
        if words.flag("addToTopOfQueue"):
            await self._changes.apply([torrent], Requeue("top"))
        return torrent


def _links(words: Words) -> list[str]:
    return words.several("urls", "\n") if "urls" in words else []


def _torrents(words: Words) -> list[lt.add_torrent_params]:
    """Raises NoTorrentError: nothing is added then."""
    torrents = []
    for name, content in words.files.items():
        try:
            torrents.append(read_metainfo(content))
        except (RuntimeError, ValueError):
            raise NoTorrentError(f"Error: '{name[:100]}' is not a valid torrent file.") from None
    return torrents


def _layout(name: str) -> Layout:
    """Raises RequestError."""
    try:
        return Layout(name or Layout.ORIGINAL)
    except ValueError:
        raise RequestError(f"contentLayout is one of {', '.join(Layout)}") from None


def _with_priorities(wish: AddRequest, info: lt.torrent_info, given: list[str]) -> AddRequest:
    """Raises RequestError."""
    indexes = real_files(info.layout())
    names = {str(name): priority for name, priority in PRIORITIES.items()}
    if len(given) != len(indexes) or not set(given) <= names.keys():
        raise RequestError("filePriorities has one priority for each file: 0, 1, 6 or 7")
    priorities = [NORMAL] * info.layout().num_files()
    for index, name in zip(indexes, given, strict=True):
        priorities[index] = names[name]
    return replace(wish, file_priorities=priorities)
