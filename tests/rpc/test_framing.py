import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.worlds.feeding import feed_bytewise, feed_pieces, feed_whole, mutations, outcome
from tunnel_pool.rpc.errors import BrokenStreamError
from tunnel_pool.rpc.framing import HEADER, MAGIC, MAX_BODY_BYTES, VERSION, Frame, FrameDecoder, Kind, encode

FRAMES = [
    Frame(Kind.REQUEST, 1, b""),
    Frame(Kind.REPLY, 0xFFFFFFFF, b"x"),
    Frame(Kind.ERROR, 7, bytes(range(256))),
    Frame(Kind.EVENT, 0, b"\x00" * 5000),
]
WIRE = b"".join(encode(*frame) for frame in FRAMES)

frames = st.builds(Frame, st.sampled_from(Kind), st.integers(0, 0xFFFFFFFF), st.binary(max_size=300))


def test_header_is_what_its_picture_says():
    assert encode(Kind.REPLY, 0x01020304, b"ab") == b"TP" + bytes([1, 2, 1, 2, 3, 4, 0, 0, 0, 2]) + b"ab"


def test_whole_and_bytewise():
    assert feed_whole(FrameDecoder(), WIRE) == FRAMES
    assert feed_bytewise(FrameDecoder(), WIRE) == FRAMES


def test_trailing_bytes_wait_for_the_rest():
    decoder = FrameDecoder()
    assert feed_whole(decoder, WIRE + WIRE[:20]) == FRAMES + FRAMES[:1]
    assert feed_whole(decoder, WIRE[20:]) == FRAMES[1:]


@given(st.lists(frames, max_size=5), st.lists(st.integers(0, 5000)))
def test_any_cut_gives_the_same_frames(some, cuts):
    assert feed_pieces(FrameDecoder(), b"".join(encode(*frame) for frame in some), cuts) == some


@given(mutations(st.lists(frames, max_size=3).map(lambda some: b"".join(encode(*frame) for frame in some))))
def test_only_the_declared_error_escapes(data):
    outcome(lambda: feed_whole(FrameDecoder(), data), BrokenStreamError)
    outcome(lambda: feed_bytewise(FrameDecoder(), data), BrokenStreamError)


@pytest.mark.parametrize(
    "header",
    [
        HEADER.pack(b"XX", VERSION, Kind.REPLY, 1, 0),
        HEADER.pack(MAGIC, VERSION + 1, Kind.REPLY, 1, 0),
        HEADER.pack(MAGIC, VERSION, 0, 1, 0),
        HEADER.pack(MAGIC, VERSION, 5, 1, 0),
        HEADER.pack(MAGIC, VERSION, Kind.REPLY, 1, MAX_BODY_BYTES + 1),
        HEADER.pack(MAGIC, VERSION, Kind.REPLY, 1, 0xFFFFFFFF),
    ],
)
def test_a_bad_header_breaks_the_stream_for_good(header):
    decoder = FrameDecoder()
    with pytest.raises(BrokenStreamError) as first:
        feed_whole(decoder, header)
    with pytest.raises(BrokenStreamError) as second:
        feed_whole(decoder, WIRE)
    assert str(first.value) == str(second.value)


def test_length_is_refused_before_the_body_arrives():
    decoder = FrameDecoder()
    with pytest.raises(BrokenStreamError):
        feed_bytewise(decoder, HEADER.pack(MAGIC, VERSION, Kind.REPLY, 1, MAX_BODY_BYTES + 1))


def test_limit_itself_is_allowed():
    body = bytes(MAX_BODY_BYTES)
    assert feed_whole(FrameDecoder(), encode(Kind.EVENT, 0, body)) == [Frame(Kind.EVENT, 0, body)]
    with pytest.raises(ValueError):
        encode(Kind.EVENT, 0, body + b"x")
