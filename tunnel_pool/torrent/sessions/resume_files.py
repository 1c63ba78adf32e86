"""The resume data of a command's torrents: a file for each, by its infohash."""

import contextlib
import logging
from collections.abc import Collection
from pathlib import Path

import libtorrent as lt

from tunnel_pool.system.errors import UserError
from tunnel_pool.system.files import write_atomically
from tunnel_pool.torrent.entries import places_in
from tunnel_pool.torrent.metainfo import infohash_of, read_resume

logger = logging.getLogger(__name__)


class ResumeFiles:
    def __init__(self, folder: Path) -> None:
        """Raises UserError when the folder can't be made."""
        self._folder = make_resume_dir(folder)

    def write(self, infohash: str, data: bytes) -> None:
        """Write what was saved of a torrent. Raises OSError."""
        write_atomically(self._path(infohash), data)

    def _path(self, infohash: str) -> Path:
        return self._folder / f"{infohash}.resume"

    def read(
        self, infohash: str, parameters: lt.add_torrent_params, folders: Collection[Path]
    ) -> tuple[lt.add_torrent_params | None, bool]:
        """Return the saved state, with what was given, and whether there is one of this torrent in these folders.

        It is None where there is none, and where files have changed since, so that all of them are checked.
        """
        path = self._path(infohash)
        try:
            saved = read_resume(path.read_bytes())
        except FileNotFoundError:
            return None, False
        except (OSError, RuntimeError) as error:
            logger.warning("Resume data of a torrent is unusable, its files are checked instead: %s", error)
            return None, False
        folder = Path(saved.save_path)
        if infohash_of(saved) != infohash or folder not in folders:
            return None, False
        if _is_complete(saved) and not _files_are_whole(saved, folder):
            logger.warning("Files of a complete torrent have changed: they are checked and mended")
            return None, True
        saved.trackers = [*{*saved.trackers, *parameters.trackers}]
        saved.peers = [*{*saved.peers, *parameters.peers}]
        return saved, True


def delete_unfinished(folder: Path) -> None:
    """Delete the files that a killed run was writing. Call it before there are sessions."""
    for unfinished in folder.glob(".*.resume.*"):
        with contextlib.suppress(OSError):
            unfinished.unlink()


def make_resume_dir(folder: Path) -> Path:
    """Return the folder, made if it is not there. Raises UserError."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise UserError(f"cannot keep resume data in {folder}: {error.strerror}") from None
    return folder


def _is_complete(saved: lt.add_torrent_params) -> bool:
    return saved.ti is not None and len(saved.have_pieces) == saved.ti.num_pieces() and all(saved.have_pieces)


def _files_are_whole(saved: lt.add_torrent_params, save_dir: Path) -> bool:
    """Return whether every file has its full length; only a check of all pieces could verify the contents."""
    try:
        return all(Path(path).stat().st_size == size for _, (path, size) in places_in(saved, str(save_dir)))
    except OSError:
        return False
