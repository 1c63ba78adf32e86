"""The last news of a torrent: those parts of libtorrent's status that decide or are shown, and trackers' answers."""

from typing import NamedTuple

import libtorrent as lt

S = lt.torrent_status
CHECKING = (S.checking_files, S.checking_resume_data)
PAUSED = int(lt.torrent_flags.paused)
UPLOAD_MODE = int(lt.torrent_flags.upload_mode)


class StatusSummary(NamedTuple):
    """The fields of libtorrent's status that change what we do or show; the others change with time alone."""

    state: object
    flags: int
    has_metadata: bool
    finished: bool
    error: int
    num_peers: int
    num_seeds: int
    knows_peers: bool
    total_wanted: int
    total_wanted_done: int
    total_done: int
    total_failed_bytes: int
    all_time_download: int
    all_time_upload: int
    total_payload_download: int
    total_payload_upload: int
    progress_ppm: int
    distributed_copies: float

    @property
    def is_checking(self) -> bool:
        return self.state in CHECKING

    @property
    def is_finished(self) -> bool:
        """Return whether all that is wanted is there."""
        return bool(self.has_metadata and self.finished) and self.state not in CHECKING

    @property
    def is_paused(self) -> bool:
        """Return whether libtorrent has paused it."""
        return bool(self.flags & PAUSED)

    @property
    def is_uploading_only(self) -> bool:
        """Return whether libtorrent could not write, and does not try again."""
        return bool(self.flags & UPLOAD_MODE)

    @property
    def payload_bytes(self) -> int:
        """Return what was moved both ways since the session has the torrent."""
        return self.total_payload_download + self.total_payload_upload

    @property
    def kept(self) -> tuple[int, ...]:
        """Return what is worth a save when it changes; libtorrent's own flag asks for one each second that goes by."""
        return (
            self.has_metadata,
            self.finished,
            self.total_wanted,
            self.total_done,
            self.total_failed_bytes,
            self.all_time_download,
            self.all_time_upload,
        )

    @staticmethod
    def of(status: lt.torrent_status) -> "StatusSummary":
        return StatusSummary(
            status.state,
            int(status.flags),
            status.has_metadata,
            status.is_finished,
            status.errc.value(),
            status.num_peers,
            status.num_seeds,
            status.list_peers > 0,
            status.total_wanted,
            status.total_wanted_done,
            status.total_done,
            status.total_failed_bytes,
            status.all_time_download,
            status.all_time_upload,
            status.total_payload_download,
            status.total_payload_upload,
            status.progress_ppm,
            status.distributed_copies,
        )


class Saved(NamedTuple):
    """Says what was saved of a torrent last."""

    mark: tuple[int, ...] = ()  # its summary's `kept` of then
    at_s: float = 0.0  # monotonic
    puts: int = 0  # how often resume data was written with a change of its record


NEVER_SAVED = Saved()


class Announced(NamedTuple):
    """Says when a tracker answered, and how many peers it named; or that it did not, and why."""

    at_s: float  # since the epoch
    peers: int
    said: str = ""
    is_refusal: bool = False  # whether it has said so itself, in place of peers
    is_warning: bool = False  # whether it warned of this, beside peers


class Count:
    """A counter of the changes to torrents that a client may see."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0
