"""What all interfaces show of a torrent in the same way."""

from tunnel_pool.daemon.torrents.torrent import Torrent

RATIO_NOT_AVAILABLE = -1
UTP_SOCKET = 1 << 17  # libtorrent's peer_info.hpp; its Python has no name for it
NO_ROOM = "there is too little room on the disk: it goes on when there is more"


def ratio(torrent: Torrent) -> float:
    base = torrent.totals.downloaded or torrent.status.total_wanted_done
    return torrent.totals.uploaded / base if base else RATIO_NOT_AVAILABLE


def hash_string(torrent: Torrent) -> str:
    """Return the v1 hash if there is one, as most clients know a torrent that has both by it."""
    hashes = torrent.status.info_hashes
    return str(hashes.v1) if hashes.has_v1() else torrent.record.infohash
