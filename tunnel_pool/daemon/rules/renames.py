"""Files of a torrent that get other names, as by libtransmission's tr_torrentRenamePath."""

import os
from pathlib import Path


def renames_of(paths: dict[int, str], path: str, name: str) -> list[tuple[int, str]]:
    """Return numbers and new paths of the files whose path, or a folder in it, is this one."""
    return [
        (index, str(Path(path).with_name(name) / Path(old).relative_to(path)))
        for index, old in paths.items()
        if Path(path).name and Path(old).is_relative_to(path)
    ]


def is_taken(folder: str, paths: dict[int, str], renames: dict[int, str]) -> bool:
    """Return whether something is where these files are to be: of the torrent, or on the disk."""
    for index, new in renames.items():
        others = [Path(path) for other, path in paths.items() if other not in renames]
        taken = any(Path(new) == other or Path(new) in other.parents or other in Path(new).parents for other in others)
        if taken or (new != paths[index] and os.path.lexists(os.path.join(folder, new))):
            return True
    return False
