import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.worlds.feeding import feed_bytewise, feed_pieces, feed_whole, mutations, outcome
from tunnel_pool.rpc.data import MAX_LENGTH, DataDecoder, Datagram, encode
from tunnel_pool.rpc.errors import BrokenStreamError

ADDRESS = b"\x01\x7f\x00\x00\x01\x1a\xe1"
DATAGRAMS = [
    Datagram(1, ADDRESS, b""),
    Datagram(0xFFFFFFFF, b"\x03\x01a\x00\x01", b"payload"),
    Datagram(0, bytes(255), bytes(MAX_LENGTH - 255)),
    Datagram(0x01020304, ADDRESS, bytes(1400)),
]
WIRE = b"".join(encode(*datagram) for datagram in DATAGRAMS)

datagrams = st.builds(
    Datagram, st.integers(0, 0xFFFFFFFF), st.binary(min_size=4, max_size=255), st.binary(max_size=1500)
)


def test_header_is_what_its_picture_says():
    assert encode(0x01020304, ADDRESS, b"ab") == bytes([0, 9, 1, 7, 1, 2, 3, 4]) + ADDRESS + b"ab"


def test_whole_bytewise_and_trailing():
    assert feed_whole(DataDecoder(), WIRE) == DATAGRAMS
    assert feed_bytewise(DataDecoder(), WIRE) == DATAGRAMS
    decoder = DataDecoder()
    assert feed_whole(decoder, WIRE + WIRE[:9]) == DATAGRAMS
    assert feed_whole(decoder, WIRE[9:]) == DATAGRAMS


@given(st.lists(datagrams, max_size=5), st.lists(st.integers(0, 9000)))
def test_any_cut_gives_the_same_datagrams(some, cuts):
    assert feed_pieces(DataDecoder(), b"".join(encode(*datagram) for datagram in some), cuts) == some


@given(mutations(st.lists(datagrams, max_size=3).map(lambda some: b"".join(encode(*d) for d in some))))
def test_only_the_declared_error_escapes(data):
    outcome(lambda: feed_whole(DataDecoder(), data), BrokenStreamError)
    outcome(lambda: feed_bytewise(DataDecoder(), data), BrokenStreamError)


@pytest.mark.parametrize(
    "frame",
    [
        b"\x00\x09\x02\x07\x00\x00\x00\x00",  # unknown kind
        b"\x00\x09\x01\x03\x00\x00\x00\x00",  # address shorter than any
        b"\x00\x06\x01\x07\x00\x00\x00\x00",  # address longer than the frame
    ],
)
def test_a_bad_frame_breaks_the_stream_for_good(frame):
    decoder = DataDecoder()
    for data in (frame, WIRE):
        with pytest.raises(BrokenStreamError):
            feed_whole(decoder, data)


@pytest.mark.parametrize(("address", "payload"), [(b"abc", b""), (bytes(256), b""), (ADDRESS, bytes(MAX_LENGTH - 6))])
def test_what_the_header_cannot_say_is_not_sent(address, payload):
    with pytest.raises(ValueError):
        encode(1, address, payload)
