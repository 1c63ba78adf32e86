"""Tests the buckets of destinations: the pure table, the BPF program, and the kernel that runs it."""

import random
import socket

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from tests.worlds.reuse_port import LOOPBACK, reuse_port_group
from tunnel_pool.socks5.address import AddressType, encode_address
from tunnel_pool.socks5.steering import (
    BUCKETS,
    END_TO_END_PORT,
    MAX_PINS,
    BucketTable,
    EndSteering,
    bucket_of,
    is_end_address,
    program,
)
from tunnel_pool.steering.group import ReusePortGroup
from tunnel_pool.steering.slots import OWN_SOCKET, socket_of_slot

STEERING = EndSteering(0x9C7B13A5, 0x2F0E6D21)
MAX_INSTRUCTIONS = 1024  # a quarter of BPF_MAXINSNS; the kernel's own form must fit into net.core.optmem_max

addresses = st.one_of(
    st.tuples(st.ip_addresses(), st.integers(0, 65535)).map(lambda a: encode_address(str(a[0]), a[1])),
    st.tuples(st.from_regex(r"[a-z]{1,60}\.[a-z]{2,5}", fullmatch=True), st.integers(0, 65535)).map(
        lambda a: encode_address(*a)
    ),
)


@pytest.fixture(scope="module")
def group():
    with reuse_port_group(4) as group:
        yield group


@pytest.fixture(scope="module")
def client():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind((LOOPBACK, 0))
        yield sock


@given(addresses, st.integers(0, 4), st.integers())
def test_the_kernel_finds_the_bucket_that_we_find(group, client, address, index, seed):
    assume(not is_end_address(address))
    others = random.Random(seed)
    indexes = [others.randrange(5) for _ in range(BUCKETS)]
    indexes[bucket_of(address)] = index
    group.steer(program(indexes, len(group.sockets), STEERING))
    client.sendto(b"\x00\x00\x00" + address + b"payload", group.sockets[OWN_SOCKET].getsockname())
    assert group.sockets[index].recv(2000).endswith(b"payload")


@pytest.mark.parametrize("slot", [0, 3, 4, 255])
def test_an_end_to_end_address_goes_to_the_child_that_has_the_circuit(group, client, slot):
    group.steer(program([2] * BUCKETS, len(group.sockets), STEERING))
    number = STEERING.number_for(slot, 0x050607)
    assert STEERING.slot_of(number) == slot
    address = bytes([AddressType.IPV4]) + number.to_bytes(4, "big") + END_TO_END_PORT.to_bytes(2, "big")
    assert is_end_address(address)
    client.sendto(b"\x00\x00\x00" + address + b"payload", group.sockets[OWN_SOCKET].getsockname())
    expected = socket_of_slot(slot) if slot < 4 else OWN_SOCKET
    assert group.sockets[expected].recv(2000).endswith(b"payload")


@given(addresses)
def test_all_other_addresses_are_no_end_to_end_ones(address):
    if address[0] != 1 or address[5:7] != END_TO_END_PORT.to_bytes(2, "big"):
        assert not is_end_address(address)


@pytest.mark.parametrize("datagram", [b"", b"\x00\x00\x00", b"\x00\x00\x00\x01\x01", b"\x00\x00\x00\x09" + bytes(30)])
def test_what_has_no_destination_stays_with_the_server(group, client, datagram):
    group.steer(program([1] * BUCKETS, len(group.sockets), STEERING))
    client.sendto(datagram, group.sockets[OWN_SOCKET].getsockname())
    assert group.sockets[OWN_SOCKET].recv(2000) == datagram


def test_no_two_groups_share_a_port():
    groups = [ReusePortGroup(LOOPBACK) for _ in range(50)]
    try:
        assert len({group.sockets[OWN_SOCKET].getsockname() for group in groups}) == len(groups)
    finally:
        for group in groups:
            group.close()


def test_drained(group, client):
    group.steer(program([2] * BUCKETS, len(group.sockets), STEERING))
    for _ in range(3):
        client.sendto(b"\x00\x00\x00" + encode_address("1.2.3.4", 5), group.sockets[OWN_SOCKET].getsockname())
    assert group.discard(2) == 3
    assert group.discard(2) == 0


def test_the_largest_program_fits():
    assert len(program([bucket % 256 for bucket in range(BUCKETS)], 257, STEERING)) <= MAX_INSTRUCTIONS


def test_buckets_are_given_out_at_first_use_to_whoever_has_the_fewest():
    table = BucketTable()
    assert table.owner(7) is None
    assert table.set_eligible([1, 2]) == set()
    assert [table.owner(bucket) for bucket in (7, 8, 9, 7)] == [1, 2, 1, 1]


def test_tables_of_one_bucket_each_are_spread_over_all_owners():
    tables = [BucketTable(turn) for turn in range(6)]
    for table in tables:
        table.set_eligible([1, 2, 5])
    assert [table.owner(7) for table in tables] == [1, 2, 5, 1, 2, 5]


def test_who_is_gone_loses_its_buckets_and_who_is_new_gets_its_share():
    table = BucketTable()
    table.set_eligible([1])
    for bucket in range(10):
        table.owner(bucket)
    moved = table.set_eligible([1, 2])
    assert len(moved) == 5
    assert {table.owners[bucket] for bucket in moved} == {2}
    assert table.set_eligible([1, 2]) == set()
    lost = table.set_eligible([2])
    assert len(lost) == 5
    assert {table.owner(bucket) for bucket in lost} == {2}
    assert len(table.set_eligible([])) == 10
    assert table.owner(0) is None


def test_who_comes_back_gets_its_own_buckets_and_nobody_else_loses_any():
    """A child that dies takes only its own circuits with it, and its successor none of the others'."""
    table = BucketTable()
    table.set_eligible([1, 2])
    owned = {owner: {bucket for bucket in range(20) if table.owner(bucket) == owner} for owner in (1, 2)}
    assert table.set_eligible([2]) == owned[1]
    for bucket in list(owned[1])[:4]:  # whose peers ask again, over the other one
        table.owner(bucket)
    assert table.set_eligible([1, 2]) <= owned[1]
    assert {bucket for bucket in range(20) if table.owners[bucket] == 2} == owned[2]
    # What nobody used meanwhile is for whoever has the fewest.
    assert {table.owner(bucket) for bucket in owned[1]} == {1}


@given(st.lists(st.tuples(st.sets(st.integers(0, 5)), st.lists(st.integers(0, BUCKETS - 1), max_size=20)), max_size=12))
@example([({0}, [0, 1]), ({1}, [0, 1]), ({0, 1, 2}, [])])  # a bucket goes back to its first owner, and on
def test_only_who_may_has_buckets_and_who_is_new_has_about_as_many_as_another(steps):
    table, last, known = BucketTable(), set(), set()
    for eligible, used in steps:
        before = list(table.owners)
        moved = table.set_eligible(eligible)
        assert {b for b in range(BUCKETS) if before[b] is not None and table.owners[b] != before[b]} == moved
        if eligible <= last:
            assert all(table.owners[bucket] == owner for bucket, owner in enumerate(before) if owner in eligible)
        if eligible - known:
            counts = [table.owners.count(slot) for slot in eligible]
            assert max(counts) - min(counts) <= 1
        for bucket in used:
            table.owner(bucket)
        assert set(table.owners) <= eligible | {None}
        last, known = eligible, known | eligible


DHT_QUERY = b"d1:ad2:id20:" + bytes(20) + b"e1:q4:ping1:t2:aa1:y1:qe"
CONNECT = (0x41727101980).to_bytes(8, "big") + bytes(8)
ANNOUNCE = b"\x01\x00" + bytes(6) + b"\x00\x00\x00\x01" + bytes(86)
UTP = b"\x21\x00" + bytes(6) + b"\x00\x00\x01\x01" + bytes(30)


@given(addresses, st.sampled_from([DHT_QUERY, CONNECT, ANNOUNCE, UTP]))
def test_questions_and_names_of_an_announced_lane_go_to_the_server(group, client, address, payload):
    assume(not is_end_address(address))
    group.steer(program([3] * BUCKETS, len(group.sockets), STEERING, {}))
    client.sendto(b"\x00\x00\x00" + address + payload, group.sockets[OWN_SOCKET].getsockname())
    expected = 3 if payload == UTP and address[0] != 3 else OWN_SOCKET
    assert group.sockets[expected].recv(2000).endswith(payload)


pinned_addresses = st.tuples(st.ip_addresses(v=4), st.integers(1025, 65535)).map(
    lambda a: encode_address(str(a[0]), a[1])
)
pin_tables = st.dictionaries(pinned_addresses, st.integers(0, 4), max_size=40)


@given(pin_tables, pinned_addresses, st.data())
def test_a_pinned_address_goes_to_the_socket_that_is_named_for_it(group, client, pins, other, data):
    address = data.draw(st.sampled_from([other, *pins]))
    group.steer(program([2] * BUCKETS, len(group.sockets), STEERING, pins))
    client.sendto(b"\x00\x00\x00" + address + UTP, group.sockets[OWN_SOCKET].getsockname())
    assert group.sockets[pins.get(address, 2)].recv(2000).endswith(UTP)


def test_many_pins_at_one_host_and_at_many_fit_into_a_program(group):
    one_host = {encode_address("9.9.9.9", port): port % 4 for port in range(2000, 2000 + MAX_PINS)}
    many = {encode_address(f"9.9.{number}.9", 2000): number % 4 for number in range(MAX_PINS)}
    for pins in (one_host, many):
        whole = program([bucket % 5 for bucket in range(BUCKETS)], len(group.sockets), STEERING, pins)
        assert len(whole) <= 4096
        group.steer(whole)
