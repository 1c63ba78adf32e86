import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.worlds.feeding import feed_bytewise, feed_pieces, feed_whole, mutations, outcome
from tunnel_pool.rpc.errors import BrokenStreamError
from tunnel_pool.rpc.exit import MAX_TEXT_BYTES, ExitDecoder, ExitFrame, ExitKind, encode

FRAMES = [ExitFrame(ExitKind.REQUEST, "the pool stops"), ExitFrame(ExitKind.ENDED, ""), ExitFrame(ExitKind.STUCK, "é")]
WIRE = b"".join(encode(*frame) for frame in FRAMES)

frames = st.builds(ExitFrame, st.sampled_from(ExitKind), st.text(max_size=60))


def test_whole_bytewise_and_trailing():
    assert feed_whole(ExitDecoder(), WIRE) == FRAMES
    assert feed_bytewise(ExitDecoder(), WIRE) == FRAMES
    decoder = ExitDecoder()
    assert feed_whole(decoder, WIRE + WIRE[:3]) == FRAMES
    assert feed_whole(decoder, WIRE[3:]) == FRAMES


def test_long_text_is_cut_at_a_characters_edge():
    (frame,) = feed_whole(ExitDecoder(), encode(ExitKind.REQUEST, "é" * 200))
    assert frame.text == "é" * (MAX_TEXT_BYTES // 2)


@given(st.lists(frames, max_size=4), st.lists(st.integers(0, 500)))
def test_any_cut_gives_the_same_frames(some, cuts):
    assert feed_pieces(ExitDecoder(), b"".join(encode(*frame) for frame in some), cuts) == some


@given(mutations(st.lists(frames, max_size=3).map(lambda some: b"".join(encode(*frame) for frame in some))))
def test_only_the_declared_error_escapes(data):
    outcome(lambda: feed_whole(ExitDecoder(), data), BrokenStreamError)
    outcome(lambda: feed_bytewise(ExitDecoder(), data), BrokenStreamError)


def test_a_broken_stream_stays_broken():
    decoder = ExitDecoder()
    for data in (b"TX\x09\x00", WIRE):
        with pytest.raises(BrokenStreamError):
            feed_whole(decoder, data)
