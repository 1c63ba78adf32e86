"""Tests our session keys against ipv8_rust_tunnels, which other nodes of the network derive and seal with."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ipv8.messaging.anonymization.tunnel import BACKWARD, FORWARD
from ipv8_rust_tunnels import generate_session_keys

from tunnel_pool.overlay.wire.session_keys import LENT_COUNTER, SessionKeys, lend

SECRET = bytes(range(64))
directions = st.sampled_from((FORWARD, BACKWARD))


@given(st.binary(min_size=32, max_size=64), st.lists(st.tuples(st.binary(max_size=1500), directions), max_size=4))
def test_both_sides_derive_the_same_keys_and_read_each_other(secret, messages):
    ours, theirs = SessionKeys.derived_from(secret), generate_session_keys(secret)
    for message, direction in messages:
        layer = ours.encrypt_str(message, direction)
        assert theirs.encrypt_str(message, direction) == layer
        assert theirs.decrypt_str(layer, direction) == message
        assert ours.decrypt_str(layer, direction) == message


@given(st.binary(max_size=64), directions)
def test_what_the_other_side_did_not_seal_is_refused(layer, direction):
    with pytest.raises(ValueError, match="a layer"):
        SessionKeys.derived_from(SECRET).decrypt_str(layer, direction)


def test_a_changed_bit_is_noticed_wherever_it_is():
    keys = SessionKeys.derived_from(SECRET)
    layer = keys.encrypt_str(b"content", FORWARD)
    for at in range(len(layer)):
        with pytest.raises(ValueError, match="did not seal"):
            keys.decrypt_str(layer[:at] + bytes([layer[at] ^ 1]) + layer[at + 1 :], FORWARD)


def test_lent_keys_seal_under_counters_of_their_own():
    keys = SessionKeys.derived_from(SECRET)
    lent = lend(keys)
    layer = lent.encrypt_str(b"content", BACKWARD)
    assert int.from_bytes(layer[:8], "big") == LENT_COUNTER + 1
    assert keys.decrypt_str(layer, BACKWARD) == b"content"


def test_a_salt_of_another_length_is_refused():
    with pytest.raises(ValueError, match="4 bytes"):
        SessionKeys(bytes(32), bytes(32), bytes(5), bytes(4))
