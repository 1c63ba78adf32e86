import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.worlds.commands import ROOT
from tests.worlds.feeding import mutations, outcome
from tunnel_pool.socks5.address import Socks5Error, encode_address
from tunnel_pool.socks5.messages import ReplyCode, join_udp_request, reply, split_udp_request

ADDRESSES = [encode_address("1.2.3.4", 443), encode_address("2001:db8::1", 1), encode_address("example.org", 65535)]


@pytest.mark.parametrize("address", ADDRESSES)
@pytest.mark.parametrize("payload", [b"", b"x", bytes(1400)])
def test_udp_request_both_ways(address, payload):
    assert split_udp_request(join_udp_request(address, payload)) == (address, payload)


@pytest.mark.parametrize("address", ADDRESSES)
def test_every_cut_of_the_header_is_refused(address):
    datagram = join_udp_request(address, b"")
    for cut in range(len(datagram)):
        with pytest.raises(Socks5Error):
            split_udp_request(datagram[:cut])


@pytest.mark.parametrize("fragment", [1, 127, 128, 255])
def test_fragments_are_refused(fragment):
    with pytest.raises(Socks5Error, match="fragment"):
        split_udp_request(bytes([0, 0, fragment]) + ADDRESSES[0] + b"payload")


def test_reserved_bytes_are_passed_over():
    assert split_udp_request(b"\xff\xff\x00" + ADDRESSES[0]) == (ADDRESSES[0], b"")


def test_domain_names_too_long_for_the_data_stream_are_refused():
    assert split_udp_request(join_udp_request(encode_address("a" * 251, 1), b"x"))
    with pytest.raises(Socks5Error):
        split_udp_request(join_udp_request(encode_address("a" * 252, 1), b"x"))


def test_reply_layout():
    assert reply(ReplyCode.SUCCEEDED, encode_address("127.0.0.1", 258)) == b"\x05\x00\x00\x01\x7f\x00\x00\x01\x01\x02"


@given(mutations(st.sampled_from(ADDRESSES).map(lambda address: join_udp_request(address, b"payload"))))
def test_only_the_declared_error_escapes(data):
    outcome(lambda: split_udp_request(data), Socks5Error)


def test_the_engine_has_the_same_replies_under_the_same_names():
    """It needs none for a request that is no CONNECT to an address: such a one never reaches it."""
    code = (ROOT / "tunnel_pool" / "packet_engine" / "src" / "streams" / "opening.rs").read_text()
    found = re.findall(r"^    (\w+) = (\d+),$", code.partition("enum Reply {")[2].partition("\n}")[0], re.MULTILINE)
    theirs = {re.sub(r"(?<!^)([A-Z])", r"_\1", name).upper(): int(number) for name, number in found}
    assert theirs == {each.name: each for each in ReplyCode if each < ReplyCode.COMMAND_NOT_SUPPORTED}
