"""Pieces that a killed run has written since it last saved where it stood, told by their hashes."""

import asyncio
import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import libtorrent as lt

from tunnel_pool.torrent.entries import kept_name

AT_ONCE_BYTES = 64 << 20  # that libtorrent has to write at most: it takes whatever it is given
LOOKS = 100
LOOK_S = 0.05


async def take_leftovers(
    handle: lt.torrent_handle, parameters: lt.add_torrent_params, goes_on: Callable[[], bool] = lambda: True
) -> int:
    """Give libtorrent the pieces that its resume data lacks, once it has looked at that; return how many bytes.

    It ends when `goes_on` says no: libtorrent writes what it is given, wherever the torrent's files are by then. Raises
    RuntimeError when the torrent is gone.
    """
    found, given = leftovers(parameters), 0
    while (piece := await asyncio.to_thread(next, found, None)) is not None and goes_on():
        number, content = piece
        handle.add_piece(number, content, 0)
        if given // AT_ONCE_BYTES != (given := given + len(content)) // AT_ONCE_BYTES:
            await _written(handle, number)
    return given


async def _written(handle: lt.torrent_handle, number: int) -> None:
    for _ in range(LOOKS):
        if handle.status(lt.torrent_handle.query_pieces).pieces[number]:
            break
        await asyncio.sleep(LOOK_S)


def leftovers(parameters: lt.add_torrent_params) -> Iterator[tuple[int, bytes]]:
    """Yield number and bytes of each piece that resume data lacks and that is in the files whole.

    A piece with a hole in it is not read: nothing was written there. Pieces of a torrent without v1 hashes (BEP 52)
    can't be told right here, and are downloaded again.
    """
    info = parameters.ti
    if info is None or not info.info_hashes().has_v1():
        return
    has = parameters.have_pieces
    files = _Files(info, Path(parameters.save_path), dict(parameters.renamed_files))
    with contextlib.closing(files):
        for piece in range(info.num_pieces()):
            if piece < len(has) and has[piece]:
                continue
            content = files.read(piece)
            if content is not None and _hash_of(content) == info.hash_for_piece(piece):
                yield piece, content


def _hash_of(piece: bytes) -> bytes:
    return hashlib.sha1(piece, usedforsecurity=False).digest()


class _Files:
    """Reads pieces of a torrent's files, of which the last one stays open."""

    def __init__(self, info: lt.torrent_info, folder: Path, renamed: dict[int, str]) -> None:
        self._info, self._layout = info, info.layout()
        self._folder = folder
        self._renamed = renamed
        self._open = -1, -1  # a file's index and its descriptor

    def read(self, piece: int) -> bytes | None:
        """Return a piece, None where not all of it was written."""
        parts = []
        for part in self._info.map_block(piece, 0, self._info.piece_size(piece)):
            content = self._read_part(part)
            if content is None:
                return None
            parts.append(content)
        return b"".join(parts)

    def _read_part(self, part: Any) -> bytes | None:
        if self._layout.file_flags(part.file_index) & lt.file_flags_t.flag_pad_file:
            return bytes(part.size)
        try:
            descriptor = self._descriptor(part.file_index)
            if os.lseek(descriptor, part.offset, os.SEEK_DATA) != part.offset:
                return None
            content = os.pread(descriptor, part.size, part.offset)
        except OSError:
            return None
        return content if len(content) == part.size else None

    def _descriptor(self, index: int) -> int:
        if self._open[0] != index:
            self.close()
            path = self._folder / kept_name(self._renamed, self._layout, index)
            self._open = index, os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        return self._open[1]

    def close(self) -> None:
        if self._open[1] >= 0:
            os.close(self._open[1])
        self._open = -1, -1
