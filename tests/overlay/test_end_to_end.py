"""Tests the addresses that stand for end-to-end peers in libtorrent: they reveal neither the circuit nor the lane."""

import itertools
import secrets
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ipv8.messaging.anonymization.tunnel import CIRCUIT_ID_PORT, CIRCUIT_TYPE_RP_DOWNLOADER, Circuit

from tunnel_pool.overlay.ground.config import SLOT_SHIFT
from tunnel_pool.overlay.ground.end_to_end import (
    FIRST_BYTES,
    address_of_number,
    end_to_end_address,
    end_to_end_circuit,
    known_as,
    number_of_end,
    secret_in_use,
    steering_of,
    use_secret,
)
from tunnel_pool.overlay.ground.lanes import Lane, lane_of, set_group
from tunnel_pool.socks5.steering import EndSteering

words = st.integers(0, 2**32 - 1)
DRAWS = 1000


@pytest.fixture
def other_secret():
    before = secret_in_use()
    yield
    use_secret(before)


def circuit_of(slot, hops=1, group=0):
    circuit = Circuit(slot << SLOT_SHIFT | secrets.randbits(24), hops + 1, CIRCUIT_TYPE_RP_DOWNLOADER)
    set_group(circuit, group)
    return circuit


@given(words, words, st.integers(0, 255), st.integers(0, 2**24 - 1))
def test_an_address_leads_to_the_child_that_it_was_made_for(first, second, slot, bits):
    steering = EndSteering(first | 1, second | 1)
    assert steering.slot_of(steering.number_for(slot, bits)) == slot


def test_both_engines_derive_the_same(other_secret):
    """packet_engine/src/ends.rs has these numbers, too."""
    use_secret(bytes([7]) * 32)
    steering = steering_of(Lane.unpack(0x01020301))
    assert steering == (3615334175, 2634236413)
    assert steering.slot_of(0x01020304) == 74


def test_an_address_stands_for_one_circuit_of_its_lane_and_stays():
    circuits = [circuit_of(number % 4) for number in range(20)]
    for circuit in circuits:
        host, port = end_to_end_address(circuit)
        assert (host, port) == end_to_end_address(circuit)
        number = number_of_end(host, port)
        assert port == CIRCUIT_ID_PORT
        assert number == known_as(circuit)
        assert address_of_number(number) == (host, port)
        assert steering_of(lane_of(circuit)).slot_of(number) == circuit.circuit_id >> SLOT_SHIFT
        assert end_to_end_circuit(circuits, number, Lane(1)) is circuit
        assert end_to_end_circuit(circuits, number, Lane(1, 1)) is None
    assert number_of_end("1.2.3.4", 80) is None
    assert number_of_end("::1", CIRCUIT_ID_PORT) is None
    assert number_of_end("example.org", CIRCUIT_ID_PORT) is None


def test_a_circuit_that_goes_to_another_group_gets_another_address():
    """py-ipv8 makes circuits, and their group is set afterwards."""
    circuit = circuit_of(3)
    before = known_as(circuit)
    set_group(circuit, 9)
    after = known_as(circuit)
    assert after != before
    assert steering_of(Lane(1, 9)).slot_of(after) == 3


def test_two_meetings_of_one_child_have_nothing_in_common():
    """A peer that is met twice sees two addresses, whose difference says nothing of the circuits' ids or the child."""
    drawn = [(known_as(circuit), circuit.circuit_id) for circuit in (circuit_of(1) for _ in range(DRAWS))]
    pairs = list(itertools.pairwise(drawn))
    assert not any(one[0] ^ other[0] == one[1] ^ other[1] for one, other in pairs)
    differences = Counter((one[0] ^ other[0]) >> 24 for one, other in pairs)
    assert len(differences) > 150  # of 256 values of the first byte; the slots' difference is 0
    assert max(differences.values()) < 30
    firsts = Counter(number >> 24 for number, _ in drawn)
    assert set(firsts) <= FIRST_BYTES
    assert len(firsts) > 150


def test_two_lanes_have_nothing_in_common():
    """The steering of one lane leads the addresses of another anywhere."""
    other = steering_of(Lane(2, 5))
    slots = Counter(other.slot_of(known_as(circuit_of(1, hops=1, group=4))) for _ in range(DRAWS))
    assert len(slots) > 200
    assert max(slots.values()) < 30
