"""The masked addresses by which libtorrent knows end-to-end peers: they must not reveal a circuit's id."""

from hypothesis import given
from hypothesis import strategies as st
from ipv8.messaging.anonymization.tunnel import CIRCUIT_ID_PORT

from tunnel_pool.overlay.config import slot_of
from tunnel_pool.overlay.hidden_swarms import end_to_end
from tunnel_pool.overlay.hidden_swarms.end_to_end import (
    end_to_end_address,
    end_to_end_circuit_id,
    mask_in_use,
    use_mask,
)

circuit_ids = st.integers(0, 2**32 - 1)


@given(circuit_ids, circuit_ids)
def test_an_address_is_not_the_id_and_stands_for_it(circuit_id, mask):
    before = mask_in_use()
    try:
        use_mask(mask)
        host, port = end_to_end_address(circuit_id)
        assert port == CIRCUIT_ID_PORT
        assert end_to_end_circuit_id(host, port) == circuit_id
        assert end_to_end_circuit_id(host, port + 1) is None
        number = int.from_bytes(map(int, host.split(".")), "big")
        assert slot_of(number) == slot_of(circuit_id)  # by which the kernel finds the child
        assert (number == circuit_id) == (mask % 2**24 == 0)
    finally:
        use_mask(before)


def test_each_process_has_a_mask_of_its_own():
    assert end_to_end._mask != 0
