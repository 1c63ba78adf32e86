"""What session-get shows and session-set changes (Transmission's docs/rpc-spec.md 4.1)."""

import hashlib
import shutil
from typing import Any

import msgspec

from tunnel_pool import __version__
from tunnel_pool.daemon.storage.settings import Settings

RPC_VERSION = 18
RPC_VERSION_MINIMUM = 14
RPC_VERSION_SEMVER = "6.0.0"
# Clients read a Transmission version from it, and expect a commit in brackets.
VERSION = f"4.0.6 ({hashlib.sha256(__version__.encode()).hexdigest()[:10]})"
UNITS = {
    "speed_units": ["kB/s", "MB/s", "GB/s", "TB/s"],
    "speed_bytes": 1000,
    "size_units": ["kB", "MB", "GB", "TB"],
    "size_bytes": 1000,
    "memory_units": ["KiB", "MiB", "GiB", "TiB"],
    "memory_bytes": 1024,
}
# What Transmission has and we have not: shown as it is here, and not to be changed.
FIXED: dict[str, Any] = {
    "blocklist_enabled": False,
    "blocklist_size": 0,
    "blocklist_url": "",
    "cache_size_mb": 4,
    "default_trackers": "",
    "dht_enabled": True,
    "encryption": "preferred",
    "incomplete_dir": "",
    "incomplete_dir_enabled": False,
    "lpd_enabled": False,
    "peer_port_random_on_start": False,
    "pex_enabled": True,
    "port_forwarding_enabled": False,
    "queue_stalled_enabled": False,
    "queue_stalled_minutes": 30,
    "rename_partial_files": False,
    "script_torrent_added_enabled": False,
    "script_torrent_added_filename": "",
    "script_torrent_done_enabled": False,
    "script_torrent_done_filename": "",
    "script_torrent_done_seeding_enabled": False,
    "script_torrent_done_seeding_filename": "",
    "tcp_enabled": True,
    "trash_original_torrent_files": False,
    "utp_enabled": True,
}


def shown(settings: Settings, session_id: str, peer_port: int) -> dict[str, Any]:
    own = msgspec.to_builtins(settings)
    folder = own.pop("folder")
    return {
        **FIXED,
        **own,
        "download_dir": folder,
        "download_dir_free_space": _free_bytes(folder),
        "config_dir": "",
        "peer_port": peer_port,
        "rpc_version": RPC_VERSION,
        "rpc_version_minimum": RPC_VERSION_MINIMUM,
        "rpc_version_semver": RPC_VERSION_SEMVER,
        "session_id": session_id,
        "units": UNITS,
        "version": VERSION,
    }


def changed(settings: Settings, arguments: dict[str, Any]) -> Settings:
    """Return the changed settings; unknown or fixed names are passed over. Raises msgspec.ValidationError."""
    arguments = dict(arguments)
    if "download_dir" in arguments:
        arguments["folder"] = arguments.pop("download_dir")
    known = {name: value for name, value in arguments.items() if name in settings.__struct_fields__}
    return msgspec.convert({**msgspec.to_builtins(settings), **known}, Settings, strict=False)


def _free_bytes(folder: str) -> int:
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return -1
