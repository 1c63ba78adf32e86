"""Both engines forbid the same addresses: those of IANA's special-purpose registries."""

import ipaddress

import pytest
from ipv8.messaging.anonymization.tunnel import PEER_FLAG_EXIT_BT

from tunnel_pool.overlay.ground.destinations import is_allowed_destination

_native = pytest.importorskip("tunnel_pool.packet_engine._native")

# RFC 6890 and what was registered since, and addresses that are IPv4's by another name.
SPECIAL = [
    "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24",
    "192.0.0.8/32", "192.0.0.9/32", "192.0.0.170/31", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16",
    "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4", "255.255.255.255/32",
    "::/128", "::1/128", "::/96", "::ffff:0:0:0/96", "64:ff9b::/96", "64:ff9b:1::/48", "100::/64", "2001::/23",
    "2001::/32", "2001:db8::/32", "2002::/16", "3fff::/20", "5f00::/16", "fc00::/7", "fe80::/10", "fec0::/10",
    "ff00::/8",
]  # fmt: skip
PUBLIC = ["8.8.8.8", "192.0.1.1", "192.88.98.255", "2600::1", "2001:200::1", "2003::1"]


def native_allows(address, allow_private):
    refusal = _native.exit_refusal(b"d1:y1:qe", (address, 80), bytes(22), PEER_FLAG_EXIT_BT, False, allow_private)
    assert refusal in (None, "exit_destination_refused")
    return refusal is None


def boundaries(text):
    """Return the first and the last address of a network, and those before and behind it."""
    network = ipaddress.ip_network(text)
    numbers = [int(network[0]) - 1, int(network[0]), int(network[-1]), int(network[-1]) + 1]
    kind = type(network[0])
    return [str(kind(number)) for number in numbers if 0 <= number < 2**network.max_prefixlen]


@pytest.mark.parametrize("network", SPECIAL)
@pytest.mark.parametrize("allow_private", [False, True])
def test_the_engines_agree_on_each_boundary(network, allow_private):
    for address in boundaries(network):
        in_python = is_allowed_destination(address, 80, allow_private)
        assert native_allows(address, allow_private) is in_python, address


@pytest.mark.parametrize("network", SPECIAL)
def test_no_exit_sends_into_a_special_network(network):
    first, last = ipaddress.ip_network(network)[0], ipaddress.ip_network(network)[-1]
    assert not is_allowed_destination(str(first), 80, False)
    assert not is_allowed_destination(str(last), 80, False)


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_are_allowed(address):
    assert is_allowed_destination(address, 80, False)
    assert native_allows(address, False)
