"""A torrent's standing with trackers: what they know it by, and what it moved before libtorrent counted anew. Pure.

libtorrent counts from zero, and chooses another key, whenever a torrent is added to a session: after a change of hops,
and at each start. A tracker that sums up what a key has moved would lose what came before.
"""

from typing import NamedTuple


class Standing(NamedTuple):
    """Holds a torrent's key (BEP 3, BEP 15), and the payload bytes that it moved before it was added to the session."""

    key: int
    uploaded_before: int
    downloaded_before: int

    def uploaded_bytes(self, since: int) -> int:
        return self.uploaded_before + since

    def downloaded_bytes(self, since: int) -> int:
        return self.downloaded_before + since
