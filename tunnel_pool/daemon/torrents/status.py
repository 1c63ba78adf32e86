"""libtorrent's last word on a torrent and on its peers, and what follows from that."""

from collections.abc import Sequence
from typing import NamedTuple

import libtorrent as lt

from tunnel_pool.daemon.torrents.seen import StatusSummary
from tunnel_pool.pooled.hidden_services import lookup_hash
from tunnel_pool.torrent.metainfo import hidden_hashes_of

PEERS_FOR_S = 1.0


class Seen(NamedTuple):
    """Holds what libtorrent said last of a torrent, and what follows from that."""

    status: lt.torrent_status
    at_s: float  # monotonic
    summary: StatusSummary
    is_private: bool
    hash_string: str  # by which others know it: v1's if it has one
    swarms: frozenset[bytes]  # the hidden ones that it could be in: that of v2's hash is known once the metadata is
    info: lt.torrent_info | None  # which a status has no more once libtorrent has let go of the torrent

    @staticmethod
    def of(status: lt.torrent_status, now_s: float, before: "Seen | None", infohash: str) -> "Seen":
        """Make it of a new status, and of what was known before; `infohash`, in hex, is its record's."""
        summary = StatusSummary.of(status)
        if before is not None and (before.info is not None or not summary.has_metadata):
            return before._replace(status=status, at_s=now_s, summary=summary)
        hashes, info = status.info_hashes, status.torrent_file if summary.has_metadata else None
        return Seen(
            status,
            now_s,
            summary,
            info is not None and info.priv(),
            str(hashes.v1) if hashes.has_v1() else infohash,
            frozenset(map(lookup_hash, hidden_hashes_of(hashes))),
            info,
        )


class PeerInfos:
    """Holds what libtorrent says of a torrent's peers, for PEERS_FOR_S: its own thread answers, when it has time."""

    __slots__ = ("_asked_s", "_infos")

    def __init__(self) -> None:
        self._asked_s = -PEERS_FOR_S
        self._infos: Sequence[lt.peer_info] = ()

    def of(self, handle: lt.torrent_handle, now_s: float) -> Sequence[lt.peer_info]:
        """Raises RuntimeError while the torrent is between sessions."""
        if now_s >= self._asked_s + PEERS_FOR_S:
            self._asked_s, self._infos = now_s, handle.get_peer_info()
        return self._infos


def hashes_of(hashes: lt.info_hash_t) -> set[bytes]:
    """Return the hashes by which a torrent may be known, in 20 bytes each."""
    return {each[:20] for each in hidden_hashes_of(hashes)}
