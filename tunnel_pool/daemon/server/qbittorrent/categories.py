"""Categories and tags: qBittorrent's names for what the daemon keeps as labels. Pure.

A category is a label that is known to be one, and may name the folder of what is added with it. The other labels are
tags, and so is `hops:N`.
"""

from collections.abc import Iterable, Mapping

from tunnel_pool.daemon.errors import ConflictError
from tunnel_pool.daemon.rules.hops import hops_of_labels, other_labels
from tunnel_pool.overlay.ground.config import MAX_HOPS

MAX_NAME = 255


def category_of(labels: Iterable[str], categories: Mapping[str, str]) -> str:
    """Return the category that labels say, an empty text for none; of several, the first holds."""
    return next((label for label in labels if label in categories), "")


def with_category(labels: Iterable[str], category: str, categories: Mapping[str, str]) -> list[str]:
    """Return the labels with this category in place of the one before; none, if it is empty."""
    labels = list(labels)
    before = category_of(labels, categories)
    return [*filter(None, [category]), *(label for label in labels if label not in (before, category))]


def tags_of(labels: Iterable[str], hops: int, categories: Mapping[str, str]) -> list[str]:
    """Return the tags that a torrent is shown with: its hop count, and its labels but for the category."""
    labels = list(labels)
    category = category_of(labels, categories)
    return sorted([f"hops:{hops}", *(label for label in labels if label != category)])


def known_tags(
    tags: Iterable[str], torrents: Iterable[tuple[Iterable[str], int]], categories: Mapping[str, str]
) -> list[str]:
    """Return all tags to choose from: those that were made, the anonymous hop counts, and those of torrents.

    A torrent is given as its labels and its hop count.
    """
    hops = [f"hops:{hops}" for hops in range(1, MAX_HOPS + 1)]
    used = (tag for labels, hops in torrents for tag in tags_of(labels, hops, categories))
    return sorted({*hops, *tags, *used} - categories.keys())


def split_tags(tags: Iterable[str]) -> tuple[list[str], int | None]:
    """Return the tags that are no hop count, and the hop count. Raises ConflictError for a wrong one, or two."""
    tags = list(tags)
    try:
        hops = hops_of_labels(tags)
    except ValueError as error:
        raise ConflictError(str(error)) from None
    return [checked_name(tag) for tag in other_labels(tags)], hops


def checked_name(name: str) -> str:
    """Return the name of a category or a tag. Raises ConflictError.

    qBittorrent's isValidCategoryName and Tag: no comma, no backslash, and no empty part between slashes.
    """
    is_whole = all(part.strip() for part in name.split("/"))
    if not is_whole or len(name) > MAX_NAME or any(char in ',\\"' or not char.isprintable() for char in name):
        raise ConflictError("a category or tag has no comma, quote or backslash, and no slash at its ends")
    return name


def checked_category(name: str) -> str:
    """Return the name of a category. Raises ConflictError also where it would be taken for a hop count."""
    if not other_labels([checked_name(name)]):
        raise ConflictError("hops:N is a tag and no category")
    return name


def shown(categories: Mapping[str, str]) -> dict[str, dict[str, object]]:
    """Return the categories as qBittorrent shows them."""
    return {
        name: {"name": name, "savePath": folder, "download_path": None} for name, folder in sorted(categories.items())
    }
