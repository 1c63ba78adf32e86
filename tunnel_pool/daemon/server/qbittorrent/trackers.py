"""A torrent's trackers as torrents/trackers shows them, the DHT and its like among them."""

import time
from typing import Any

import libtorrent as lt

from tunnel_pool.daemon.server.tiers import entries_of
from tunnel_pool.daemon.torrents.view import TorrentView
from tunnel_pool.torrent.isolation import PLAIN

DISABLED, NOT_CONTACTED, WORKING, UPDATING, NOT_WORKING = range(5)


def entries(torrent: TorrentView, is_dht_on: bool, is_pex_on: bool, is_lsd_on: bool) -> list[dict[str, object]]:
    """Return what finds peers; what is on holds for plain torrents. Raises RuntimeError between sessions."""
    is_plain = torrent.record.hops == PLAIN
    peers = torrent.peer_infos()
    kind = lt.peer_info
    sticky = (
        ("** [DHT] **", is_dht_on or not is_plain, kind.dht),
        ("** [PeX] **", is_plain and is_pex_on, kind.pex),
        ("** [LSD] **", is_plain and is_lsd_on, kind.lsd),
    )
    rows: list[dict[str, object]] = []
    for name, is_on, source in sticky:
        found = [peer for peer in peers if peer.source & source]
        seeds = sum(bool(peer.flags & kind.seed) for peer in found)
        rows.append(
            {
                "url": name,
                "tier": -1,
                "status": WORKING if is_on and not torrent.is_private else DISABLED,
                "msg": "This torrent is private" if torrent.is_private else "",
                "num_peers": 0,
                "num_seeds": seeds,
                "num_leeches": len(found) - seeds,
                "num_downloaded": 0,
            }
        )
    return rows + [_tracker(torrent, entry) for entry in entries_of(torrent)]


def _tracker(torrent: TorrentView, entry: Any) -> dict[str, Any]:
    heard, next_s = torrent.trackers.get(entry["url"]), entry["next_announce"]
    return {
        "url": entry["url"],
        "tier": entry["tier"],
        "updating": bool(entry["updating"]),
        "status": _status(entry),
        "msg": entry["message"],
        "num_peers": heard.peers if heard is not None else 0,
        "num_seeds": max(-1, entry["scrape_complete"]),
        "num_leeches": max(-1, entry["scrape_incomplete"]),
        "num_downloaded": max(-1, entry["scrape_downloaded"]),
        "next_announce": next_s if isinstance(next_s, int) and next_s > time.time() else 0,
        "min_announce": 0,
        "endpoints": [],
    }


def _status(entry: Any) -> int:
    if not entry["is_asked"]:
        return DISABLED
    if entry["fails"]:
        return NOT_WORKING
    if entry["updating"]:
        return UPDATING
    return WORKING if entry["verified"] else NOT_CONTACTED
