"""Tests that a process exits if its shutdown takes too long."""

import subprocess
import sys

from tests.worlds.commands import ROOT

HANGS = "import time; from tunnel_pool.system.deadline import ends_within\nwith ends_within({}): time.sleep({})"


def ended(within_s, takes_s):
    command = [sys.executable, "-c", HANGS.format(within_s, takes_s)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30, check=False)
    return done.returncode, done.stderr


def test_what_takes_too_long_is_ended():
    code, said = ended(0.2, 60)
    assert code == 1
    assert "did not end in order" in said


def test_what_ends_in_time_is_left_alone():
    assert ended(20, 0) == (0, "")
