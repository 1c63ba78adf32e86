"""Tells which files of a torrent are wanted, and which of their pieces can't be trusted after a kill. Pure.

libtorrent keeps in a file of its own (`.INFOHASH.parts`) what pieces of wanted files hold of files that nobody wants.
When such a file is wanted, libtorrent moves these bytes into it. Whoever ends the process in between leaves a file of
the right size with holes in it, whose pieces libtorrent takes to be there.
"""

from collections.abc import Collection, Iterable, Sequence

import libtorrent as lt

from tunnel_pool.daemon.record import NORMAL, UNWANTED


def priority_of(priorities: Sequence[int], index: int) -> int:
    """Return libtorrent's priority of a file; those past the end are normal."""
    return priorities[index] if index < len(priorities) else NORMAL


def priorities_of_chosen(chosen: Collection[int], real_files: Sequence[int]) -> list[int]:
    """Return libtorrent's priorities where only these files are wanted, by their places among those that don't pad.

    None of them is there: an empty list, by which all files are wanted.
    """
    indexes = {real_files[place] for place in chosen if place < len(real_files)}
    return [NORMAL if index in indexes else UNWANTED for index in range(real_files[-1] + 1)] if indexes else []


def newly_wanted(before: Sequence[int], after: Sequence[int], files: int) -> list[int]:
    """Return the indexes of the files that are wanted `after`, and were not `before`."""
    return [
        index
        for index in range(files)
        if priority_of(before, index) == UNWANTED and priority_of(after, index) != UNWANTED
    ]


def distrust_ends(parameters: lt.add_torrent_params, files: Iterable[int]) -> None:
    """Have libtorrent fetch the first and the last piece of each of these files again."""
    if parameters.ti is None:
        return
    ends = _end_pieces(parameters.ti.layout(), files)
    if not ends:
        return
    parameters.have_pieces = [have and piece not in ends for piece, have in enumerate(parameters.have_pieces)]
    parameters.verified_pieces = [done and piece not in ends for piece, done in enumerate(parameters.verified_pieces)]
    parameters.unfinished_pieces = {
        piece: blocks for piece, blocks in parameters.unfinished_pieces.items() if piece not in ends
    }


def _end_pieces(layout: lt.file_storage, files: Iterable[int]) -> set[int]:
    pieces = set()
    for index in files:
        if index < layout.num_files() and (size := layout.file_size(index)):
            offset = layout.file_offset(index)
            pieces |= {offset // layout.piece_length(), (offset + size - 1) // layout.piece_length()}
    return pieces
