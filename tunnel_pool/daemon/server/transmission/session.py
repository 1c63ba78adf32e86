"""The settings that session-get shows and session-set changes (Transmission's docs/rpc-spec.md 4.1)."""

import hashlib
import shutil

import msgspec

from tunnel_pool import __version__
from tunnel_pool.daemon.server.guard import GUESSES_AT_ONCE
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
FIXED: dict[str, object] = {
    "anti_brute_force_enabled": True,
    "anti_brute_force_threshold": GUESSES_AT_ONCE,
    "blocklist_url": "",
    "cache_size_mb": 4,
    "default_trackers": "",
    "peer_port_random_on_start": False,
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
}

NO_SCRIPTS = "start the daemon with --script-done; whoever could set it here could run any program"
INSTEAD = {
    "anti_brute_force_enabled": "wrong passwords are always slowed down",
    "anti_brute_force_threshold": "wrong passwords are always slowed down",
    "blocklist_enabled": "start the daemon with --blocklist",
    "blocklist_url": "lists are not fetched, which would tell others of you: start the daemon with --blocklist",
    "default_trackers": "add them to a torrent by torrent-set",
    "peer_port": "start the daemon with --plain-listen",
    "peer_port_random_on_start": "start the daemon with --plain-listen IP:0",
    "port_forwarding_enabled": "routers are asked for nothing; open the port by hand",
    "script_torrent_done_enabled": NO_SCRIPTS,
    "script_torrent_done_filename": NO_SCRIPTS,
    "tcp_enabled": "torrents without hops always use TCP",
    "trash_original_torrent_files": "files in watched folders are renamed to .added",
}
"""What to do in place of setting these."""

NOT_OURS = ("categories", "groups", "tags", "seeding_time_limit", "seeding_time_limited")
"""Settings that Transmission does not know."""


def fixed(peer_port: int, blocked: int) -> dict[str, object]:
    """Return what is shown and can't be changed here; `blocked` is how many ranges of addresses are."""
    return {**FIXED, "blocklist_enabled": blocked > 0, "blocklist_size": blocked, "peer_port": peer_port}


def shown(settings: Settings, session_id: str, peer_port: int, blocked: int) -> dict[str, object]:
    own = {name: value for name, value in msgspec.to_builtins(settings).items() if name not in NOT_OURS}
    folder = own.pop("folder")
    return {
        **fixed(peer_port, blocked),
        **own,
        "download_dir": folder,
        "download_dir_free_space": _free_bytes(folder),
        "config_dir": "",
        "rpc_version": RPC_VERSION,
        "rpc_version_minimum": RPC_VERSION_MINIMUM,
        "rpc_version_semver": RPC_VERSION_SEMVER,
        "session_id": session_id,
        "units": UNITS,
        "version": VERSION,
    }


def changed(
    settings: Settings, arguments: dict[str, object], peer_port: int, blocked: int
) -> tuple[Settings, list[str]]:
    """Return the changed settings, and a sentence for each argument that can't be changed here.

    Names that Transmission does not know are passed over, as it does. Clients send back what session-get has shown,
    which changes nothing. Raises msgspec.ValidationError.
    """
    arguments = dict(arguments)
    refusals = [
        f"{name.replace('_', '-')} can't be changed here: {INSTEAD.get(name, 'this daemon does not have it')}"
        for name, value in fixed(peer_port, blocked).items()
        if name in arguments and arguments[name] != value
    ]
    if "download_dir" in arguments:
        arguments["folder"] = arguments.pop("download_dir")
    known = {
        name: value for name, value in arguments.items() if name in settings.__struct_fields__ and name not in NOT_OURS
    }
    return msgspec.convert({**msgspec.to_builtins(settings), **known}, Settings, strict=False), refusals


def _free_bytes(folder: str) -> int:
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return -1
