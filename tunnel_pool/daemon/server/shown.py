"""Figures of a torrent that all interfaces show in the same way."""

import libtorrent as lt

from tunnel_pool.daemon.rules.queue import Activity
from tunnel_pool.daemon.rules.tiers import name_trackers
from tunnel_pool.daemon.torrents.view import TorrentView

RATIO_NOT_AVAILABLE = -1
UTP_SOCKET = 1 << 17  # libtorrent's peer_info.hpp; its Python has no name for it
NO_ROOM = "there is too little room on the disk: it goes on when there is more"


def eta_s(torrent: TorrentView) -> int | None:
    """Return when a download will be whole, in seconds; None where nothing comes, or nothing more is wanted."""
    if torrent.is_finished or torrent.activity is not Activity.RUNNING or not torrent.down_rate:
        return None
    return torrent.left_bytes // torrent.down_rate


def ratio(torrent: TorrentView) -> float:
    base = torrent.totals.downloaded or torrent.status.total_wanted_done
    return torrent.totals.uploaded / base if base else RATIO_NOT_AVAILABLE


def magnet_link(torrent: TorrentView) -> str:
    """Return a magnet link (BEP 9) with all trackers and web seeds that its owner has for the torrent."""
    parameters = lt.add_torrent_params()
    parameters.info_hashes, parameters.name = torrent.status.info_hashes, torrent.record.name
    name_trackers(parameters, torrent.record.trackers, torrent.record.web_seeds)
    return str(lt.make_magnet_uri(parameters))


def name_in_folder(torrent: TorrentView) -> str:
    """Return the file or folder that all its files are in; its title where there is no such one.

    Clients of Transmission look for a torrent's files at this name in its folder.
    """
    return torrent.top or torrent.record.name


def total_bytes(torrent: TorrentView) -> int:
    """Return the size of all its files, without those that only pad; 0 while they are not known."""
    return torrent.layout.size_on_disk() if torrent.layout is not None else 0
