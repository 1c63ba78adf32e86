"""Counts what a torrent has moved in all, also where libtorrent counts from 0 again. Pure."""

from tunnel_pool.daemon.torrents.seen import StatusSummary
from tunnel_pool.torrent.announces.account import Totals

NOTHING = Totals(0, 0)


class Counted:
    """Counts what a torrent moves, by its statuses: libtorrent's all_time_upload loses up to a second at a pause."""

    __slots__ = ("_before", "_last", "totals")

    def __init__(self, before: Totals = NOTHING) -> None:
        """`before`: what was moved until now, when libtorrent begins to count from 0."""
        self.totals = self._before = before
        self._last: StatusSummary | None = None

    def count(self, summary: StatusSummary) -> None:
        """Take a new status."""
        if self._has_begun_anew(summary):
            self._before = self.totals
        self._last = summary
        self.totals = self._before + _moved(summary)

    def totals_by(self, summary: StatusSummary) -> Totals:
        """Return what was moved in all by a status, which is as new as the last one or newer."""
        before = self.totals if self._has_begun_anew(summary) else self._before
        return before + _moved(summary)

    def _has_begun_anew(self, summary: StatusSummary) -> bool:
        """Return whether the torrent was paused and started, and libtorrent counts from 0 again."""
        last = self._last
        return last is not None and (
            summary.total_payload_upload < last.total_payload_upload
            or summary.total_payload_download < last.total_payload_download
        )


def _moved(summary: StatusSummary) -> Totals:
    return Totals(summary.total_payload_upload, max(0, summary.total_payload_download - summary.total_failed_bytes))
