"""A torrent of a command, as its session has it."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

import libtorrent as lt

from tunnel_pool.contract import Address


@dataclass(frozen=True, slots=True)
class TorrentStatus:
    """Holds what commands show of a torrent."""

    infohash: str
    name: str
    done_bytes: int
    wanted_bytes: int  # 0 until the metadata is known
    downloaded_bytes: int  # in this run
    uploaded_bytes: int  # in this run
    download_bytes_per_s: int
    peers: int
    finished: bool
    knows_peers: bool = False
    hidden_hashes: tuple[bytes, ...] = ()  # the hashes that its hidden swarms are named by, as far as they are known


@dataclass(slots=True)
class Added:
    """Holds a torrent in the session, and what is under way with it."""

    handle: lt.torrent_handle
    peers: frozenset[Address]  # peers that are asked until they are there
    status: TorrentStatus
    seed: bool
    error: str | None = None
    saving: bool = False
    home: Path | None = None  # where its files go once they are known; until then they have a folder of their own
    moved: "asyncio.Future[None] | None" = None  # to be there
    is_unjudged: bool = False  # whether files at its places have yet to be found to be its own: nothing of it is saved
    is_writing: bool = False  # whether libtorrent has some of what it has downloaded in memory alone
    checked: asyncio.Event = field(default_factory=asyncio.Event)  # set once libtorrent knows what is there

    @property
    def peer_count(self) -> int:
        return self.status.peers

    @property
    def knows_peers(self) -> bool:
        return self.status.knows_peers

    @property
    def is_finished(self) -> bool:
        return self.status.finished

    @property
    def may_go_home(self) -> bool:
        """Return whether its files are still to go to their folder, and nobody has begun with that."""
        return self.home is not None and self.moved is None

    def give_up_peers(self, lost: frozenset[Address]) -> None:
        self.peers -= lost


def flags_of(parameters: lt.add_torrent_params, seed: bool, takes_over: bool) -> int:
    """Return libtorrent's flags of a torrent that is added, standing still."""
    flags = lt.torrent_flags
    # After a full disk, resume data has upload_mode set, in which libtorrent downloads nothing.
    wanted = (parameters.flags & ~(flags.auto_managed | flags.upload_mode)) | flags.paused
    if takes_over:
        wanted |= flags.stop_when_ready
    if seed:
        # Without upload_mode libtorrent would overwrite files that the user has changed, with data from peers.
        wanted |= flags.seed_mode | flags.upload_mode
    return wanted
