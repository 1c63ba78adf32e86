"""Fixtures for daemons under test: a plain seeder, and disks."""

import contextlib
import os
import subprocess

import pytest

from tests.tunnel_pool.daemon.owner import Seeder


@pytest.fixture
def seeder(tmp_path_factory):
    return Seeder(tmp_path_factory.mktemp("seeds"), speed=40_000_000)


@pytest.fixture
def mount(tmp_path):
    """Return a function that mounts at a new folder, with mount's arguments; skip the test unless we are root."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a disk")
    with contextlib.ExitStack() as stack:

        def mount_at(name, *arguments):
            folder = tmp_path / name
            folder.mkdir(exist_ok=True)
            if subprocess.run(["mount", *arguments, folder]).returncode:
                pytest.skip("this machine can't mount it")
            stack.callback(subprocess.run, ["umount", "-l", folder], capture_output=True)
            return folder

        yield mount_at
