"""Steers a client's datagrams to one of several sockets on one port, by their destination. Pure.

The header of RFC 1928 section 7 is hashed to one of 256 buckets, so that a
remote peer always meets the same child. A classic BPF program attached to the
group of sockets (SO_ATTACH_REUSEPORT_CBPF) does it in the kernel:

    IPv4    hash of address + port                bucket = hash * 0x9E3779B1 >> 24
    IPv6    hash of the sum of its words + port   (all in 32 bits)
    name    hash of its length + first two letters
    bucket -> index of a socket; 0, the server's own, for buckets of nobody
    and for what is too short to have a destination

An IPv4 address with port 1024 stands for the other end of an end-to-end
circuit, or for a guest (overlay/ground/end_to_end.py; py-ipv8 tunnel.py,
CIRCUIT_ID_PORT). A hash of the address, by two odd numbers that are a secret of
each lane, is the slot of the child that has the circuit:

    mixed = address * first; slot = (mixed ^ (mixed >> 15)) * second >> 24   (in 32 bits)

Where a lane is announced (tunnel_pool/torrent/announces), questions to trackers
and DHT nodes, and what has a name for its destination, go to the server's own
socket, and IPv4 addresses that are pinned to the socket that is named for each.
"""

import struct
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from tunnel_pool.socks5.address import AddressType
from tunnel_pool.steering.bpf import (
    ADD,
    ADD_X,
    JEQ,
    JGE,
    JUMP,
    LD_BYTE,
    LD_HALF,
    LD_WORD,
    MUL,
    RET,
    RET_A,
    RSH,
    TAX,
    XOR_X,
    Instruction,
    choose,
    ret,
)
from tunnel_pool.steering.slots import OWN_SOCKET, socket_of_slot

BUCKET_BITS = 8
BUCKETS = 1 << BUCKET_BITS
END_TO_END_PORT = 1024
MAX_PINS = 128  # of one association: the kernel gives a program little memory

_WORD = (1 << 32) - 1
SLOT_BITS = 8  # of a slot (overlay/ground/config.py)
_END_SHIFT = 15
_GOLDEN = 0x9E3779B1

_ATYP_AT = 3
_ADDRESS_AT = 4


def bucket_of(address: bytes) -> int:
    """Return the bucket of an encoded address (RFC 1928 section 5), as the program finds it."""
    kind = address[0]
    if kind == AddressType.IPV4:
        total = int.from_bytes(address[1:5], "big") + int.from_bytes(address[5:7], "big")
    elif kind == AddressType.IPV6:
        words: tuple[int, ...] = struct.unpack_from("!4IH", address, 1)
        total = sum(words)
    else:
        total = address[1] + int.from_bytes(address[2:4], "big")
    return ((total & _WORD) * _GOLDEN & _WORD) >> (32 - BUCKET_BITS)


class EndSteering(NamedTuple):
    """Holds the two odd 32-bit numbers by which addresses of ends and guests lead to the children of a lane."""

    first: int
    second: int

    def slot_of(self, number: int) -> int:
        """Return the slot of the child that such an address leads to, as the program finds it."""
        mixed = number * self.first & _WORD
        return ((mixed ^ (mixed >> _END_SHIFT)) * self.second & _WORD) >> (32 - SLOT_BITS)

    def number_for(self, slot: int, bits: int) -> int:
        """Return an address that leads to the child of this slot, another one for each 24 `bits`."""
        mixed = (slot << (32 - SLOT_BITS) | bits) * pow(self.second, -1, _WORD + 1) & _WORD
        mixed ^= (mixed >> _END_SHIFT) ^ (mixed >> 2 * _END_SHIFT)
        return mixed * pow(self.first, -1, _WORD + 1) & _WORD


def is_end_address(address: bytes) -> bool:
    """Return whether an encoded address stands for the other end of a circuit, or for a guest."""
    return address[0] == AddressType.IPV4 and int.from_bytes(address[5:7], "big") == END_TO_END_PORT


def _hash_at(loads: Sequence[tuple[int, int]]) -> list[Instruction]:
    """Return the instructions that load these offsets of the address, add them up, and leave the bucket in A."""
    (first, at), *rest = loads
    program: list[Instruction] = [(first, 0, 0, _ADDRESS_AT + at)]
    for load, offset in rest:
        program += [(TAX, 0, 0, 0), (load, 0, 0, _ADDRESS_AT + offset), (ADD_X, 0, 0, 0)]
    return [*program, (MUL, 0, 0, _GOLDEN), (RSH, 0, 0, 32 - BUCKET_BITS)]


_HASHES = {
    AddressType.IPV4: _hash_at([(LD_WORD, 0), (LD_HALF, 4)]),
    AddressType.IPV6: _hash_at([(LD_WORD, 0), (LD_WORD, 4), (LD_WORD, 8), (LD_WORD, 12), (LD_HALF, 16)]),
    AddressType.DOMAIN: _hash_at([(LD_BYTE, 0), (LD_HALF, 1)]),
}


def _end_to_end(sockets: int, steering: EndSteering) -> list[Instruction]:
    """Return the socket of the slot that an end's address leads to, if it has one; go on with all others."""
    found: list[Instruction] = [
        (LD_WORD, 0, 0, _ADDRESS_AT),
        (MUL, 0, 0, steering.first),
        (TAX, 0, 0, 0),
        (RSH, 0, 0, _END_SHIFT),
        (XOR_X, 0, 0, 0),
        (MUL, 0, 0, steering.second),
        (RSH, 0, 0, 32 - SLOT_BITS),
        (ADD, 0, 0, socket_of_slot(0)),
        (JGE, 1, 0, sockets),
        (RET_A, 0, 0, 0),
        (RET, 0, 0, OWN_SOCKET),
    ]
    check_port: list[Instruction] = [(LD_HALF, 0, 0, _ADDRESS_AT + 4), (JEQ, 0, len(found), END_TO_END_PORT), *found]
    return [(LD_BYTE, 0, 0, _ATYP_AT), (JEQ, 0, len(check_port), AddressType.IPV4), *check_port]


# How questions begin (BEP 5, a dictionary in bencode; BEP 15, the first half of the protocol's number), and what their
# third word is: to announce, or to scrape. A uTP packet (BEP 29) may have the latter by chance.
_DHT_START, _CONNECT_START, _TRACKER_ACTIONS = ord("d"), 0x417, (1, 2)
_ACTION_AT = 8


def _questions(payload_at: int) -> list[Instruction]:
    """Return the instructions that leave questions to the server's own socket, and go on with all else."""
    found: list[Instruction] = [
        (LD_BYTE, 0, 0, payload_at),
        (JEQ, 5, 0, _DHT_START),
        (LD_WORD, 0, 0, payload_at),
        (JEQ, 3, 0, _CONNECT_START),
        (LD_WORD, 0, 0, payload_at + _ACTION_AT),
        (JEQ, 1, 0, _TRACKER_ACTIONS[0]),
        (JEQ, 0, 1, _TRACKER_ACTIONS[1]),
        (RET, 0, 0, OWN_SOCKET),
    ]
    return found


def _pinned(pins: Mapping[bytes, int]) -> list[Instruction]:
    """Return the instructions that find the socket of a pinned IPv4 address, and go on with all others."""
    by_host: dict[int, list[tuple[int, int]]] = {}
    for address, index in pins.items():
        by_host.setdefault(int.from_bytes(address[1:5], "big"), []).append((int.from_bytes(address[5:7], "big"), index))
    nobody: Instruction = (JUMP, 0, 0, _WORD)  # its distance is filled in below

    def search(hosts: Sequence[int]) -> list[Instruction]:
        if len(hosts) > 1:
            middle = len(hosts) // 2
            left, right = search(hosts[:middle]), search(hosts[middle:])
            return [(JGE, 0, 1, hosts[middle]), (JUMP, 0, 0, len(left)), *left, *right]
        ports = [part for port, index in by_host[hosts[0]] for part in ((JEQ, 0, 1, port), (RET, 0, 0, index))]
        return [(JEQ, 1, 0, hosts[0]), nobody, (LD_HALF, 0, 0, _ADDRESS_AT + 4), *ports, nobody]

    found = [(LD_WORD, 0, 0, _ADDRESS_AT), *search(sorted(by_host))] if by_host else []
    return [(JUMP, 0, 0, len(found) - at - 1) if part == nobody else part for at, part in enumerate(found)]


def _announced(pins: Mapping[bytes, int]) -> list[Instruction]:
    """Return the instructions of a lane that is announced, which go on with what has no place of its own."""
    of_kinds: dict[AddressType, list[Instruction]] = {
        AddressType.IPV4: [*_questions(_ADDRESS_AT + 6), *_pinned(pins)],
        AddressType.IPV6: _questions(_ADDRESS_AT + 18),
        AddressType.DOMAIN: [(RET, 0, 0, OWN_SOCKET)],
    }
    whole: list[Instruction] = []
    for kind, found in of_kinds.items():
        whole += [(LD_BYTE, 0, 0, _ATYP_AT), (JEQ, 1, 0, kind), (JUMP, 0, 0, len(found)), *found]
    return whole


def program(
    indexes: Sequence[int], sockets: int, steering: EndSteering, pins: Mapping[bytes, int] | None = None
) -> list[Instruction]:
    """Return the program for the socket index of each of the BUCKETS buckets, in a group of so many sockets.

    `steering` is the lane's. `pins`, of a lane that is announced, has the socket index of encoded IPv4 addresses.
    """
    runs = [(0, indexes[0])]
    for bucket, index in enumerate(indexes):
        if index != runs[-1][1]:
            runs.append((bucket, index))
    # One search for all three kinds: the kernel gives a program little memory (net.core.optmem_max).
    hashes = list(_HASHES.items())
    nobody: list[Instruction] = [(RET, 0, 0, OWN_SOCKET)]
    left = sum(2 + len(find) for _, find in hashes) + len(nobody)
    special = _announced(pins) if pins is not None else []
    whole: list[Instruction] = [*_end_to_end(sockets, steering), *special, (LD_BYTE, 0, 0, _ATYP_AT)]
    for kind, find in hashes:
        left -= 2 + len(find)
        whole += [(JEQ, 0, len(find) + 1, kind), *find, (JUMP, 0, 0, left)]
    return [*whole, *nobody, *choose([(first, ret(index)) for first, index in runs])]


class BucketTable:
    """Says who owns which bucket. Buckets are given out at first use, to whoever has the fewest."""

    def __init__(self, turn: int = 0) -> None:
        """`turn` says who comes first where several have the fewest: tables of few buckets each begin with others."""
        self._turn = turn
        self.owners: list[int | None] = [None] * BUCKETS
        self._eligible: tuple[int, ...] = ()
        self._lost_by: dict[int, int] = {}  # by bucket, the owner that gets it back when it is eligible again

    def owner(self, bucket: int) -> int | None:
        """Return the bucket's owner, chosen now if it has none; None when nobody may have it."""
        if self.owners[bucket] is None and self._eligible:
            first = self._turn % len(self._eligible)
            self.owners[bucket] = min(self._eligible[first:] + self._eligible[:first], key=self._load())
        return self.owners[bucket]

    def claim(self, bucket: int, owner: int) -> bool:
        """Give a bucket of nobody to this owner, if it may have buckets; return whether the bucket is this owner's."""
        if self.owners[bucket] is None and owner in self._eligible:
            self.owners[bucket] = owner
        return self.owners[bucket] == owner

    def set_eligible(self, eligible: Iterable[int]) -> set[int]:
        """Share the buckets among these owners from now on, and return the buckets that changed hands.

        The buckets of an owner that is not eligible any more have no owner until their next use. An owner that comes
        back gets the same buckets again, and the others keep the rest. A new owner gets its share of all in use.
        """
        before, self._eligible = self._eligible, tuple(sorted(eligible))
        owners_before = list(self.owners)
        for bucket, owner in enumerate(self.owners):
            if owner is not None and owner not in self._eligible:
                self._lost_by[bucket], self.owners[bucket] = owner, None
        is_new = False
        for newcomer in set(self._eligible).difference(before):
            own = [bucket for bucket, owner in self._lost_by.items() if owner == newcomer]
            is_new = is_new or not own
            self._give_back(newcomer, own)
        if is_new:
            self._balance()
        # A bucket may have gone to another owner and come back.
        return {
            bucket for bucket, owner in enumerate(owners_before) if owner is not None and self.owners[bucket] != owner
        }

    def _give_back(self, owner: int, buckets: Iterable[int]) -> None:
        for bucket in buckets:
            del self._lost_by[bucket]
            if self.owners[bucket] is not None:  # lent to another, whose peers are lost once more
                self.owners[bucket] = owner

    def _balance(self) -> None:
        while len(self._eligible) > 1:
            load = self._load()
            least, most = min(self._eligible, key=load), max(self._eligible, key=load)
            if load(most) - load(least) <= 1:
                break
            bucket = self.owners.index(most)
            self.owners[bucket] = least
            self._lost_by.pop(bucket, None)

    def _load(self) -> Callable[[int], int]:
        count = Counter(self.owners)
        return lambda owner: count[owner]
