"""app/preferences: the daemon's settings by qBittorrent's names (its appcontroller.cpp). Pure."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from tunnel_pool.daemon.errors import RequestError
from tunnel_pool.daemon.rules.groups import MAX_KB_PER_S
from tunnel_pool.daemon.storage.settings import Settings
from tunnel_pool.torrent.sessions.session_settings import Encryption

NO_LIMIT = -1
ENCRYPTIONS = (Encryption.PREFERRED, Encryption.REQUIRED, Encryption.TOLERATED)  # by qBittorrent's numbers
DAYS = (127, 62, 65, 2, 4, 8, 16, 32, 64, 1)  # qBittorrent's scheduler_days, as Transmission's bits
LIMITS = ("max_ratio_enabled", "max_seeding_time_enabled", "max_inactive_seeding_time_enabled")
TCP_AND_UTP, TCP_ALONE = 0, 1
STOP = 0  # qBittorrent's max_ratio_act
FIXED: dict[str, object] = {
    "add_to_top_of_queue": False,
    "add_trackers": "",
    "add_trackers_enabled": False,
    "alternative_webui_enabled": False,
    "anonymous_mode": True,
    "auto_delete_mode": 0,
    "auto_tmm_enabled": False,
    "autorun_enabled": False,
    "autorun_on_torrent_added_enabled": False,
    "autorun_on_torrent_added_program": "",
    "autorun_program": "",
    "banned_IPs": "",
    "category_changed_tmm_enabled": False,
    "excluded_file_names": "",
    "excluded_file_names_enabled": False,
    "export_dir": "",
    "export_dir_fin": "",
    "incomplete_files_ext": False,
    "ip_filter_path": "",
    "ip_filter_trackers": False,
    "locale": "en",
    "max_active_torrents": NO_LIMIT,
    "max_ratio_act": STOP,
    "max_uploads": NO_LIMIT,
    "max_uploads_per_torrent": NO_LIMIT,
    "merge_trackers": False,
    "preallocate_all": False,
    "proxy_type": "None",
    "random_port": False,
    "refresh_interval": 1500,
    "resolve_peer_countries": False,
    "rss_auto_downloading_enabled": True,
    "rss_processing_enabled": True,
    "save_path_changed_tmm_enabled": False,
    "scan_dirs": {},
    "torrent_changed_tmm_enabled": False,
    "torrent_content_layout": "Original",
    "torrent_stop_condition": "None",
    "upnp": False,
    "use_category_paths_in_manual_mode": True,
    "use_https": False,
    "web_ui_upnp": False,
}
"""What qBittorrent has and we have not, or have always: shown as it is here, and not to be changed."""

NO_PROGRAMS = "start the daemon with --script-done; whoever could set it here could run any program"
INSTEAD = {
    "autorun_enabled": NO_PROGRAMS,
    "autorun_on_torrent_added_enabled": NO_PROGRAMS,
    "autorun_on_torrent_added_program": NO_PROGRAMS,
    "autorun_program": NO_PROGRAMS,
    "ip_filter_enabled": "start the daemon with --blocklist",
    "ip_filter_path": "start the daemon with --blocklist",
    "listen_port": "start the daemon with --plain-listen",
    "proxy_type": "torrents go over the tunnels",
    "random_port": "start the daemon with --plain-listen IP:0",
    "scan_dirs": "start the daemon with --watch",
    "upnp": "routers are asked for nothing; open the port by hand",
    "web_ui_password": "start the daemon with --rpc-password-file",
    "web_ui_username": "start the daemon with --rpc-user",
}
"""What to do in place of setting these."""


def shown(settings: Settings, listen_port: int, is_filtered: bool = False) -> dict[str, object]:
    """Return all preferences; speeds are bytes a second, 0 for no limit."""
    return {
        **FIXED,
        "listen_port": listen_port,
        "ip_filter_enabled": is_filtered,
        "save_path": settings.folder,
        "temp_path": settings.incomplete_dir,
        "temp_path_enabled": settings.incomplete_dir_enabled,
        "add_stopped_enabled": not settings.start_added_torrents,
        "dl_limit": settings.speed_limit_down * 1000 if settings.speed_limit_down_enabled else 0,
        "up_limit": settings.speed_limit_up * 1000 if settings.speed_limit_up_enabled else 0,
        "alt_dl_limit": settings.alt_speed_down * 1000,
        "alt_up_limit": settings.alt_speed_up * 1000,
        "scheduler_enabled": settings.alt_speed_time_enabled,
        "schedule_from_hour": settings.alt_speed_time_begin // 60,
        "schedule_from_min": settings.alt_speed_time_begin % 60,
        "schedule_to_hour": settings.alt_speed_time_end // 60,
        "schedule_to_min": settings.alt_speed_time_end % 60,
        "scheduler_days": DAYS.index(settings.alt_speed_time_day) if settings.alt_speed_time_day in DAYS else 0,
        "dht": settings.dht_enabled,
        "pex": settings.pex_enabled,
        "lsd": settings.lpd_enabled,
        "encryption": ENCRYPTIONS.index(settings.encryption),
        "bittorrent_protocol": TCP_AND_UTP if settings.utp_enabled else TCP_ALONE,
        "max_connec": settings.peer_limit_global,
        "max_connec_per_torrent": settings.peer_limit_per_torrent,
        "queueing_enabled": settings.download_queue_enabled,
        "max_active_downloads": settings.download_queue_size,
        "max_active_uploads": settings.seed_queue_size if settings.seed_queue_enabled else NO_LIMIT,
        "max_ratio_enabled": settings.seed_ratio_limited,
        "max_ratio": settings.seed_ratio_limit if settings.seed_ratio_limited else NO_LIMIT,
        "max_seeding_time_enabled": settings.seeding_time_limited,
        "max_seeding_time": settings.seeding_time_limit if settings.seeding_time_limited else NO_LIMIT,
        "max_inactive_seeding_time_enabled": settings.idle_seeding_limit_enabled,
        "max_inactive_seeding_time": settings.idle_seeding_limit if settings.idle_seeding_limit_enabled else NO_LIMIT,
    }


def changed(
    settings: Settings, text: str, listen_port: int, is_filtered: bool = False
) -> tuple[Settings, list[str], int]:
    """Return the settings after app/setPreferences, a sentence for each that can't be set, and how many were given.

    It is given a JSON object of preferences. Clients send back what they were shown, which changes nothing. Raises
    RequestError for what is none.
    """
    try:
        wanted = json.loads(text)
    except (ValueError, RecursionError):
        wanted = None
    if not isinstance(wanted, dict):
        raise RequestError("'json' is not a JSON object of preferences")
    before = shown(settings, listen_port, is_filtered)
    after = msgspec.to_builtins(settings)
    # Of a pair, the switch holds over the limit.
    off = {name.removesuffix("_enabled") for name, value in wanted.items() if name in LIMITS and value is False}
    refusals = []
    for name, value in wanted.items():
        if name in off:
            continue
        if name in before and before[name] == value:
            continue
        if name not in SETTABLE:
            why = INSTEAD.get(name, "this daemon does not have it")
            refusals.append(f"{name[:50]} can't be changed here: {why}")
            continue
        try:
            changed = msgspec.convert(after | SETTABLE[name](after, value), Settings)
        except (TypeError, ValueError, LookupError, OverflowError, msgspec.ValidationError):
            refusals.append(f"{name} can't be {str(value)[:50]!r}")
        else:
            after = msgspec.to_builtins(changed)
    return msgspec.convert(after, Settings), refusals, len(wanted)


Setter = Callable[[dict[str, Any], Any], Mapping[str, object]]
"""Returns the fields of the settings that a preference sets, by what they were and its value."""


def _same(field: str) -> Setter:
    return lambda before, value: {field: value}


def _opposite(field: str) -> Setter:
    return lambda before, value: {field: not value}


def speed_fields(field: str, switch: str, limit: int) -> dict[str, object]:
    """Return the fields that a limit in bytes a second sets: 0 and less switch it off."""
    return {switch: True, field: _kilobytes(limit)} if limit > 0 else {switch: False}


def _kilobytes(limit: int) -> int:
    return min(MAX_KB_PER_S, max(1, round(limit / 1000)))


def _speed(field: str, switch: str) -> Setter:
    return lambda before, value: speed_fields(field, switch, int(value))


def _alternative_speed(field: str) -> Setter:
    """Return what sets a speed that is always limited."""

    def fields(before: dict[str, Any], value: Any) -> Mapping[str, object]:
        if int(value) <= 0:
            raise ValueError
        return {field: _kilobytes(int(value))}

    return fields


def _time(field: str, is_hour: bool) -> Setter:
    def fields(before: dict[str, Any], value: Any) -> Mapping[str, object]:
        hour, minute = divmod(before[field], 60)
        if not 0 <= value < (24 if is_hour else 60):
            raise ValueError
        return {field: 60 * value + minute if is_hour else 60 * hour + value}

    return fields


def _limited(field: str, switch: str) -> Setter:
    """Return what sets a limit that is switched off by a negative value."""
    return lambda before, value: {switch: False} if value < 0 else {field: value, switch: True}


SETTABLE: dict[str, Setter] = {
    "save_path": _same("folder"),
    "temp_path": _same("incomplete_dir"),
    "temp_path_enabled": _same("incomplete_dir_enabled"),
    "add_stopped_enabled": _opposite("start_added_torrents"),
    "dl_limit": _speed("speed_limit_down", "speed_limit_down_enabled"),
    "up_limit": _speed("speed_limit_up", "speed_limit_up_enabled"),
    "alt_dl_limit": _alternative_speed("alt_speed_down"),
    "alt_up_limit": _alternative_speed("alt_speed_up"),
    "scheduler_enabled": _same("alt_speed_time_enabled"),
    "schedule_from_hour": _time("alt_speed_time_begin", True),
    "schedule_from_min": _time("alt_speed_time_begin", False),
    "schedule_to_hour": _time("alt_speed_time_end", True),
    "schedule_to_min": _time("alt_speed_time_end", False),
    "scheduler_days": lambda before, value: {"alt_speed_time_day": dict(enumerate(DAYS))[value]},
    "dht": _same("dht_enabled"),
    "pex": _same("pex_enabled"),
    "lsd": _same("lpd_enabled"),
    "encryption": lambda before, value: {"encryption": dict(enumerate(ENCRYPTIONS))[value].value},
    "bittorrent_protocol": lambda before, value: {"utp_enabled": {TCP_AND_UTP: True, TCP_ALONE: False}[value]},
    "max_connec": _same("peer_limit_global"),
    "max_connec_per_torrent": _same("peer_limit_per_torrent"),
    "queueing_enabled": _same("download_queue_enabled"),
    "max_active_downloads": _same("download_queue_size"),
    "max_active_uploads": _limited("seed_queue_size", "seed_queue_enabled"),
    "max_ratio_enabled": _same("seed_ratio_limited"),
    "max_ratio": _limited("seed_ratio_limit", "seed_ratio_limited"),
    "max_seeding_time_enabled": _same("seeding_time_limited"),
    "max_seeding_time": _limited("seeding_time_limit", "seeding_time_limited"),
    "max_inactive_seeding_time_enabled": _same("idle_seeding_limit_enabled"),
    "max_inactive_seeding_time": _limited("idle_seeding_limit", "idle_seeding_limit_enabled"),
}
"""What gives the fields of the settings for a preference's new value, from their values before and this one."""
