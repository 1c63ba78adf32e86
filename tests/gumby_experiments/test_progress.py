"""Tests the speed of a download over time, computed from its progress at irregular times."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunnel_pool.gumby_experiments.nodes.progress import Progress

MB = 1_000_000


def test_an_even_download_has_one_speed_however_late_it_is_seen():
    progress = Progress([(0.3, 3 * MB), (0.35, 3 * MB), (1.1, 11 * MB), (2.0, 20 * MB)])
    assert progress.rows() == [
        {"elapsed_s": at, "done_bytes": round(at * 10 * MB), "download_mb_per_s": 10.0} for at in (0.5, 1.0, 1.5, 2.0)
    ]


def test_what_stands_still_is_seen_as_standing_still():
    seen = [(0.5, 5 * MB), (0.75, 5 * MB), (1.5, 5 * MB), (2.5, 5 * MB), (3.0, 10 * MB)]
    progress = Progress(seen)
    speeds = [row["download_mb_per_s"] for row in progress.rows()]
    assert speeds == [10, 0, 0, 0, 0, 10]
    assert Progress(progress.points).points == progress.points


def test_nothing_comes_before_the_first_bytes():
    progress = Progress([(0.3, 0), (0.6, 0), (1.0, 0), (1.5, 5 * MB)])
    assert [row["download_mb_per_s"] for row in progress.rows()] == [0, 0, 10]


def test_nothing_of_what_is_shorter_than_an_interval():
    assert Progress([(0.4, 5 * MB)]).rows() == []
    assert Progress().rows() == []


@given(st.lists(st.tuples(st.floats(0, 20), st.integers(0, 1 << 34))))
def test_speeds_add_up_to_what_came(points):
    rows = Progress(points).rows()
    assert sum(row["download_mb_per_s"] * MB * 0.5 for row in rows) == pytest.approx(
        rows[-1]["done_bytes"] if rows else 0, abs=1e3 * (len(rows) + 1)
    )
