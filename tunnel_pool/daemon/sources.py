"""What a client names to have a torrent added. Each raises RequestError."""

import base64
import binascii

import libtorrent as lt

from tunnel_pool.daemon.errors import RequestError
from tunnel_pool.system.errors import UserError
from tunnel_pool.torrent.metainfo import parse_link, parse_torrent, read_metainfo


def of_metainfo(text: str) -> lt.add_torrent_params:
    """Return the parameters of a .torrent file in base64."""
    try:
        return read_metainfo(base64.b64decode(text))
    except (RuntimeError, binascii.Error, ValueError) as error:
        raise _invalid(error) from None


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
