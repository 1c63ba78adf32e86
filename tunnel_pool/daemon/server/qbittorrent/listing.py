"""Chooses the torrents of torrents/info, and their order (qBittorrent's torrentscontroller.cpp, infoAction). Pure."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tunnel_pool.daemon.errors import RequestError

Row = Mapping[str, Any]

STALLED = ("stalledUP", "stalledDL")
CHECKING = ("checkingUP", "checkingDL", "checkingResumeData")
DOWNLOADING = ("downloading", "metaDL", "forcedMetaDL", "stalledDL", "checkingDL", "stoppedDL", "queuedDL", "forcedDL")
SEEDING = ("uploading", "stalledUP", "checkingUP", "queuedUP", "forcedUP")


def _is_active(row: Row) -> bool:
    return row["state"] in ("downloading", "metaDL", "forcedMetaDL", "forcedDL", "uploading", "forcedUP") or (
        row["state"] in STALLED and (row["dlspeed"] > 0 or row["upspeed"] > 0)
    )


def _is_stopped(row: Row) -> bool:
    return row["state"] in ("stoppedUP", "stoppedDL")


def _is_complete(row: Row) -> bool:
    return row["state"] in (*SEEDING, "stoppedUP")


STATUSES: dict[str, Callable[[Row], bool]] = {
    "downloading": lambda row: row["state"] in DOWNLOADING,
    "seeding": lambda row: row["state"] in SEEDING,
    "completed": _is_complete,
    "stopped": _is_stopped,
    "paused": _is_stopped,  # its name until 2.11
    "running": lambda row: not _is_stopped(row),
    "resumed": lambda row: not _is_stopped(row),
    "active": _is_active,
    "inactive": lambda row: not _is_active(row),
    "stalled": lambda row: row["state"] in STALLED,
    "stalled_uploading": lambda row: row["state"] == "stalledUP",
    "stalled_downloading": lambda row: row["state"] == "stalledDL",
    "checking": lambda row: row["state"] in CHECKING,
    "moving": lambda row: row["state"] == "moving",
    "errored": lambda row: row["state"] in ("error", "missingFiles"),
}
"""Whether a torrent is in a status, by the status's name; any other name means all torrents."""


def listed(
    rows: Sequence[Row],
    status: str = "",
    category: str | None = None,
    tag: str | None = None,
    private: bool | None = None,
) -> list[Row]:
    """Return the rows that match all of it; an empty category or tag means that there is none."""
    is_in = STATUSES.get(status)
    return [
        row
        for row in rows
        if (is_in is None or is_in(row))
        and (category is None or row["category"] == category)
        and (tag is None or (tag in row["tags"].split(", ") if tag else not row["tags"]))
        and (private is None or row["private"] is private)
    ]


def paged(rows: Sequence[Row], sort: str = "", reverse: bool = False, limit: int = 0, offset: int = 0) -> list[Row]:
    """Return rows in the order of a field; at most `limit` of them, from the offset on, which may count from the end.

    Raises RequestError for a field that there is not.
    """
    found = list(rows)
    if sort and found:
        if sort not in found[0]:
            raise RequestError("'sort' parameter is invalid")
        found.sort(key=lambda row: _sortable(row[sort]), reverse=reverse)
    start = max(0, offset + len(found)) if offset < 0 else offset
    return found[start : start + limit] if limit > 0 else found[start:]


def _sortable(value: object) -> tuple[bool, object]:
    """Return what values of one field are compared by, where some are unknown."""
    return value is not None, value if value is not None else 0
