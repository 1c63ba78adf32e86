"""Makes the changes that qBittorrent's clients ask for of categories and tags."""

import os
from collections.abc import Iterable

import msgspec

from tunnel_pool.daemon.changes.changes import Changes
from tunnel_pool.daemon.changes.edits import Relabel, SetHops
from tunnel_pool.daemon.changes.moves import absolute
from tunnel_pool.daemon.errors import ConflictError, NotFoundError, RequestError
from tunnel_pool.daemon.rules.paths import is_inside
from tunnel_pool.daemon.server.qbittorrent.categories import category_of, checked_category, split_tags, with_category
from tunnel_pool.daemon.server.qbittorrent.reading import Reading
from tunnel_pool.daemon.server.qbittorrent.words import Call, Words
from tunnel_pool.daemon.storage.settings import Settings
from tunnel_pool.daemon.torrents.library import Library
from tunnel_pool.daemon.torrents.torrent import Torrent

MOST = 1000
CATEGORY_IS_THERE = "Unable to create category"  # in qBittorrent's words


class Labels:
    def __init__(self, library: Library, changes: Changes, reading: Reading) -> None:
        self._library = library
        self._changes = changes
        self._reading = reading

    def calls(self) -> dict[str, Call]:
        return {
            "torrents/addTags": self._add_tags,
            "torrents/createCategory": self._create_category,
            "torrents/createTags": self._create_tags,
            "torrents/deleteTags": self._delete_tags,
            "torrents/editCategory": self._edit_category,
            "torrents/removeCategories": self._remove_categories,
            "torrents/removeTags": self._remove_tags,
            "torrents/setCategory": self._set_category,
            "torrents/setTags": self._set_tags,
        }

    async def ensure(self, category: str) -> None:
        """Make a category, if it is new. Raises RequestError and StoreError."""
        if category not in self._changes.categories():
            await self._put_category(category, "")

    def folder_of(self, category: str) -> str:
        """Return where torrents of a category go that are managed automatically: its own folder, or one of its name."""
        usual = self._library.records.settings.folder
        named = os.path.join(usual, category) if is_inside(category) else usual
        return self._changes.categories().get(category) or named

    async def _put_category(self, name: str, folder: str) -> None:
        folder = absolute(folder) if folder else ""

        def edit(settings: Settings) -> Settings:
            categories = {**settings.categories, name: folder}
            if len(categories) > MOST:
                raise ConflictError(f"{MOST} categories are the most")
            return msgspec.structs.replace(settings, categories=categories)

        await self._changes.edit_settings(edit)

    async def _create_category(self, words: Words) -> None:
        name = words.text("category")
        if not name:
            raise RequestError("Category cannot be empty")
        if checked_category(name) in self._changes.categories():
            raise ConflictError(CATEGORY_IS_THERE)
        await self._put_category(name, words.text("savePath", "").strip())

    async def _edit_category(self, words: Words) -> None:
        name, folder = words.text("category"), words.text("savePath").strip()
        if not name:
            raise RequestError("Category cannot be empty")
        if name not in self._changes.categories():
            raise NotFoundError("Category does not exist")
        await self._put_category(name, folder)

    async def _remove_categories(self, words: Words) -> None:
        names = set(words.several("categories", "\n"))
        if configured := sorted(names & self._changes.folders_by_label.keys()):
            raise ConflictError(f"{configured[0]} is a category by the daemon's configuration (folders-of-labels)")
        await self._drop(names & self._changes.categories().keys())

        def edit(settings: Settings) -> Settings:
            left = {name: folder for name, folder in settings.categories.items() if name not in names}
            return msgspec.structs.replace(settings, categories=left)

        await self._changes.edit_settings(edit)

    async def _drop(self, names: Iterable[str]) -> None:
        """Take labels from all torrents."""
        gone = set(names)
        having = [each for each in self._library.torrents.values() if not gone.isdisjoint(each.record.labels)]
        await self._changes.apply(having, Relabel(lambda labels: [label for label in labels if label not in gone]))

    async def _set_category(self, words: Words) -> None:
        torrents, name, known = self._reading.several(words), words.text("category"), self._changes.categories()
        if name and name not in known:
            raise ConflictError("Incorrect category name")
        await self._changes.apply(torrents, Relabel(lambda labels: with_category(labels, name, known)))

    async def _add_tags(self, words: Words) -> None:
        tags, hops = split_tags(words.several("tags", ","))
        relabel = Relabel(lambda labels: list(dict.fromkeys([*labels, *tags])))
        await self._tag(self._reading.several(words), relabel, hops)

    async def _set_tags(self, words: Words) -> None:
        tags, hops = split_tags(words.several("tags", ","))
        torrents, known = self._reading.several(words), self._changes.categories()
        await self._tag(torrents, Relabel(lambda labels: with_category(tags, category_of(labels, known), {})), hops)

    async def _tag(self, torrents: Iterable[Torrent], relabel: Relabel, hops: int | None) -> None:
        """Give torrents other labels, and more hops if a tag says so. Raises ConflictError for fewer."""
        for torrent in torrents:
            if hops is not None and hops < torrent.record.hops:
                raise ConflictError(
                    f"{torrent.record.name} has {torrent.record.hops} hops, and a tag can only raise them: use "
                    f"`tunnel-pool set {torrent.record.number} --hops {hops}`"
                )
        await self._changes.apply(torrents, relabel, *([SetHops(at_least=hops)] if hops is not None else ()))

    async def _remove_tags(self, words: Words) -> None:
        """Remove tags; all of them, when none is named. The hop count stays."""
        named = set(words.several("tags", ",")) if words.given.get("tags") else None
        known = self._changes.categories()

        def left(labels: list[str]) -> list[str]:
            gone, category = named if named is not None else {*labels}, category_of(labels, known)
            return [label for label in labels if label == category or label not in gone]

        await self._changes.apply(self._reading.several(words), Relabel(left))

    async def _create_tags(self, words: Words) -> None:
        tags, _ = split_tags(words.several("tags", ","))

        def edit(settings: Settings) -> Settings:
            made = list(dict.fromkeys([*settings.tags, *tags]))
            if len(made) > MOST:
                raise ConflictError(f"{MOST} tags are the most")
            return msgspec.structs.replace(settings, tags=made)

        await self._changes.edit_settings(edit)

    async def _delete_tags(self, words: Words) -> None:
        gone = set(words.several("tags", ",")) - self._changes.categories().keys()
        await self._drop(gone)
        await self._changes.edit_settings(
            lambda settings: msgspec.structs.replace(settings, tags=[tag for tag in settings.tags if tag not in gone])
        )
