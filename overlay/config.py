"""What a TunnelCommunity needs to start, and the limits of its settings."""

from dataclasses import dataclass
from typing import NamedTuple

from packet_engine import EngineChoice

# Tribler's tunnel community: TriblerTunnelCommunity.community_id in
# Tribler's src/tribler/core/tunnel/community.py.
TRIBLER_COMMUNITY_ID = bytes.fromhex("a3591a6bd89bbaca0974062a1287afcfbc6fd6bc")
COMMUNITY_ID_BYTES = 20
INFOHASH_BYTES = 20

# A circuit id is the slot of its child and random bits below, so that ids are
# unique over all children of a node.
CIRCUIT_ID_BITS = 32
SLOT_BITS = 8
MAX_SLOTS = 1 << SLOT_BITS
SLOT_SHIFT = CIRCUIT_ID_BITS - SLOT_BITS

MAX_HOPS = 3


def slot_of(circuit_id: int) -> int:
    return circuit_id >> SLOT_SHIFT


class HostPort(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class OverlayConfig:
    """One TunnelCommunity: its place in the pool, its socket, its network, what it lets others do."""

    slot: int
    member_key: bytes
    listen: HostPort
    peer_flags: frozenset[int]
    community_id: bytes = TRIBLER_COMMUNITY_ID
    bootstrap_default: bool = False
    bootstrap: tuple[HostPort, ...] = ()
    known_peers: tuple[HostPort, ...] = ()
    siblings: frozenset[bytes] = frozenset()  # public keys of this node's other children, where they have their own
    allow_private: bool = False
    max_joined_circuits: int = 1000
    engine: EngineChoice = EngineChoice.AUTO
    trains: bool = True  # UDP_SEGMENT where the kernel has it; off only to measure against it
