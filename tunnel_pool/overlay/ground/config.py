"""The configuration of a TunnelCommunity, and the limits of its settings."""

from dataclasses import dataclass
from typing import NamedTuple

from tunnel_pool.overlay.ground.admission import NO_MORE_THAN_USUAL, Admission
from tunnel_pool.overlay.ground.exit_rules import NO_RULES, ExitRules
from tunnel_pool.overlay.ground.offers import MOST_TOGETHER
from tunnel_pool.packet_engine import EngineChoice

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
NOWHERE = ("0.0.0.0", 0)  # noqa: S104 - no address, as py-ipv8 writes it


def slot_of(circuit_id: int) -> int:
    return circuit_id >> SLOT_SHIFT


class HostPort(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class ExitFrom(NamedTuple):
    """Says where an exit's traffic leaves from: an address ("": that of `listen`) and ports ((0, 0): any)."""

    host: str = ""
    ports: tuple[int, int] = (0, 0)


ANY_SOURCE = ExitFrom()


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
    admission: Admission = NO_MORE_THAN_USUAL
    exit_rules: ExitRules = NO_RULES
    device: str = ""  # the network device that all goes through; "": any
    exit_from: ExitFrom = ANY_SOURCE
    requires_diversity: bool = False  # whether the hops of a circuit must be in different networks
    offered_together: int = MOST_TOGETHER  # the most hidden swarms that are offered over one circuit
    engine: EngineChoice = EngineChoice.AUTO
    trains: bool = True  # UDP_SEGMENT where the kernel has it; off only to measure against it
    limits: int | None = None  # the descriptor of overlay/serving/limits.py's memory, which the native engine keeps to
