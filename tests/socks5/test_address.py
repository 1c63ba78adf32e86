import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.worlds.feeding import mutations, outcome
from tunnel_pool.socks5.address import (
    AddressType,
    Socks5Address,
    Socks5Error,
    address_length,
    decode_address,
    encode_address,
)

CASES = [
    (Socks5Address(AddressType.IPV4, "127.0.0.1", 0), b"\x01\x7f\x00\x00\x01\x00\x00"),
    (Socks5Address(AddressType.IPV4, "255.255.255.255", 65535), b"\x01\xff\xff\xff\xff\xff\xff"),
    (Socks5Address(AddressType.IPV6, "::1", 443), b"\x04" + bytes(15) + b"\x01\x01\xbb"),
    (Socks5Address(AddressType.DOMAIN, "a", 443), b"\x03\x01a\x01\xbb"),
    (Socks5Address(AddressType.DOMAIN, "tracker.example", 6969), b"\x03\x0ftracker.example\x1b\x39"),
]


@pytest.mark.parametrize(("address", "wire"), CASES)
def test_both_ways(address, wire):
    assert encode_address(address.host, address.port) == wire
    assert decode_address(wire) == address
    assert address_length(wire) == len(wire)
    assert address_length(b"xx" + wire + b"yy", 2) == len(wire)


@pytest.mark.parametrize(("address", "wire"), CASES)
def test_cut_short_or_followed_by_more(address, wire):
    for cut in range(len(wire)):
        length = address_length(wire[:cut])
        assert length is None or length == len(wire)
        with pytest.raises(Socks5Error):
            decode_address(wire[:cut])
    with pytest.raises(Socks5Error):
        decode_address(wire + b"x")


@pytest.mark.parametrize(
    "wire", [b"\x00", b"\x02aaaaaa", b"\x05", b"\x03\x00\x00\x50", b"\x03\x01\xff\x00\x50", b"\x03\x02a\n\x00\x50"]
)
def test_what_is_no_address(wire):
    with pytest.raises(Socks5Error):
        decode_address(wire)


@pytest.mark.parametrize(("host", "port"), [("1.2.3.4", -1), ("1.2.3.4", 65536), ("", 1), ("a" * 256, 1)])
def test_what_cannot_be_encoded(host, port):
    with pytest.raises(ValueError):
        encode_address(host, port)


def test_longest_domain_name():
    wire = encode_address("a" * 255, 1)
    assert decode_address(wire).host == "a" * 255


@given(mutations(st.sampled_from([wire for _, wire in CASES])))
def test_only_the_declared_error_escapes(data):
    address = outcome(lambda: decode_address(data), Socks5Error)
    if address is not None:
        assert decode_address(encode_address(address.host, address.port)).port == address.port
