"""Tests that memory and descriptors do not grow in half an hour of downloads: `pytest -m soak`."""

import json
import subprocess

import pytest

from tests.worlds.commands import MODULE, ROOT

SECONDS = 1800
MB_AN_HOUR, DESCRIPTORS_AN_HOUR = 40, 10


@pytest.mark.soak
@pytest.mark.timeout(SECONDS + 300)
def test_memory_and_descriptors_stay_as_they_are():
    command = [*MODULE, "bench", "soak", f"--seconds={SECONDS}", "--json"]
    output = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    result = json.loads(output.splitlines()[-1])["soak"]
    assert result["downloads"] > 100
    growth = result["growth"]
    assert growth["main_private_mb"] < MB_AN_HOUR, growth
    assert growth["child_rss_mb"] < MB_AN_HOUR, growth
    for key in ("main_fds", "child_fds", "threads"):
        assert growth[key] < DESCRIPTORS_AN_HOUR, growth
