"""Settings for all torrents, which may be changed while the daemon runs (Transmission's session-set). Pure."""

import datetime
import logging
from typing import Annotated

import msgspec

from tunnel_pool.daemon.rules.groups import Group, Speed
from tunnel_pool.daemon.rules.queue import QueueLimits
from tunnel_pool.torrent.sessions.session_settings import Encryption, encryption_settings

MAX_COUNT = 1_000_000

logger = logging.getLogger(__name__)

Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_COUNT)]
Minute = Annotated[int, msgspec.Meta(ge=0, le=24 * 60)]


class Settings(msgspec.Struct, forbid_unknown_fields=True):
    """Holds the settings that clients may change. Speeds are kilobytes a second."""

    folder: str
    speed_limit_down: Speed = 100
    speed_limit_down_enabled: bool = False
    speed_limit_up: Speed = 100
    speed_limit_up_enabled: bool = False
    alt_speed_down: Speed = 50
    alt_speed_up: Speed = 50
    alt_speed_enabled: bool = False
    alt_speed_time_enabled: bool = False
    alt_speed_time_begin: Minute = 540  # minutes after midnight
    alt_speed_time_end: Minute = 1020
    # tr_sched_day: Sunday is 1, Monday 2, Tuesday 4 ...
    alt_speed_time_day: Annotated[int, msgspec.Meta(ge=0, le=127)] = 127
    download_queue_enabled: bool = True
    download_queue_size: Count = 5
    seed_queue_enabled: bool = False
    seed_queue_size: Count = 10
    seed_ratio_limit: Annotated[float, msgspec.Meta(ge=0, le=MAX_COUNT)] = 2.0
    seed_ratio_limited: bool = False
    idle_seeding_limit: Count = 30  # minutes
    idle_seeding_limit_enabled: bool = False
    seeding_time_limit: Count = 1440  # minutes; neither this nor what follows is in session-get
    seeding_time_limited: bool = False
    groups: dict[str, Group] = {}  # bandwidth groups, by their names
    categories: dict[str, str] = {}  # labels that are categories, and the folder of each, empty for the usual one
    tags: list[str] = []  # labels that were made before a torrent had them
    start_added_torrents: bool = True
    incomplete_dir: str = ""
    incomplete_dir_enabled: bool = False
    peer_limit_global: Count = 200
    peer_limit_per_torrent: Count = 50
    # Of torrents without hops.
    encryption: Encryption = Encryption.PREFERRED
    dht_enabled: bool = True
    lpd_enabled: bool = False
    pex_enabled: bool = True
    utp_enabled: bool = True

    def queue_limits(self) -> QueueLimits:
        return QueueLimits(
            downloads=self.download_queue_size if self.download_queue_enabled else None,
            seeds=self.seed_queue_size if self.seed_queue_enabled else None,
            ratio=self.seed_ratio_limit if self.seed_ratio_limited else None,
            idle_min=self.idle_seeding_limit if self.idle_seeding_limit_enabled else None,
            seeding_min=self.seeding_time_limit if self.seeding_time_limited else None,
        )

    def of_plain_session(self) -> dict[str, object]:
        """Return what libtorrent's session of the torrents without hops is set to by these settings."""
        return {
            **encryption_settings(self.encryption),
            "enable_dht": self.dht_enabled,
            "enable_lsd": self.lpd_enabled,
            "enable_incoming_utp": self.utp_enabled,
            "enable_outgoing_utp": self.utp_enabled,
        }

    def rates(self) -> tuple[int, int]:
        """Return the bytes a second, down and up; 0 is no limit."""
        if self.alt_speed_enabled:
            # 0 is no limit to libtorrent, but none at all to Transmission.
            return max(1, self.alt_speed_down * 1000), max(1, self.alt_speed_up * 1000)
        return (
            max(1, self.speed_limit_down * 1000) if self.speed_limit_down_enabled else 0,
            max(1, self.speed_limit_up * 1000) if self.speed_limit_up_enabled else 0,
        )

    def scheduled(self, now: datetime.datetime) -> bool | None:
        """Return whether the schedule wants the alternative speeds now; None without one."""
        return self._is_alt_time(now) if self.alt_speed_time_enabled else None

    def _is_alt_time(self, now: datetime.datetime) -> bool:
        minute = now.hour * 60 + now.minute
        begin, end = self.alt_speed_time_begin, self.alt_speed_time_end
        day = now
        if begin <= end:
            inside = begin <= minute < end
        else:  # over midnight: its morning belongs to the day before
            inside = minute >= begin or minute < end
            if minute < end:
                day = now - datetime.timedelta(days=1)
        return inside and bool(self.alt_speed_time_day >> (day.isoweekday() % 7) & 1)


def settings_of(kept: bytes) -> Settings | None:
    """Return the settings that were kept as JSON; None, and a line in the log, when they can't be read."""
    try:
        return msgspec.json.decode(kept, type=Settings)
    except (msgspec.DecodeError, UnicodeError) as error:
        logger.error("The settings that were kept can't be read, and are as at the first start: %s", error)
        return None
