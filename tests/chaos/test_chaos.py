"""Tests a daemon under random faults: faults.py has the faults, world.py the checks."""

import json
import os

import pytest

from tests.conftest import CHAOS_SEED
from tests.whole.test_leaks import can_unshare, told_by

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not can_unshare(), reason="no network namespaces for this user, or no iproute2"),
]
FAULTS = int(os.environ.get("TUNNEL_POOL_CHAOS_FAULTS", "300"))


@pytest.mark.parametrize("start_method", ["spawn", "forkserver"])
async def test_nothing_acknowledged_is_lost_and_no_packet_goes_plain(start_method, tmp_path):
    """Each start method gets half of the TUNNEL_POOL_CHAOS_FAULTS faults, drawn from TUNNEL_POOL_CHAOS_SEED."""
    seed = int(os.environ[CHAOS_SEED])
    told = await told_by("tests.chaos.world", tmp_path, FAULTS // 2, seed, start_method, timeout_s=1100)
    print(json.dumps(told))
    assert told["acknowledged"] > 0
    assert sum(told["faults"].values()) == FAULTS // 2
    most = told["most"]
    assert most["main_private_mb"] < 300
    assert most["child_private_mb"] < 100
    assert most["main_descriptors"] < 500
    assert most["child_descriptors"] < 100
    assert most["children"] <= 8  # three, and those that are drained
