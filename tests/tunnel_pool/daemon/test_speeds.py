"""Tests the download and upload speed that the daemon shows for a torrent."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunnel_pool.daemon.rules.speeds import WINDOW_S, Speeds

LIMIT = 200_000


def test_what_comes_in_bursts_at_a_limit_is_shown_near_the_limit():
    speeds, down = Speeds(), 0
    for second in range(1, 60):
        down += 4 * LIMIT if second % 4 == 0 else 0  # as libtorrent takes it
        speeds.measure((down, 0), float(second), 1.0)
        if second > WINDOW_S:
            assert speeds.down <= 1.6 * LIMIT
            assert speeds.down >= 0.6 * LIMIT


@given(st.lists(st.tuples(st.integers(0, 10**7), st.integers(0, 10**7)), min_size=1, max_size=30))
def test_after_each_second_the_speed_is_what_came_in_the_last_ones(moved):
    speeds, down, up = Speeds(), 0, 0
    for second, (more_down, more_up) in enumerate(moved, 1):
        down, up = down + more_down, up + more_up
        speeds.measure((down, up), float(second), 1.0)
        last = moved[max(0, second - int(WINDOW_S)) : second]
        assert speeds.down == pytest.approx(sum(each for each, _ in last) / len(last), abs=1)
        assert speeds.up == pytest.approx(sum(each for _, each in last) / len(last), abs=1)


def test_the_first_bytes_after_a_silence_are_shown_at_once_and_a_new_count_is_no_speed_below_zero():
    speeds = Speeds()
    speeds.measure((1000, 0), 1.0, 1.0)
    assert not speeds.is_idle((1000, 0))
    speeds.measure((101_000, 0), 100.0, 1.0)
    assert speeds.down == 100_000
    speeds.measure((500, 0), 101.0, 1.0)
    assert speeds.down == 500
    speeds.stop((500, 0))
    assert (speeds.down, speeds.is_idle((500, 0)), speeds.is_idle((501, 0))) == (0, True, False)
