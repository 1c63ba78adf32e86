"""Tests circuit ids and their buckets: the pure table, the BPF programs, and the kernel that runs them."""

import random
import socket
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.worlds.reuse_port import LOOPBACK, reuse_port_group
from tunnel_pool.steering.cells import (
    BUCKETS,
    MAX_STAYED,
    PY_IPV8,
    CellBuckets,
    Move,
    bucket_of,
    cells_of,
    messages_like,
    messages_of,
    program,
    random_id,
)
from tunnel_pool.steering.group import ReusePortGroup
from tunnel_pool.steering.slots import OWN_SOCKET, socket_of_slot

SLOTS = 4
PREFIX = bytes([0, 2]) + bytes(range(20))
OTHER_PREFIX = bytes([0, 2]) + bytes(range(1, 21))

circuit_ids = st.integers(0, 0xFFFFFFFF)
slot_sets = st.sets(st.integers(0, 20), min_size=1, max_size=12)


def cell(circuit_id, prefix=PREFIX):
    return prefix + b"\x00" + circuit_id.to_bytes(4, "big") + b"\x00\x01payload"


@pytest.fixture
def group():
    with reuse_port_group(SLOTS) as group:
        yield group


@pytest.fixture(scope="module")
def client():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind((LOOPBACK, 0))
        yield sock


def send(client, group, datagram):
    client.sendto(datagram, group.sockets[OWN_SOCKET].getsockname())


def takers(group):
    """Return the indexes of the sockets that have received something, and discard what they received."""
    return [index for index in range(len(group.sockets)) if group.discard(index)]


def test_the_kernel_gives_a_cell_to_the_owner_of_its_circuits_bucket(group, client):
    chance = random.Random(1)
    for _ in range(50):
        buckets = CellBuckets(range(SLOTS))
        buckets.owners = [chance.randrange(SLOTS) for _ in range(BUCKETS)]
        stayed = [chance.getrandbits(32) for _ in range(chance.randrange(20))]
        buckets.stayed = {circuit_id: chance.randrange(SLOTS) for circuit_id in stayed}
        group.steer(program(buckets, len(group.sockets)))
        for circuit_id in [*stayed, *(chance.getrandbits(32) for _ in range(50))]:
            send(client, group, cell(circuit_id))
            assert takers(group) == [socket_of_slot(buckets.slot_of(circuit_id))]


@pytest.mark.parametrize("datagram", [b"", b"\x00", PREFIX, PREFIX + b"\xf6" + bytes(40), PREFIX + b"\x00\x01"])
def test_what_is_no_cell_goes_to_the_main_process(group, client, datagram):
    group.steer(program(CellBuckets(range(SLOTS)), len(group.sockets)))
    send(client, group, datagram)
    assert takers(group) == [OWN_SOCKET]


def test_a_slot_that_has_no_socket_is_served_by_the_main_process(group, client):
    group.steer(program(CellBuckets([SLOTS]), len(group.sockets)))
    send(client, group, cell(7))
    assert takers(group) == [OWN_SOCKET]


def test_the_largest_program_is_taken_by_the_kernel(group, client):
    buckets = CellBuckets(range(SLOTS))
    buckets.owners = [bucket % SLOTS for bucket in range(BUCKETS)]
    buckets.stayed = dict.fromkeys(range(MAX_STAYED), 0)
    whole = program(buckets, len(group.sockets))
    assert len(whole) < 2048  # half of BPF_MAXINSNS; the kernel's own form must fit into net.core.optmem_max
    group.steer(whole)
    send(client, group, cell(MAX_STAYED - 1))
    assert takers(group) == [socket_of_slot(0)]


def test_sockets_let_in_what_is_theirs(group, client):
    group.steer(program(CellBuckets(range(SLOTS)), len(group.sockets)))
    for slot in range(SLOTS):
        group.let_in(socket_of_slot(slot), cells_of(PREFIX))
    group.let_in(OWN_SOCKET, messages_of([PREFIX, OTHER_PREFIX]))
    refused = [cell(3, OTHER_PREFIX), PREFIX, bytes(100), b"", OTHER_PREFIX[:-1] + b"\xff\xf6" + bytes(9)]
    for datagram in refused:
        send(client, group, datagram)
        assert takers(group) == ([OWN_SOCKET] if datagram == PREFIX else [])
    assert group.dropped() == len(refused) - 1
    for taken in (PREFIX + b"\xf6abc", OTHER_PREFIX + b"\xf5abc"):
        send(client, group, taken)
        assert takers(group) == [OWN_SOCKET]
    send(client, group, cell(3))
    assert takers(group) == [socket_of_slot(0)]


def test_many_prefixes_are_let_in_and_no_others(group, client):
    group.steer(program(CellBuckets(range(SLOTS)), len(group.sockets)))
    prefixes = [PY_IPV8 + random.randbytes(20) for _ in range(1000)]
    group.let_in(OWN_SOCKET, messages_like(prefixes))
    for prefix in (prefixes[0], prefixes[500], prefixes[999]):
        send(client, group, prefix + b"\xf6abc")
        assert takers(group) == [OWN_SOCKET]
    for refused in (PY_IPV8 + bytes(20) + b"\xf6abc", b"\x00\x01" + prefixes[0][2:] + b"\xf6", prefixes[0][:5], b""):
        send(client, group, refused)
        assert takers(group) == []


def test_a_port_that_is_taken_is_not_shared(group):
    with pytest.raises(OSError, match="in use"):
        ReusePortGroup(LOOPBACK, group.sockets[OWN_SOCKET].getsockname()[1])


@given(slot_sets, slot_sets)
def test_buckets_are_shared_evenly_and_no_more_than_needed_move(before, after):
    buckets = CellBuckets(sorted(before))
    buckets.move(buckets.moves(before), {})
    had = {slot: len(buckets.buckets_of(slot)) for slot in before}
    moves = buckets.moves(after)
    assert buckets.move(moves, {}) == []
    have = Counter(buckets.owners)
    assert set(have) == after
    assert max(have.values()) - min(have.values()) <= 1
    assert buckets.moves(after) == []
    lost = sum(max(0, count - (have[slot] if slot in after else 0)) for slot, count in had.items())
    assert len(moves) == lost


@given(st.lists(st.tuples(st.integers(0, 255), st.sets(circuit_ids, max_size=9)), max_size=60), slot_sets)
def test_a_live_circuit_stays_with_its_child(live_of, eligible):
    buckets = CellBuckets([30, 31])
    live = {bucket: {id_ - id_ % BUCKETS + bucket for id_ in ids} for bucket, ids in live_of}
    before = {circuit_id: buckets.slot_of(circuit_id) for ids in live.values() for circuit_id in ids}
    left = buckets.move(buckets.moves(eligible), live)
    assert {circuit_id: buckets.slot_of(circuit_id) for circuit_id in before} == before
    assert len(buckets.stayed) <= MAX_STAYED
    assert all(buckets.owners[move.bucket] == move.giver for move in left)
    for giver in (30, 31):
        buckets.still_live(giver, ())
    assert buckets.stayed == {}


def test_too_many_live_circuits_keep_their_bucket():
    buckets = CellBuckets([0])
    live = {bucket: {bucket + BUCKETS * number for number in range(MAX_STAYED)} for bucket in (4, 5)}
    assert buckets.move([Move(4, 0, 1), Move(5, 0, 1), Move(6, 0, 1)], live) == [Move(5, 0, 1)]
    assert buckets.buckets_of(1) == [4, 6]
    assert buckets.still_live(0, [4])
    assert not buckets.still_live(0, [4])
    assert buckets.move([Move(4, 1, 0)], {}) == []
    assert buckets.stayed == {}


@given(st.integers(0, 255), st.sets(st.integers(0, 255), min_size=1))
def test_ids_lie_in_the_slot_and_in_a_bucket_of_ones_own(slot, own):
    circuit_id = random_id(slot, 24, sorted(own))
    assert circuit_id >> 24 == slot
    assert bucket_of(circuit_id) in own
