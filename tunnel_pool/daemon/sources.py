"""Reads what a client names to have a torrent added. Each function raises RequestError."""

import base64
import binascii
from typing import Any

import libtorrent as lt

from tunnel_pool.daemon.errors import RequestError
from tunnel_pool.system.errors import UserError
from tunnel_pool.torrent.metainfo import parse_link, parse_torrent, read_metainfo, read_resume

KEPT_OF_RESUME = (
    "active_time", "added_time", "completed_time", "file_priorities", "finished_time", "have_pieces", "seeding_time",
    "total_downloaded", "total_uploaded",
)  # fmt: skip


def of_metainfo(text: str) -> lt.add_torrent_params:
    """Return the parameters of a .torrent file in base64."""
    try:
        return read_metainfo(base64.b64decode(text))
    except (RuntimeError, binascii.Error, ValueError) as error:
        raise _invalid(error) from None


def of_resume(text: str) -> tuple[lt.add_torrent_params, dict[int, str]]:
    """Return the parameters of another program's torrent, and its files' paths by their indexes, where it says some.

    `text` is libtorrent's resume data in base64, with the metadata. Of what it says, the places of files, the pieces
    that are there, what was moved and when are taken.
    """
    try:
        given = read_resume(base64.b64decode(text))
        if given.ti is None:
            raise RequestError("the resume data has no metadata")
        metainfo: Any = lt.write_torrent_file(given)
        parameters = read_metainfo(lt.bencode(metainfo))
        for name in KEPT_OF_RESUME:
            setattr(parameters, name, getattr(given, name))
        renamed = dict(given.renamed_files)
    except (RuntimeError, binascii.Error, ValueError) as error:
        raise _invalid(error) from None
    return parameters, renamed


def of_source(text: str, files: bool) -> lt.add_torrent_params:
    """Return the parameters of a magnet link or an infohash; with `files`, also of a .torrent file's path here."""
    if text.split(":", 1)[0].lower() in ("http", "https"):
        raise RequestError("a torrent is not fetched from the web, which would see who asks: send its content")
    try:
        parameters = (parse_torrent if files else parse_link)(text)
    except (RuntimeError, ValueError, UserError) as error:
        raise _invalid(error) from None
    if parameters is None:
        raise RequestError("no magnet link and no infohash")
    return parameters


def _invalid(error: Exception) -> RequestError:
    return RequestError(f"invalid or corrupt torrent: {error}")
