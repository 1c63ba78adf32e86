"""Steers cells to a node's children, by their circuit ids. Pure.

A cell is prefix (22), 0, circuit id (4), flags, message (py-ipv8 crypto.py);
every other datagram is the main process', socket 0. The last byte of the id
says the bucket, each bucket belongs to one slot, and slot n has socket n + 1.
Whoever chooses an id chooses one in a bucket of its own.
"""

import secrets
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from tunnel_pool.steering.bpf import (
    AND,
    EVERYTHING,
    JEQ,
    LD_BYTE,
    LD_HALF,
    LD_MEMORY,
    LD_WORD,
    STORE,
    Instruction,
    choose,
    if_equal,
    ret,
)
from tunnel_pool.steering.layout import CIRCUIT_ID_AT, PREFIX_BYTES
from tunnel_pool.steering.slots import OWN_SOCKET, socket_of_slot

BUCKETS = 256
PY_IPV8 = b"\x00\x02"  # what all messages of py-ipv8 begin with; 20 bytes of a community's id follow
CELL = b"\x00"
UDP_HEADER_BYTES = 8
MAX_STAYED = 256  # circuits whose bucket has been given away; the kernel gives a program little memory


def bucket_of(circuit_id: int) -> int:
    return circuit_id % BUCKETS


def random_id(slot: int, slot_shift: int, buckets: Sequence[int]) -> int:
    """Return a circuit id: the slot above `slot_shift`, one of the buckets (of `bucket_of`) below, chance between."""
    between = secrets.randbelow(1 << slot_shift) // BUCKETS * BUCKETS
    return slot << slot_shift | between | secrets.choice(buckets)


class Move(NamedTuple):
    """A bucket that changes hands."""

    bucket: int
    giver: int
    taker: int


class CellBuckets:
    """Knows which slot has which bucket, and the live circuits that stayed with a slot when their bucket moved."""

    def __init__(self, slots: Sequence[int]) -> None:
        """Share the buckets out evenly, each slot's in a row."""
        self.owners = [slots[bucket * len(slots) // BUCKETS] for bucket in range(BUCKETS)]
        self.stayed: dict[int, int] = {}  # circuit id: slot

    def buckets_of(self, slot: int) -> list[int]:
        return [bucket for bucket, owner in enumerate(self.owners) if owner == slot]

    def slot_of(self, circuit_id: int) -> int:
        return self.stayed.get(circuit_id, self.owners[bucket_of(circuit_id)])

    def moves(self, eligible: Collection[int]) -> list[Move]:
        """Return what has to move so that these slots, and no others, have the buckets, as evenly as can be."""
        if not eligible:
            return []
        have: dict[int, list[int]] = {slot: [] for slot in sorted(eligible)}
        homeless = []
        for bucket, owner in enumerate(self.owners):
            if owner in have:
                have[owner].append(bucket)
            else:
                homeless.append(bucket)
        moves = []

        def give(bucket: int, giver: int) -> None:
            taker = min(have, key=lambda slot: len(have[slot]))
            have[taker].append(bucket)
            moves.append(Move(bucket, giver, taker))

        for bucket in homeless:
            give(bucket, self.owners[bucket])
        while True:
            giver = max(have, key=lambda slot: len(have[slot]))
            if len(have[giver]) - min(map(len, have.values())) <= 1:
                return moves
            give(have[giver].pop(), giver)

    def move(self, moves: Iterable[Move], live: Mapping[int, Collection[int]]) -> list[Move]:
        """Make these moves; `live` has each bucket's live circuit ids, which stay with the giver.

        Returns the moves that were not made, as they would leave more than MAX_STAYED circuits behind.
        """
        left = []
        for move in sorted(moves, key=lambda move: len(live.get(move.bucket, ()))):
            staying = live.get(move.bucket, ())
            if len(self.stayed) + len(staying) > MAX_STAYED:
                left.append(move)
                continue
            self.owners[move.bucket] = move.taker
            self.stayed.update(dict.fromkeys(staying, move.giver))
        # Whoever gets a bucket back has its circuits, too.
        self.stayed = {id_: slot for id_, slot in self.stayed.items() if self.owners[bucket_of(id_)] != slot}
        return left

    def still_live(self, slot: int, live: Collection[int]) -> bool:
        """Keep only these of the circuits that stayed with a slot; return whether that changes anything."""
        before = len(self.stayed)
        self.stayed = {id_: owner for id_, owner in self.stayed.items() if owner != slot or id_ in live}
        return len(self.stayed) != before


def program(buckets: CellBuckets, sockets: int) -> list[Instruction]:
    """Return the program for a group of so many sockets."""

    def socket_of(slot: int) -> int:
        return socket_of_slot(slot) if socket_of_slot(slot) < sockets else OWN_SOCKET

    stayed = defaultdict(list)
    for circuit_id, slot in buckets.stayed.items():
        stayed[bucket_of(circuit_id)].append((circuit_id, socket_of(slot)))
    runs: list[tuple[int, list[Instruction]]] = []
    for bucket, owner in enumerate(buckets.owners):
        leaf = _leaf(stayed.get(bucket, ()), socket_of(owner))
        if not runs or runs[-1][1] != leaf:
            runs.append((bucket, leaf))
    return [
        (LD_BYTE, 0, 0, PREFIX_BYTES),
        (JEQ, 1, 0, CELL[0]),
        *ret(OWN_SOCKET),
        (LD_WORD, 0, 0, CIRCUIT_ID_AT),
        (STORE, 0, 0, 0),
        (AND, 0, 0, BUCKETS - 1),
        *choose(runs),
    ]


def _leaf(stayed: Collection[tuple[int, int]], index: int) -> list[Instruction]:
    exceptions = [
        instruction for circuit_id, elsewhere in stayed for instruction in ((JEQ, 0, 1, circuit_id), *ret(elsewhere))
    ]
    return [*([(LD_MEMORY, 0, 0, 0)] if exceptions else []), *exceptions, *ret(index)]


def cells_of(prefix: bytes) -> list[Instruction]:
    """Return a filter that lets in cells of this network, for a child's socket."""
    return messages_of([prefix + CELL])


def messages_of(prefixes: Iterable[bytes]) -> list[Instruction]:
    """Return a filter that lets in datagrams that begin with one of these; for many, see `messages_like`."""
    let_in = [instruction for prefix in prefixes for instruction in if_equal(UDP_HEADER_BYTES, prefix, ret(EVERYTHING))]
    return [*let_in, *ret(0)]


def messages_like(prefixes: Iterable[bytes]) -> list[Instruction]:
    """Return a filter for many prefixes: it looks at py-ipv8's two bytes and four of the community's.

    That takes 16 bytes of the kernel's memory for each prefix, and leaves others one chance in four thousand million.
    """
    communities = sorted({prefix[len(PY_IPV8) : len(PY_IPV8) + 4] for prefix in prefixes})
    at = UDP_HEADER_BYTES
    program = [(LD_HALF, 0, 0, at), (JEQ, 1, 0, int.from_bytes(PY_IPV8, "big")), *ret(0)]
    program.append((LD_WORD, 0, 0, at + len(PY_IPV8)))
    for community in communities:
        program += [(JEQ, 0, 1, int.from_bytes(community, "big")), *ret(EVERYTHING)]
    return [*program, *ret(0)]
