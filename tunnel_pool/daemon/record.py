"""The record of a torrent: the daemon keeps it beside libtorrent's resume data. Pure."""

import secrets
from enum import IntEnum, StrEnum
from typing import Annotated

import msgspec

from tunnel_pool.overlay.ground.config import MAX_HOPS

# libtorrent's priorities of files, by Transmission's (unwanted, low, normal, high).
UNWANTED, LOW, NORMAL, HIGH = 0, 1, 4, 7
INCOMING = ".incoming"  # ends the name of the folder of a torrent whose files are not known yet


class LimitMode(IntEnum):
    """Says which limit of seeding holds for a torrent (tr_ratiolimit and tr_idlelimit)."""

    GLOBAL = 0
    SINGLE = 1
    UNLIMITED = 2


class Layout(StrEnum):
    """Says in which folder of its own a torrent has its files, by qBittorrent's words."""

    ORIGINAL = "Original"
    SUBFOLDER = "Subfolder"
    NO_SUBFOLDER = "NoSubfolder"


def new_tracker_key() -> int:
    return secrets.randbits(32) or 1


class Record(msgspec.Struct):
    """A torrent as its owner wants it."""

    infohash: str  # in hex
    number: int  # remote clients name the torrent by it; it is never given twice
    hops: Annotated[int, msgspec.Meta(ge=0, le=MAX_HOPS)]  # 0 is plain
    name: str
    folder: str
    position: int  # in the queue, from 0
    added_s: float  # since the epoch, as are all times here
    done_s: float = 0.0
    edited_s: float = 0.0
    labels: list[str] = []
    stopped: bool = False
    started_now: bool = False  # past the queue
    file_priorities: list[int] = []  # libtorrent's priorities; files past the end have the normal one
    written: list[int] = []  # files that are wanted no longer, and may have been written before
    exporting: list[int] = []  # files wanted of late, whose first and last bytes libtorrent may hold elsewhere yet
    download_limit_kb: int = 100
    download_limited: bool = False
    upload_limit_kb: int = 100
    upload_limited: bool = False
    honors_session_limits: bool = True
    ratio_mode: LimitMode = LimitMode.GLOBAL
    ratio_limit: float = 2.0
    idle_mode: LimitMode = LimitMode.GLOBAL
    idle_limit_min: int = 30
    seeding_mode: LimitMode = LimitMode.GLOBAL
    seeding_limit_min: int = 0
    bandwidth_priority: int = 0
    peer_limit: int = 50
    sequential: bool = False
    group: str = ""  # its bandwidth group; empty: none
    stopped_by_limit: bool = msgspec.field(default=False, name="gave_all")  # its ratio's, or that of idle time
    peers: list[tuple[str, int]] = []  # peers of its magnet link; resume data lacks those whose last connection failed
    tracker_key: int = 0  # by which private trackers know it (torrent/announces/account.py); 0: none was chosen yet
    uploaded_bytes: int = 0  # in all, as its trackers were told last, or when the daemon ended
    downloaded_bytes: int = 0
    is_to_be_told: bool = False  # whether its owner's programs have yet to be told that it was downloaded
    moving_to: str = ""  # where its files are being moved; empty when they are not
    folder_when_done: str = ""  # where its files go once it is whole; empty where they stay
    # Announce URLs by tier and web seeds, as its owner and its file have them: some are not used over hops.
    trackers: list[list[str]] = []
    web_seeds: list[str] = []
    knows_trackers: bool = False  # else it was kept by a version that had them in the resume data alone
    chosen_files: list[int] = []  # by a magnet link's `so` (BEP 53), until its files are known; empty: all
    layout: Layout = Layout.ORIGINAL  # for when its metadata comes
    taking_over: bool = False  # whether files that were there before it have yet to be found to be its own
    untouched: bool = False  # whether it has not begun since it was added, so that it has written nothing

    @property
    def is_incoming(self) -> bool:
        """Return whether it has a folder of its own since its files are not known yet."""
        return self.folder.endswith(INCOMING)

    @property
    def has_own_folder(self) -> bool:
        """Return whether its folder was made for it alone, until it is whole; that of an import is for others, too."""
        return bool(self.folder_when_done) and self.infohash in self.folder.rpartition("/")[2]

    @property
    def owned_folder(self) -> str:
        """Return the folder that it has, or the one above that its owner has named."""
        return self.folder_when_done if self.is_incoming else self.folder

    @property
    def final_folder(self) -> str:
        return self.folder_when_done or self.folder
