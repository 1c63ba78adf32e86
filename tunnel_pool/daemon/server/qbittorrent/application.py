"""Answers what qBittorrent's clients ask of the program itself, its transfers and its changes."""

import asyncio
import itertools
import os
import shutil
import time
from collections.abc import Callable, Mapping

import libtorrent as lt
import msgspec

from tunnel_pool.contract import Tunnels
from tunnel_pool.daemon.changes.moves import check_folders
from tunnel_pool.daemon.errors import ConflictError, NotFoundError, RequestError, refuse_some
from tunnel_pool.daemon.server.api.views import ready_circuits
from tunnel_pool.daemon.server.logins import Logins
from tunnel_pool.daemon.server.qbittorrent import categories, preferences
from tunnel_pool.daemon.server.qbittorrent.deltas import Deltas
from tunnel_pool.daemon.server.qbittorrent.shown import Shown
from tunnel_pool.daemon.server.qbittorrent.words import Call, Words
from tunnel_pool.daemon.storage.settings import Settings
from tunnel_pool.overlay.ground.pacing import Newest

VERSION = "v5.2.3"
API_VERSION = "2.15.1"
FOLDERS = ("folder", "incomplete_dir", "incomplete_dir_enabled")  # settings that go together
FREE_SPACE_FOR_S = 10.0
MODES = ("all", "dirs", "files")  # of what is in a folder
MAX_PATHS = 10_000  # of a folder that are shown
MAX_FOLLOWED = 16  # clients that are told of changes alone; for each, all torrents are kept as it knows them


class Application:
    def __init__(self, shown: Shown, tunnels: Tunnels, logins: Logins, stop: Callable[[], None]) -> None:
        self._library = shown.library
        self._changes = shown.changes
        self._tunnels = tunnels
        self._shown = shown
        self._logins = logins
        self._stop = stop
        self._started_s = int(time.time())
        self._deltas = Newest[str, Deltas](MAX_FOLLOWED)  # by login; others are told everything each time
        self._of_others = Deltas()  # of those who are not logged in by a cookie; each may disturb the others'
        self._free_space = float("-inf"), 0  # when it was looked at, and the bytes

    def reading(self) -> dict[str, Call]:
        return {
            "app/buildInfo": self._build_info,
            "app/cookies": self._nothing,
            "app/defaultSavePath": self._default_folder,
            "app/getDirectoryContent": self._folder_content,
            "app/networkInterfaceAddressList": self._nothing,
            "app/networkInterfaceList": self._nothing,
            "app/preferences": self._preferences,
            "app/processInfo": self._process_info,
            "app/version": self._text(VERSION),
            "app/webapiVersion": self._text(API_VERSION),
            "log/main": self._nothing,
            "log/peers": self._nothing,
            "search/plugins": self._nothing,
            "sync/maindata": self._main_data,
            "transfer/downloadLimit": self._download_limit,
            "transfer/info": self._transfer_info,
            "transfer/speedLimitsMode": self._speed_limits_mode,
            "transfer/uploadLimit": self._upload_limit,
        }

    def changing(self) -> dict[str, Call]:
        return {
            "app/setPreferences": self._set_preferences,
            "app/shutdown": self._shutdown,
            "transfer/banPeers": self._ban_peers,
            "transfer/setDownloadLimit": self._set_speed("speed_limit_down", "speed_limit_down_enabled"),
            "transfer/setSpeedLimitsMode": self._set_speed_limits_mode,
            "transfer/setUploadLimit": self._set_speed("speed_limit_up", "speed_limit_up_enabled"),
            "transfer/toggleSpeedLimitsMode": self._toggle_speed_limits_mode,
        }

    @property
    def _settings(self) -> Settings:
        return self._library.records.settings

    @staticmethod
    def _text(text: str) -> Call:
        async def call(words: Words) -> str:
            return text

        return call

    async def _nothing(self, words: Words) -> list[object]:
        return []

    async def _build_info(self, words: Words) -> dict[str, object]:
        versions = {"qt": "", "libtorrent": lt.__version__, "boost": "", "openssl": "", "zlib": ""}
        return {**versions, "bitness": 64, "platform": "linux"}

    async def _process_info(self, words: Words) -> dict[str, int]:
        return {"launch_time": self._started_s}

    async def _shutdown(self, words: Words) -> None:
        self._stop()

    async def _default_folder(self, words: Words) -> str:
        return self._settings.folder

    async def _folder_content(self, words: Words) -> list[str]:
        """Return the paths of what is in a folder of this machine, for who chooses one."""
        mode = words.text("mode", "") or "all"
        if mode not in MODES:
            raise RequestError(f"mode is one of {', '.join(MODES)}")
        return await asyncio.to_thread(_paths_in, words.text("dirPath"), mode)

    async def _ban_peers(self, words: Words) -> None:
        raise ConflictError("peers are not banned one by one: start the daemon with --blocklist")

    async def _preferences(self, words: Words) -> dict[str, object]:
        sessions = self._library.sessions
        return preferences.shown(self._settings, sessions.plain_port(), bool(sessions.blocked.ranges))

    async def _set_preferences(self, words: Words) -> None:
        """Set what can be set; name what can't be, as clients send whole forms. Raises RequestError."""
        refusals: list[str] = []
        given = 0

        def edit(settings: Settings) -> Settings:
            nonlocal given
            sessions = self._library.sessions
            changed, refused, given = preferences.changed(
                settings, words.text("json"), sessions.plain_port(), bool(sessions.blocked.ranges)
            )
            try:
                check_folders(changed)
            except RequestError as error:
                refused.append(str(error))
                changed = msgspec.structs.replace(changed, **{name: getattr(settings, name) for name in FOLDERS})
            refusals.extend(refused)
            return changed

        await self._changes.edit_settings(edit)
        refuse_some(refusals, given)

    # Transfers

    async def _transfer_info(self, words: Words) -> dict[str, object]:
        torrents = self._library.torrents.values()
        down, up = self._library.rates()
        limit_down, limit_up = self._settings.rates()
        return {
            "connection_status": "connected" if ready_circuits(self._tunnels) else "disconnected",
            "dht_nodes": 0,
            "dl_info_speed": down,
            "dl_info_data": sum(torrent.status.total_payload_download for torrent in torrents),
            "dl_rate_limit": limit_down,
            "up_info_speed": up,
            "up_info_data": sum(torrent.status.total_payload_upload for torrent in torrents),
            "up_rate_limit": limit_up,
            "last_external_address_v4": "",
            "last_external_address_v6": "",
        }

    async def _download_limit(self, words: Words) -> str:
        return str(self._settings.rates()[0])

    async def _upload_limit(self, words: Words) -> str:
        return str(self._settings.rates()[1])

    def _set_speed(self, field: str, switch: str) -> Call:
        async def call(words: Words) -> None:
            fields = preferences.speed_fields(field, switch, words.number("limit"))
            await self._changes.edit_settings(lambda settings: msgspec.structs.replace(settings, **fields))

        return call

    async def _speed_limits_mode(self, words: Words) -> str:
        return str(int(self._settings.alt_speed_enabled))

    async def _set_speed_limits_mode(self, words: Words) -> None:
        is_slow = words.number("mode") != 0
        await self._changes.edit_settings(lambda settings: msgspec.structs.replace(settings, alt_speed_enabled=is_slow))

    async def _toggle_speed_limits_mode(self, words: Words) -> None:
        await self._changes.edit_settings(
            lambda settings: msgspec.structs.replace(settings, alt_speed_enabled=not settings.alt_speed_enabled)
        )

    # Changes

    async def _main_data(self, words: Words) -> dict[str, object]:
        """Return what has changed since the answer whose id the client names as `rid`."""
        is_known = self._logins.goes_on(words.login, time.monotonic())
        deltas = self._deltas.get(words.login) if is_known else self._of_others
        if deltas is None:
            deltas = self._deltas[words.login] = Deltas()
        state = await self._server_state(words)
        tables: dict[str, Mapping[str, object]] = {
            "torrents": self._shown.table(),
            "categories": categories.shown(self._changes.categories()),
            "trackers": self._shown.trackers(),
        }
        return deltas.answer(words.number("rid", 0), tables, {"tags": self._shown.tags()}, state)

    async def _server_state(self, words: Words) -> dict[str, object]:
        torrents = self._library.torrents.values()
        down = sum(torrent.totals.downloaded for torrent in torrents)
        up = sum(torrent.totals.uploaded for torrent in torrents)
        return {
            **await self._transfer_info(words),
            "alltime_dl": down,
            "alltime_ul": up,
            "global_ratio": f"{up / down:.2f}" if up and down else "-",
            "total_wasted_session": sum(torrent.status.total_failed_bytes for torrent in torrents),
            "total_peer_connections": sum(torrent.summary.num_peers for torrent in torrents),
            "free_space_on_disk": await self._free_bytes(),
            "queueing": self._settings.download_queue_enabled,
            "use_alt_speed_limits": self._settings.alt_speed_enabled,
            "use_subcategories": False,
            "refresh_interval": preferences.FIXED["refresh_interval"],
            "read_cache_hits": "0",
            "read_cache_overload": "0",
            "write_cache_overload": "0",
            "queued_io_jobs": 0,
            "average_time_queue": 0,
            "total_buffers_size": 0,
            "total_queued_size": 0,
        }

    async def _free_bytes(self) -> int:
        looked_s, free = self._free_space
        if looked_s < time.monotonic() - FREE_SPACE_FOR_S:
            try:
                free = (await asyncio.to_thread(shutil.disk_usage, self._settings.folder)).free
            except OSError:
                free = 0
            self._free_space = time.monotonic(), free
        return free


def _paths_in(folder: str, mode: str) -> list[str]:
    """Raises RequestError and NotFoundError."""
    if not os.path.isabs(folder) or "\0" in folder:
        raise RequestError("name a folder by its whole path, from /")
    try:
        with os.scandir(folder) as entries:
            found = (each.path for each in entries if mode == "all" or each.is_dir() == (mode == "dirs"))
            return sorted(itertools.islice(found, MAX_PATHS))
    except OSError as error:
        raise NotFoundError(f"{folder} can't be looked into: {error.strerror}") from None
