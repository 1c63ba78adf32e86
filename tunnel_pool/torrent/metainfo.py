"""Reads what a user may name a torrent by: a .torrent file, a magnet link (BEP 9), an infohash."""

import logging
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import libtorrent as lt

from tunnel_pool.system.errors import UserError
from tunnel_pool.torrent.links import is_link, links_in
from tunnel_pool.torrent.tracker_urls import mend, tiers_of_link, tiers_of_metainfo

logger = logging.getLogger(__name__)

MAX_TORRENT_FILE_BYTES = 64 << 20
MAX_LINK_PEERS = 100  # the most x.pe of a magnet link, which may be as long as it likes
MAX_TRACKERS = 200  # the most trackers of a torrent, however many it names
MAX_WEB_SEEDS = 100
# Numbers, texts, lists and dictionaries, of a file about eight: a million files. libtorrent's own bound is 3,000,000.
MAX_TOKENS = 8_000_000
MAX_TOKENS_OF_RESUME = 2 * MAX_TOKENS  # resume data holds the metainfo, and a priority and perhaps a name of each file
MAX_TOKENS_OF_STRANGERS = 150_000


def parse_torrent(what: str) -> lt.add_torrent_params:
    """Parse a file name, magnet link or infohash into libtorrent's parameters. Raises UserError with the reason."""
    if not what:
        raise UserError("no torrent file, magnet link or infohash: an empty word")
    return parse_link(what) or _parse_file(Path(what))


def parse_link(what: str) -> lt.add_torrent_params | None:
    """Parse a magnet link or an infohash; return None when it is neither. Raises UserError."""
    links = links_in(what)
    if len(links) > 1:
        raise UserError(f"{len(links)} links in place of one: {what[:100]}")
    return parameters_of(links[0]) if links else None


def parameters_of(link: str) -> lt.add_torrent_params:
    """Return the parameters of a link that links_in has found. Raises UserError."""
    if is_link(link):
        return _parse_magnet(link, link)
    # BEP 9: v1 as btih; v2 (BEP 52) as a multihash, 1220 for SHA-256.
    topic = f"urn:btih:{link}" if len(link) == 40 else f"urn:btmh:1220{link}"
    return _parse_magnet(f"magnet:?xt={topic}", link)


def read_metainfo(data: bytes, most_tokens: int = MAX_TOKENS) -> lt.add_torrent_params:
    """Return the parameters to add a .torrent file's content with. Raises RuntimeError, also for too many tokens.

    libtorrent holds Python's lock while it reads: a million tokens take half a second.
    """
    limits: Any = {"max_decode_tokens": most_tokens}
    parameters = lt.load_torrent_buffer(data, limits)
    mend(parameters, tiers_of_metainfo(data))
    _bound(parameters)
    return parameters


def read_resume(data: bytes) -> lt.add_torrent_params:
    """Return what resume data says, of every torrent that `read_metainfo` takes. Raises RuntimeError.

    By libtorrent's own bound, it writes resume data of torrents that it then can't read; and libtorrent 2.1, which
    packs pieces into bytes, reads back as many as fill the last byte.
    """
    limits: Any = {"max_decode_tokens": MAX_TOKENS_OF_RESUME}
    parameters = lt.read_resume_data(data, limits)
    if parameters.ti is not None:
        keep_pieces(parameters, parameters.ti.num_pieces())
    return parameters


def keep_pieces(parameters: lt.add_torrent_params, pieces: int) -> None:
    """Leave out of resume data what fills its last byte: the torrent has so many pieces."""
    for name in ("have_pieces", "verified_pieces"):
        kept = getattr(parameters, name)
        if len(kept) > pieces:
            setattr(parameters, name, kept[:pieces])


def _bound(parameters: lt.add_torrent_params) -> None:
    """Leave out trackers, web seeds and peers past the most that a torrent may have."""
    parameters.peers = list(dict.fromkeys(parameters.peers))[:MAX_LINK_PEERS]
    trackers, named = parameters.trackers, parameters.url_seeds  # libtorrent makes a new list each time
    if len(trackers) > MAX_TRACKERS:
        parameters.trackers = trackers[:MAX_TRACKERS]
        parameters.tracker_tiers = parameters.tracker_tiers[:MAX_TRACKERS]
        parameters.flags |= lt.torrent_flags.override_trackers
    web_seeds = [url for url in named[: 2 * MAX_WEB_SEEDS] if not _is_at_ipv6_address(url)][:MAX_WEB_SEEDS]
    if web_seeds != named:
        parameters.url_seeds = web_seeds
        parameters.flags |= lt.torrent_flags.override_web_seeds


def _is_at_ipv6_address(url: str) -> bool:
    """Return whether a web seed's host is an IPv6 address: libtorrent 2.1.1 has a fault there (docs/LEAKS.md)."""
    return "[" in url.partition("://")[2].partition("/")[0]


def _parse_magnet(link: str, what: str) -> lt.add_torrent_params:
    try:
        parameters = lt.parse_magnet_uri(link)
    except RuntimeError as error:
        raise UserError(f"not a magnet link: {what[:100]} ({reason_of(error)})") from None
    mend(parameters, tiers_of_link(link))
    _bound(parameters)
    return parameters


def _parse_file(path: Path) -> lt.add_torrent_params:
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise UserError(f"no torrent file, magnet link or infohash: {path} (not a file)")
        if path.stat().st_size > MAX_TORRENT_FILE_BYTES:
            raise UserError(f"{path} is too large for a torrent file")
        return read_metainfo(path.read_bytes())
    except OSError as error:
        raise UserError(f"no torrent file, magnet link or infohash: {path} ({error.strerror})") from None
    except RuntimeError as error:
        raise UserError(f"{path} is not a torrent file ({reason_of(error)})") from None


def reason_of(error: RuntimeError) -> str:
    """Return libtorrent's message without its error category."""
    return str(error).split(" [")[0]


def make_torrent(
    source: Path, on_piece: Callable[[int, int], None], piece_bytes: int = 0, hybrid: bool = False
) -> bytes:
    """Return a torrent (BEP 3) of a file or folder; `on_piece` hears each piece's number and how many there are.

    It may raise to stop. `piece_bytes` 0 lets libtorrent choose; `hybrid` is BEP 52, too, which libtorrent
    can't read back for every folder that it makes one of. Raises UserError.
    """
    try:
        creator = new_creator(source, piece_bytes, hybrid)
    except UnicodeError:
        raise UserError(f"cannot seed {str(source)!a}: a name in it is not UTF-8") from None
    except RuntimeError as error:
        raise UserError(f"cannot seed {source}: {reason_of(error)}") from None
    pieces = creator.num_pieces()
    try:
        lt.set_piece_hashes(creator, str(source.parent), lambda piece: on_piece(piece, pieces))
    except RuntimeError as error:
        raise UserError(f"cannot read {source}: {reason_of(error)}") from None
    return lt.bencode(creator.generate())


def new_creator(source: Path, piece_bytes: int = 0, hybrid: bool = False) -> lt.create_torrent:
    """Return libtorrent's creator of a torrent of a file or folder.

    Symbolic links below it are left out, which may lead anywhere, also back above it, and so are pipes and devices,
    which have no end. Raises RuntimeError, and UserError when there is nothing in it.
    """
    left_out: list[str] = []

    def is_part(path: str) -> bool:
        mode = Path(path).lstat().st_mode
        if path == str(source) or stat.S_ISREG(mode) or stat.S_ISDIR(mode):
            return True
        left_out.append(path)
        return False

    files = lt.list_files(str(source), is_part)
    if left_out:
        logger.warning(
            "%d symbolic links and the like are no part of the torrent, %s for one", len(left_out), min(left_out)
        )
    if not any(file.size for file in files):
        raise UserError(f"cannot seed {source}: there is nothing in it")
    return lt.create_torrent(files, piece_bytes, 0 if hybrid else lt.create_torrent.v1_only)


def magnet_link(parameters: lt.add_torrent_params) -> str:
    """Return the magnet link with the name, so that a person sees what it is."""
    if parameters.ti is not None:
        parameters.name = parameters.ti.name()
    return lt.make_magnet_uri(parameters)


def infohash_of(parameters: lt.add_torrent_params) -> str:
    """Return the hash that names a torrent in file names and logs, in hex."""
    return str(parameters.info_hashes.get_best())


def name_of(parameters: lt.add_torrent_params) -> str:
    """Return the torrent's name, empty when there is none, or none that can be read."""
    try:
        return str(parameters.ti.name() if parameters.ti is not None else parameters.name)
    except UnicodeDecodeError:
        return ""


def swarm_hash_of(parameters: lt.add_torrent_params) -> bytes:
    """Return the 20 bytes by which trackers and the DHT know the swarm: v1's hash, else v2's cut short."""
    hashes = parameters.info_hashes
    return bytes.fromhex(str(hashes.v1 if hashes.has_v1() else hashes.v2))[:20]


def hidden_hashes_of(hashes: lt.info_hash_t) -> list[bytes]:
    """Return the hashes that the names of a torrent's hidden swarms are made of (pooled.hidden_services.lookup_hash).

    Tribler takes v2's whole hash of a torrent that has one, and v1's of others, as of a hybrid whose v2 hash it does
    not know yet (best_info_hash in its src/tribler/core/libtorrent/torrentdef.py): so a hybrid has two swarms.
    """
    known = [hashes.v1] if hashes.has_v1() else []
    return [bytes.fromhex(str(each)) for each in [*known, *([hashes.v2] if hashes.has_v2() else [])]]
