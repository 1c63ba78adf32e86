"""A torrent as torrent-get shows it: the fields of Transmission's RPC (docs/rpc-spec.md 3.3)."""

import base64
import time
from collections import Counter
from collections.abc import Callable

import libtorrent as lt

from tunnel_pool.daemon.record import NORMAL, UNWANTED
from tunnel_pool.daemon.rules.life import State
from tunnel_pool.daemon.rules.queue import Activity
from tunnel_pool.daemon.server.media_types import OTHER, media_type
from tunnel_pool.daemon.server.shown import NO_ROOM, UTP_SOCKET, eta_s, magnet_link, name_in_folder, ratio, total_bytes
from tunnel_pool.daemon.server.tiers import refusal_of, warning_of
from tunnel_pool.daemon.server.transmission import trackers
from tunnel_pool.daemon.torrents.view import TorrentView

STOPPED, CHECK_QUEUED, CHECKING, DOWNLOAD_QUEUED, DOWNLOADING, SEED_QUEUED, SEEDING = range(7)
ETA_NOT_AVAILABLE, ETA_UNKNOWN = -1, -2
# tr_stat_errtype; with a warning, clients show a torrent as one that goes on.
WARNING, TRACKER_ERROR, LOCAL_ERROR = 1, 2, 3


def status_of(torrent: TorrentView) -> int:
    if torrent.state is State.CHECKING:
        return CHECKING
    if torrent.activity is Activity.STOPPED:
        return STOPPED
    if torrent.activity in (Activity.QUEUED, Activity.NO_ROOM):
        return SEED_QUEUED if torrent.is_finished else DOWNLOAD_QUEUED
    return SEEDING if torrent.is_finished else DOWNLOADING


def _priority(torrent: TorrentView, index: int) -> int:
    priority = torrent.priority(index)
    return (priority > NORMAL) - (UNWANTED < priority < NORMAL)


def _eta(torrent: TorrentView) -> int:
    if torrent.is_finished or torrent.activity is not Activity.RUNNING:
        return ETA_NOT_AVAILABLE
    left_s = eta_s(torrent)
    return left_s if left_s is not None else ETA_UNKNOWN


def _error(torrent: TorrentView) -> tuple[int, str]:
    if torrent.error:
        return LOCAL_ERROR, torrent.error
    if torrent.activity is Activity.NO_ROOM:
        return LOCAL_ERROR, NO_ROOM
    if torrent.notice:
        return WARNING, torrent.notice
    if refusal := refusal_of(torrent):
        return TRACKER_ERROR, refusal
    warning = warning_of(torrent)
    return (WARNING, warning) if warning else (0, "")


def _files(torrent: TorrentView) -> list[dict[str, object]]:
    layout = torrent.layout
    if layout is None:
        return []
    done = torrent.file_bytes()
    piece = layout.piece_length()
    return [
        {
            "name": torrent.file_path(i),
            "length": layout.file_size(i),
            "bytes_completed": done[i],
            "begin_piece": layout.file_offset(i) // piece,
            "end_piece": -(-(layout.file_offset(i) + layout.file_size(i)) // piece),
        }
        for i in torrent.file_indexes()
    ]


def _file_stats(torrent: TorrentView) -> list[dict[str, object]]:
    done = torrent.file_bytes() if torrent.layout is not None else []
    return [
        {"bytes_completed": done[i], "wanted": torrent.is_wanted(i), "priority": _priority(torrent, i)}
        for i in torrent.file_indexes()
    ]


def _peers(torrent: TorrentView) -> list[dict[str, object]]:
    info = lt.peer_info
    return [
        {
            "address": peer.ip[0],
            "port": peer.ip[1],
            "client_name": peer.client.decode(errors="replace") if isinstance(peer.client, bytes) else peer.client,
            "client_is_choked": bool(peer.flags & info.remote_choked),
            "client_is_interested": bool(peer.flags & info.interesting),
            "peer_is_choked": bool(peer.flags & info.choked),
            "peer_is_interested": bool(peer.flags & info.remote_interested),
            "flag_str": "",
            "is_downloading_from": peer.payload_down_speed > 0,
            "is_uploading_to": peer.payload_up_speed > 0,
            "is_encrypted": bool(peer.flags & (info.rc4_encrypted | info.plaintext_encrypted)),
            "is_incoming": not peer.flags & info.local_connection,
            "is_utp": bool(peer.flags & UTP_SOCKET),
            "progress": peer.progress,
            "rate_to_client": peer.payload_down_speed,
            "rate_to_peer": peer.payload_up_speed,
        }
        for peer in torrent.peer_infos()
    ]


_SOURCES = {
    "from_cache": lt.peer_info.resume_data,
    "from_dht": lt.peer_info.dht,
    "from_lpd": lt.peer_info.lsd,
    "from_pex": lt.peer_info.pex,
    "from_tracker": lt.peer_info.tracker,
}


def _peers_from(torrent: TorrentView) -> dict[str, int]:
    found: Counter[str] = Counter()
    for peer in torrent.peer_infos():
        found.update(name for name, source in _SOURCES.items() if peer.source & source)
        found["from_incoming"] += not peer.flags & lt.peer_info.local_connection
    return {name: found[name] for name in (*_SOURCES, "from_incoming", "from_ltep")}


def _peers_sending(torrent: TorrentView) -> int:
    return sum(peer.payload_down_speed > 0 for peer in torrent.peer_infos())


def _peers_getting(torrent: TorrentView) -> int:
    return sum(peer.payload_up_speed > 0 for peer in torrent.peer_infos())


def _pieces(torrent: TorrentView) -> str:
    have = torrent.handle.status(lt.torrent_handle.query_pieces).pieces
    bits = bytearray(-(-len(have) // 8))
    for index, has in enumerate(have):
        bits[index >> 3] |= bool(has) << (7 - index % 8)
    return base64.b64encode(bits).decode()


def _availability(torrent: TorrentView) -> list[int]:
    have = torrent.handle.status(lt.torrent_handle.query_pieces).pieces
    counts = torrent.handle.piece_availability() or [0] * len(have)
    return [-1 if has else count for has, count in zip(have, counts, strict=False)]


def _mime_type(torrent: TorrentView) -> str:
    layout = torrent.layout
    if layout is None:
        return OTHER
    largest = max(torrent.file_indexes(), key=layout.file_size, default=0)
    return media_type(torrent.file_path(largest))


def labels_of(torrent: TorrentView) -> list[str]:
    """Return its labels with the hop count among them, so that every client shows it."""
    return [*torrent.record.labels, hops_label(torrent)]


def hops_label(torrent: TorrentView) -> str:
    return f"hops:{torrent.record.hops}"


def _activity_date(torrent: TorrentView) -> int:
    moments = (torrent.status.last_upload, torrent.status.last_download)
    return max((int(moment.timestamp()) for moment in moments if moment is not None), default=0)


def _seconds_downloading(torrent: TorrentView) -> int:
    now_s = time.monotonic()
    finished_s = torrent.seeding_s(now_s) or torrent.status.finished_duration.total_seconds()
    return max(0, int(torrent.active_s_by(now_s) - finished_s))


FIELDS: dict[str, Callable[[TorrentView], object]] = {
    "activity_date": _activity_date,
    "added_date": lambda t: int(t.record.added_s),
    "availability": _availability,
    "bandwidth_priority": lambda t: t.record.bandwidth_priority,
    "comment": lambda t: t.info.comment() if t.info else "",
    "corrupt_ever": lambda t: t.status.total_failed_bytes,
    "creator": lambda t: t.info.creator() if t.info else "",
    "date_created": lambda t: t.info.creation_date() if t.info else 0,
    "desired_available": lambda t: t.left_bytes if t.status.distributed_copies >= 1 else 0,
    "done_date": lambda t: int(t.record.done_s),
    "download_dir": lambda t: t.record.final_folder,
    "downloaded_ever": lambda t: t.totals.downloaded,
    "download_limit": lambda t: t.record.download_limit_kb,
    "download_limited": lambda t: t.record.download_limited,
    "edit_date": lambda t: int(t.record.edited_s),
    "error": lambda t: _error(t)[0],
    "error_string": lambda t: _error(t)[1],
    "eta": _eta,
    "eta_idle": lambda t: ETA_NOT_AVAILABLE,
    "file_count": lambda t: len(t.file_indexes()),
    "files": _files,
    "file_stats": _file_stats,
    "group": lambda t: t.record.group,
    "hash_string": lambda t: t.hash_string,
    "have_unchecked": lambda t: 0,
    "have_valid": lambda t: t.status.total_done,
    "hops": lambda t: t.record.hops,  # our own field
    "honors_session_limits": lambda t: t.record.honors_session_limits,
    "id": lambda t: t.record.number,
    "is_finished": lambda t: t.record.stopped_by_limit and t.is_finished,
    "is_private": lambda t: bool(t.info and t.info.priv()),
    "is_stalled": lambda t: t.activity is Activity.RUNNING and not t.down_rate and not t.up_rate,
    "labels": labels_of,
    "left_until_done": lambda t: t.left_bytes,
    "magnet_link": magnet_link,
    "manual_announce_time": lambda t: -1,
    "max_connected_peers": lambda t: t.record.peer_limit,
    "metadata_percent_complete": lambda t: 1.0 if t.status.has_metadata else 0.0,
    "name": name_in_folder,
    "peer_limit": lambda t: t.record.peer_limit,
    "peers": _peers,
    "peers_connected": lambda t: t.status.num_peers,
    "peers_from": _peers_from,
    "peers_getting_from_us": _peers_getting,
    "peers_sending_to_us": _peers_sending,
    "percent_complete": lambda t: t.status.total_done / total_bytes(t) if total_bytes(t) else 0.0,
    "percent_done": lambda t: t.progress,
    "pieces": _pieces,
    "piece_count": lambda t: t.info.num_pieces() if t.info else 0,
    "piece_size": lambda t: t.info.piece_length() if t.info else 0,
    "priorities": lambda t: [_priority(t, i) for i in t.file_indexes()],
    "primary_mime_type": _mime_type,
    "queue_position": lambda t: t.record.position,
    "rate_download": lambda t: t.down_rate,
    "rate_upload": lambda t: t.up_rate,
    "recheck_progress": lambda t: t.status.progress if t.is_checking else 0.0,
    "seconds_downloading": _seconds_downloading,
    "seconds_seeding": lambda t: int(t.seeding_s(time.monotonic())),
    "seed_idle_limit": lambda t: t.record.idle_limit_min,
    "seed_idle_mode": lambda t: int(t.record.idle_mode),
    "seed_ratio_limit": lambda t: t.record.ratio_limit,
    "seed_ratio_mode": lambda t: int(t.record.ratio_mode),
    "sequential_download": lambda t: t.record.sequential,
    "size_when_done": lambda t: t.status.total_wanted,
    "start_date": lambda t: int(t.record.added_s),
    "status": status_of,
    "torrent_file": lambda t: "",
    "total_size": total_bytes,
    "trackers": trackers.entries,
    "tracker_list": trackers.text,
    "tracker_stats": trackers.stats,
    "uploaded_ever": lambda t: t.totals.uploaded,
    "upload_limit": lambda t: t.record.upload_limit_kb,
    "upload_limited": lambda t: t.record.upload_limited,
    "upload_ratio": ratio,
    "wanted": lambda t: [int(t.is_wanted(i)) for i in t.file_indexes()],
    "webseeds": lambda t: t.record.web_seeds,
    "webseeds_sending_to_us": lambda t: 0,
}

ASKED_OF_PEERS = frozenset(("peers", "peers_from", "peers_getting_from_us", "peers_sending_to_us"))
"""Fields made from the peers, which a torrent without peers leaves empty or 0."""

MADE_ANEW = frozenset((
    "availability", "files", "file_stats", "magnet_link", "peers", "peers_from", "pieces", "tracker_list",
    "seconds_downloading", "seconds_seeding", "tracker_stats", "trackers", "webseeds",
))  # fmt: skip
"""Fields that may change without the torrent's status, or whose inner keys each form of the RPC spells differently."""
