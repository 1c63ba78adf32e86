"""Tests the replay window of the Python engine; cargo tests the native engine's for the same properties."""

from hypothesis import given
from hypothesis import strategies as st

from tunnel_pool.overlay.wire.replay import EARLY, MAX_EARLY_TAGS, WINDOW, Received, ReplayWindow


def take(window, counter):
    new = window.is_new(counter)
    if new:
        window.accept(counter)
    return new


def test_edges_of_the_window():
    window = ReplayWindow()
    assert take(window, WINDOW + 10)
    assert take(window, 10)
    assert not take(window, 10)
    assert not take(window, 9)
    assert take(window, 2**64 - 1)
    assert not take(window, WINDOW + 11)
    assert take(window, 2**64 - 1 - WINDOW)
    assert not take(window, 2**64 - 1)


@given(st.lists(st.integers(0, 20_000), max_size=300))
def test_once_each_and_never_refused_within_the_window(counters):
    window, seen, newest = ReplayWindow(), set(), 0
    for counter in counters:
        expected = counter not in seen and newest <= counter + WINDOW
        assert take(window, counter) is expected
        seen.add(counter)
        newest = max(newest, counter)


def test_early_cells_are_known_by_their_tags():
    """ipv8-rust-tunnels uses its first counters twice, for different texts; a replay is the same text."""
    received = Received()
    received.accept(2, b"a" * 16)
    assert not received.is_new(2, b"a" * 16)
    assert received.is_new(2, b"b" * 16)
    received.accept(EARLY + 1, b"c" * 16)
    assert not received.is_new(EARLY + 1, b"d" * 16)


def test_the_number_of_tags_is_bounded():
    received = Received()
    for number in range(2 * MAX_EARLY_TAGS):
        tag = number.to_bytes(16, "big")
        if received.is_new(2, tag):
            received.accept(2, tag)
    assert not received.is_new(2, b"new" + bytes(13))
