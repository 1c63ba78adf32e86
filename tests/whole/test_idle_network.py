"""Tests that our programs at one address, with nothing to do, know each other and send little."""

import asyncio
import json
import os
import sys

import pytest

from tests.worlds.commands import ROOT

MOST_A_SECOND = 15


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("nodes", [12, 40])
async def test_a_private_network_with_nothing_to_do_is_quiet(nodes, tmp_path):
    process = await asyncio.create_subprocess_exec(
        "unshare", "-nm", sys.executable, "-m", "tests.worlds.idle_world", tmp_path, str(nodes),
        cwd=ROOT, stdout=asyncio.subprocess.PIPE, env=os.environ,
    )  # fmt: skip
    said, _ = await process.communicate()
    seen = json.loads(said)
    assert seen["programs"] == nodes + 2
    assert seen["missing"] == []
    assert seen["datagrams_a_second_each"] < MOST_A_SECOND
