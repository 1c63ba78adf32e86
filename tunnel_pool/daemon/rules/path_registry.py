"""Finds the torrents that have files at, above or below a path. Pure."""

from collections.abc import Iterable

from tunnel_pool.daemon.rules.paths import folders_above


class PathRegistry:
    """Knows the topmost paths of each owner, whose files are there or below.

    Whether letters are capital makes no difference here: two paths that are one on some file systems are near each
    other. A look-up takes as many steps as a path has folders, however many owners there are.
    """

    def __init__(self) -> None:
        self._owners_at: dict[str, set[str]] = {}
        self._owners_below: dict[str, set[str]] = {}
        self._tops: dict[str, list[str]] = {}  # by owner

    def put(self, owner: str, tops: Iterable[str]) -> None:
        """Note where an owner has files now, in place of what was noted before."""
        self.drop(owner)
        folded = list({top.casefold() for top in tops})
        self._tops[owner] = folded
        for top in folded:
            self._owners_at.setdefault(top, set()).add(owner)
            for folder in folders_above(top):
                self._owners_below.setdefault(folder, set()).add(owner)

    def drop(self, owner: str) -> None:
        for top in self._tops.pop(owner, ()):
            _take_out(self._owners_at, top, owner)
            for folder in folders_above(top):
                _take_out(self._owners_below, folder, owner)

    def near(self, tops: Iterable[str]) -> set[str]:
        """Return the owners that have files at one of these paths, below it, or at a folder above it."""
        paths = {each.casefold() for each in tops}
        folders: set[str] = set()
        for path in paths:
            folder = path.rpartition("/")[0]
            while folder and folder not in folders:
                folders.add(folder)
                folder = folder.rpartition("/")[0]
        at = (self._owners_at.get(place, set()) for place in paths | folders)
        below = (self._owners_below.get(path, set()) for path in paths)
        return set().union(*at, *below)


def _take_out(owners: dict[str, set[str]], place: str, owner: str) -> None:
    left = owners.get(place, set())
    left.discard(owner)
    if not left:
        owners.pop(place, None)
