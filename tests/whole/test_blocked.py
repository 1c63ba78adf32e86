"""Tests that a client whose provider drops packets to and from exits gets out through relays."""

import pytest

from tests.whole.test_leaks import pytestmark as in_namespaces
from tests.whole.test_leaks import told_by
from tunnel_pool.packet_engine import is_built

pytestmark = in_namespaces

WITHIN_S = 30  # for busy machines: it takes 8 s


@pytest.mark.parametrize(
    ("hops", "detour", "relays"), [(1, 2, "mixed"), (2, 3, "mixed"), (3, 3, "mixed"), (1, 2, "tracked")]
)
async def test_exits_that_were_never_met_are_reached_through_relays_that_tell_of_them(hops, detour, relays, tmp_path):
    """The relays are pyipv8's, some from before they told of exits; or the seeder is found by an HTTP tracker alone."""
    result = await told_by("tests.worlds.blocked_world", tmp_path, hops, "unmet", relays)
    assert result["code"] == 0, result
    assert result["verified"]
    print(f"{hops} hops, {relays}: the first byte came after {result['first_byte_s']} s")
    assert result["first_byte_s"] < WITHIN_S
    carried = [circuit for circuit in result["circuits"] if circuit["type"] == "DATA" and circuit["bytes"] > 1 << 20]
    assert {circuit["hops"] for circuit in carried} == {detour}
    if is_built():
        assert any(circuit["streams"] for circuit in carried)
    if hops < detour:
        assert "of a hop more: no exit answers from here" in result["lines"][-1]


@pytest.mark.parametrize(
    ("what", "hops", "seconds"),
    [("blocked", 1, WITHIN_S), ("gone", 1, WITHIN_S), ("gone", 2, WITHIN_S), ("silent", 1, 10), ("silent", 2, 10)],
)
async def test_a_download_goes_on_when_exits_are_lost_while_it_runs(what, hops, seconds, tmp_path):
    result = await told_by("tests.worlds.blocked_world", tmp_path, hops, what, "ours")
    assert result["code"] == 0, result
    assert result["verified"]
    print(f"{what}, {hops} hops: nothing came for {result['stall_s']} s")
    assert 1 < result["stall_s"] < WITHIN_S  # it takes less than so many `seconds`, on a machine that is not busy
    carried = {circuit["hops"] for circuit in result["circuits"] if circuit["bytes"] > 1 << 20}
    assert carried == ({hops} if what == "silent" else {hops, hops + 1})
