"""Reads what programs on libtorrent keep of a torrent: its resume data, beside the torrent file."""

from typing import Any

import libtorrent as lt

from tunnel_pool.daemon.rules.groups import MAX_KB_PER_S
from tunnel_pool.importing.model import BadTorrentError, info_of
from tunnel_pool.torrent.metainfo import keep_pieces, read_resume

# What says how a torrent was, of all that resume data says; the rest is the other program's own.
FIELDS = (
    "active_time", "added_time", "completed_time", "file_priorities", "finished_time", "have_pieces", "save_path",
    "seeding_time", "total_downloaded", "total_uploaded",
)  # fmt: skip


def with_resume(parameters: lt.add_torrent_params, resume: bytes) -> lt.add_torrent_params:
    """Add what resume data says to what a torrent file says. Raises BadTorrentError."""
    try:
        kept = read_resume(resume)
    except (RuntimeError, ValueError):
        raise BadTorrentError("its resume data can't be read") from None
    if kept.info_hashes.v1 != parameters.info_hashes.v1:
        raise BadTorrentError("its resume data is another torrent's")
    keep_pieces(kept, info_of(parameters).num_pieces())
    for name in FIELDS:
        setattr(parameters, name, getattr(kept, name))
    if kept.flags & lt.torrent_flags.seed_mode:
        parameters.have_pieces = [True] * info_of(parameters).num_pieces()
    parameters.renamed_files = dict(kept.renamed_files)
    if kept.trackers:
        parameters.trackers, parameters.tracker_tiers = kept.trackers, kept.tracker_tiers
    return parameters


def speed_changes(down: Any, up: Any) -> dict[str, Any]:
    """Return limits in bytes a second, 0 or less for none, as torrent-set takes them."""
    changes: dict[str, Any] = {}
    for name, limit in (("download", down), ("upload", up)):
        is_limited = isinstance(limit, int | float) and limit > 0
        changes[f"{name}_limited"] = is_limited
        if is_limited:
            changes[f"{name}_limit"] = min(MAX_KB_PER_S, max(1, round(limit / 1000)))
    return changes
