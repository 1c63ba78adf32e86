"""A torrent as torrents/info and its like show it (qBittorrent's serialize_torrent.cpp, torrentscontroller.cpp)."""

import os
import time
from collections.abc import Mapping
from typing import Any

import libtorrent as lt

from tunnel_pool.daemon.record import HIGH, NORMAL, UNWANTED, LimitMode, Record
from tunnel_pool.daemon.rules.life import State
from tunnel_pool.daemon.server.qbittorrent.categories import category_of, tags_of
from tunnel_pool.daemon.server.shown import UTP_SOCKET, eta_s, magnet_link, ratio, total_bytes
from tunnel_pool.daemon.storage.settings import Settings
from tunnel_pool.daemon.torrents.view import TorrentView

ETA_UNKNOWN = 8_640_000  # 100 days
GLOBAL_LIMIT, NO_LIMIT = -2, -1
MONTH_S = 30 * 24 * 3600
NEVER = -1
# qBittorrent's priorities of files, and libtorrent's.
PRIORITIES = {0: UNWANTED, 1: NORMAL, 6: 6, 7: HIGH}


def _state_of(torrent: TorrentView) -> str:
    """Return the state by qBittorrent's names (torrent.h, TorrentState)."""
    end = "UP" if torrent.is_finished else "DL"
    match torrent.state:
        case State.MISSING:
            return "missingFiles"
        case State.FAILED | State.NO_ROOM:
            return "error"
        case State.MOVING:
            return "moving"
        case State.SEEDING if torrent.is_going_home:
            return "moving"
        case State.DOWNLOADING | State.SEEDING:
            return _running_state(torrent, end)
        case state:
            return f"{state.name.lower()}{end}"


def _running_state(torrent: TorrentView, end: str) -> str:
    is_forced = torrent.record.started_now
    if not torrent.summary.has_metadata:
        return "forcedMetaDL" if is_forced else "metaDL"
    if is_forced:
        return f"forced{end}"
    if torrent.is_finished:
        return "uploading" if torrent.up_rate else "stalledUP"
    return "downloading" if torrent.down_rate else "stalledDL"


def info(torrent: TorrentView, settings: Settings, categories: Mapping[str, str]) -> dict[str, object]:
    """Return what changes with the torrent's status or record, and with time."""
    record, status = torrent.record, torrent.status
    metainfo = torrent.info
    now_s = time.monotonic()
    active_s, seeding_s = int(torrent.active_s_by(now_s)), int(torrent.seeding_s(now_s))
    own_ratio, left_s = ratio(torrent), eta_s(torrent)
    return {
        "hash": torrent.hash_string,
        "infohash_v1": str(status.info_hashes.v1) if status.info_hashes.has_v1() else "",
        "infohash_v2": str(status.info_hashes.v2) if status.info_hashes.has_v2() else "",
        "name": record.name,
        "has_metadata": metainfo is not None,
        "created_by": metainfo.creator() if metainfo else "",
        "creation_date": metainfo.creation_date() if metainfo else NEVER,
        "comment": metainfo.comment() if metainfo else "",
        "private": torrent.is_private if metainfo else None,
        "total_size": total_bytes(torrent) if metainfo else NEVER,
        "pieces_num": metainfo.num_pieces() if metainfo else 0,
        "piece_size": metainfo.piece_length() if metainfo else 0,
        "pieces_have": status.num_pieces,
        "size": status.total_wanted,
        "progress": torrent.progress,
        "total_wasted": status.total_failed_bytes + status.total_redundant_bytes,
        "dlspeed": torrent.down_rate,
        "upspeed": torrent.up_rate,
        "priority": 0 if torrent.is_finished else record.position + 1,
        "num_seeds": status.num_seeds,
        "num_complete": _known(status.num_complete, status.list_seeds),
        "num_leechs": max(0, status.num_peers - status.num_seeds),
        "num_incomplete": _known(status.num_incomplete, status.list_peers - status.list_seeds),
        "state": _state_of(torrent),
        "eta": min(ETA_UNKNOWN, ETA_UNKNOWN if left_s is None else left_s),
        "seq_dl": record.sequential,
        "f_l_piece_prio": False,
        "category": category_of(record.labels, categories),
        "tags": ", ".join(tags_of(record.labels, record.hops, categories)),
        "hops": record.hops,  # our own field
        "super_seeding": False,
        "force_start": record.started_now,
        "save_path": record.final_folder,
        "download_path": record.folder if record.folder_when_done else "",
        "added_on": int(record.added_s),
        "completion_on": int(record.done_s) or NEVER,
        "tracker": status.current_tracker,
        "dl_limit": record.download_limit_kb * 1000 if record.download_limited else NO_LIMIT,
        "up_limit": record.upload_limit_kb * 1000 if record.upload_limited else NO_LIMIT,
        "downloaded": torrent.totals.downloaded,
        "uploaded": torrent.totals.uploaded,
        "downloaded_session": status.total_payload_download,
        "uploaded_session": status.total_payload_upload,
        "amount_left": torrent.left_bytes,
        "completed": status.total_wanted_done,
        "connections_count": status.num_connections,
        "connections_limit": record.peer_limit,
        "ratio": max(0.0, own_ratio),
        "popularity": max(0.0, own_ratio) * MONTH_S / active_s if active_s else 0.0,
        **_limits(record, settings),
        "share_limit_action": "Default",
        "seen_complete": status.last_seen_complete or NEVER,
        "auto_tmm": False,
        "time_active": active_s,
        "seeding_time": seeding_s,
        "last_activity": max(_moment(status.last_upload), _moment(status.last_download), int(record.added_s)),
        "availability": status.distributed_copies,
        "reannounce": max(0, _seconds(status.next_announce)),
    }


def seldom(torrent: TorrentView) -> dict[str, object]:
    """Return what libtorrent has to be asked for, and what takes long. Raises RuntimeError between sessions."""
    content_path, root_path = _paths(torrent)
    return {
        "content_path": content_path,
        "root_path": root_path,
        "magnet_uri": magnet_link(torrent),
    }


def _limits(record: Record, settings: Settings) -> dict[str, object]:
    """Return the limits of seeding as they were set, and as they hold; times are minutes."""
    limits = settings.queue_limits()
    kinds = (
        ("ratio", record.ratio_mode, record.ratio_limit, limits.ratio),
        ("seeding_time", record.seeding_mode, record.seeding_limit_min, limits.seeding_min),
        ("inactive_seeding_time", record.idle_mode, record.idle_limit_min, limits.idle_min),
    )
    shown: dict[str, object] = {}
    for kind, mode, own, of_session in kinds:
        name = f"{kind}_limit"
        in_general = NO_LIMIT if of_session is None else of_session
        shown[name] = {LimitMode.GLOBAL: GLOBAL_LIMIT, LimitMode.UNLIMITED: NO_LIMIT, LimitMode.SINGLE: own}[mode]
        shown[f"max_{kind}"] = in_general if mode is LimitMode.GLOBAL else shown[name]
    return shown


def properties(torrent: TorrentView, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return what torrents/properties says of a torrent whose `info` is given."""
    same = (
        "infohash_v1", "infohash_v2", "name", "hash", "eta", "dl_limit", "up_limit", "popularity", "reannounce",
        "total_size", "pieces_num", "piece_size", "pieces_have", "created_by", "private", "creation_date", "save_path",
        "download_path", "comment", "has_metadata", "progress", "seeding_time", "availability", "total_wasted",
    )  # fmt: skip
    active_s, seeding_s = row["time_active"], row["seeding_time"]
    return {
        **{name: row[name] for name in same},
        "time_elapsed": active_s,
        "nb_connections": row["connections_count"],
        "nb_connections_limit": row["connections_limit"],
        "total_downloaded": row["downloaded"],
        "total_downloaded_session": row["downloaded_session"],
        "total_uploaded": row["uploaded"],
        "total_uploaded_session": row["uploaded_session"],
        "dl_speed": row["dlspeed"],
        "dl_speed_avg": row["downloaded"] // (active_s - seeding_s) if active_s > seeding_s else -1,
        "up_speed": row["upspeed"],
        "up_speed_avg": row["uploaded"] // active_s if active_s else -1,
        "seeds": row["num_seeds"],
        "seeds_total": row["num_complete"],
        "peers": row["num_leechs"],
        "peers_total": row["num_incomplete"],
        "share_ratio": row["ratio"],
        "is_private": torrent.is_private,
        "addition_date": row["added_on"],
        "last_seen": row["seen_complete"],
        "completion_date": row["completion_on"],
    }


def files(torrent: TorrentView) -> list[dict[str, object]]:
    """Return its files, none until the metadata is known. Raises RuntimeError while it is between sessions."""
    layout = torrent.layout
    if layout is None:
        return []
    done, piece_bytes = torrent.file_bytes(), layout.piece_length()
    is_there = _piece_is_there(torrent)
    rows = []
    for place, index in enumerate(torrent.file_indexes()):
        size, start = layout.file_size(index), layout.file_offset(index)
        first, last = start // piece_bytes, max(start, start + size - 1) // piece_bytes
        rows.append(
            {
                "index": place,
                "name": torrent.file_path(index),
                "size": size,
                "progress": done[index] / size if size else 1.0,
                "priority": priority_shown(torrent.priority(index)),
                "piece_range": [first, last],
                "availability": sum(is_there[first : last + 1]) / (last + 1 - first),
            }
        )
    if rows:
        rows[0]["is_seed"] = torrent.is_finished
    return rows


def priority_shown(priority: int) -> int:
    return 0 if priority == UNWANTED else 1 if priority <= NORMAL else min(max(priority, 6), 7)


def piece_states(torrent: TorrentView) -> list[int]:
    """Return 0, 1 or 2 for each piece: it is missing, it comes now, it is there."""
    have = torrent.handle.status(lt.torrent_handle.query_pieces).pieces
    states = [2 * bool(has) for has in have]
    for piece in torrent.handle.get_download_queue():
        if piece["piece_index"] < len(states) and not states[piece["piece_index"]]:
            states[piece["piece_index"]] = 1
    return states


def _piece_is_there(torrent: TorrentView) -> list[bool]:
    """Return whether each piece is here or with a connected peer."""
    have = torrent.handle.status(lt.torrent_handle.query_pieces).pieces
    counts = torrent.handle.piece_availability() or [0] * len(have)
    return [bool(has or count) for has, count in zip(have, counts, strict=False)]


def peers(torrent: TorrentView) -> dict[str, dict[str, object]]:
    """Return the connected peers, by address and port. Raises RuntimeError while it is between sessions."""
    kind = lt.peer_info
    return {
        f"{peer.ip[0]}:{peer.ip[1]}": {
            "ip": peer.ip[0],
            "port": peer.ip[1],
            "host_name": "",
            "country": "",
            "country_code": "",
            "client": peer.client.decode(errors="replace") if isinstance(peer.client, bytes) else peer.client,
            "peer_id_client": "",
            "connection": "uTP" if peer.flags & UTP_SOCKET else "BT",
            "flags": "",
            "flags_desc": "",
            "progress": peer.progress,
            "relevance": 1.0 if peer.flags & kind.interesting else 0.0,
            "dl_speed": peer.payload_down_speed,
            "up_speed": peer.payload_up_speed,
            "downloaded": peer.total_download,
            "uploaded": peer.total_upload,
            "files": "",
        }
        for peer in torrent.peer_infos()
    }


def _paths(torrent: TorrentView) -> tuple[str, str]:
    """Return the path of its content: of its only file, or of the folder of all its files; and that folder's alone."""
    folder, paths = torrent.record.folder, torrent.file_paths(torrent.file_indexes())
    tops = {path.split("/", 1)[0] if "/" in path else "" for path in paths}
    root = os.path.join(folder, tops.pop()) if len(tops) == 1 and "" not in tops else ""
    only = os.path.join(folder, paths[0]) if len(paths) == 1 else ""
    return only or root or (folder if paths else ""), root


def _known(told: int, seen: int) -> int:
    """Return what trackers tell of a swarm, else what was seen of it."""
    return told if 0 <= told < 0xFFFFFF else max(0, seen)


def _seconds(duration: Any) -> int:
    return int(duration.total_seconds())


def _moment(moment: Any) -> int:
    """Return seconds since the epoch, NEVER for what has not happened."""
    return int(moment.timestamp()) if moment is not None else NEVER
