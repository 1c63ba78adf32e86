"""Tests destinations that only the Python engine can be given; tests/packet_engine/test_vectors.py has all others."""

import pytest

from tunnel_pool.overlay.ground.destinations import is_allowed_destination


@pytest.mark.parametrize("host", ["not an address", ""])
@pytest.mark.parametrize("allow_private", [False, True])
def test_no_address_is_never_a_destination(host, allow_private):
    assert not is_allowed_destination(host, 6881, allow_private)


@pytest.mark.parametrize(("port", "allowed"), [(-1, False), (0, False), (1, True), (65535, True), (65536, False)])
def test_ports(port, allowed):
    assert is_allowed_destination("8.8.8.8", port, allow_private=False) is allowed
