"""Tests the limits on circuits and handshakes of others, at times that the tests pass in."""

from hypothesis import given
from hypothesis import strategies as st

from tunnel_pool.overlay.ground.admission import Admission, Handshakes, Joins


def test_in_all_and_of_a_neighbour():
    joins = Joins()
    admission = Admission(circuits=10, per_neighbour=3)
    assert joins.refusal(admission, 9, 2, 0.0) is None
    assert joins.refusal(admission, 10, 0, 0.0) == "create_too_many"
    assert joins.refusal(admission, 5, 3, 0.0) == "create_too_many_of_neighbour"


def test_zero_is_no_cap():
    joins = Joins()
    assert all(joins.refusal(Admission(0, 0, 0), 10**6, 10**6, 0.0) is None for _ in range(1000))


def test_closed_is_closed():
    assert Joins().refusal(Admission(0, 0, 0, closed=True), 0, 0, 0.0) == "create_closed"
    assert Admission(closed=True).share(3).closed


@given(st.lists(st.floats(0, 600), min_size=1, max_size=400), st.integers(1, 60))
def test_no_minute_has_more_than_twice_its_number(times, per_minute):
    """A burst may take `per_minute` at once, and another `per_minute` while the bucket empties."""
    joins = Joins()
    admission = Admission(per_minute=per_minute)
    joined = [now_s for now_s in sorted(times) if joins.refusal(admission, 0, 0, now_s) is None]
    for start_s in joined:
        assert sum(start_s <= now_s < start_s + 60 for now_s in joined) <= 2 * per_minute


@given(st.integers(1, 10_000), st.integers(1, 64))
def test_shares_make_the_whole(circuits, children):
    share = Admission(circuits=circuits, per_minute=circuits).share(children)
    assert circuits <= share.circuits * children < circuits + children
    assert Admission(0, 0, 0, 0, 0).share(children) == Admission(0, 0, 0, 0, 0)


def test_handshakes_of_a_source_and_in_all():
    handshakes = Handshakes()
    handshakes.per_s, handshakes.per_source_per_s = 100, 10
    of_one = sum(handshakes.refusal("1.1.1.1", False, 100.0) is None for _ in range(1000))
    assert of_one in (20, 21)
    of_many = [handshakes.refusal(f"2.2.{n // 250}.{n % 250}", False, 100.0) for n in range(6000)]
    assert of_many.count(None) in range(78, 83)
    assert of_many[-1] == "handshakes_too_many"
    assert handshakes.refusal("3.3.3.3", True, 100.0) is None
    assert len(handshakes._sources) <= 4096
    assert handshakes.refusal("1.1.1.1", False, 101.0) is None
