"""Files of a torrent that get other names, as by libtransmission's tr_torrentRenamePath. Pure."""

from pathlib import Path


def renames_of(paths: dict[int, str], path: str, name: str) -> list[tuple[int, str]]:
    """Return number and new path of each file that changes when the file or folder `path` gets this name."""
    return [
        (index, str(Path(path).with_name(name) / Path(old).relative_to(path)))
        for index, old in paths.items()
        if Path(path).name and Path(old).is_relative_to(path)
    ]


def clashes(paths: dict[int, str], renames: dict[int, str]) -> bool:
    """Return whether another file of the torrent is where one of these files is to be, or is a folder there."""
    others = [Path(path) for other, path in paths.items() if other not in renames]
    return any(
        Path(new) == other or Path(new) in other.parents or other in Path(new).parents
        for new in renames.values()
        for other in others
    )
