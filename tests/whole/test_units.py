"""Tests that the systemd units leave little of the machine to the program."""

import shutil
import subprocess
from pathlib import Path

import pytest

UNITS = sorted((Path(__file__).parent.parent.parent / "contrib").glob("*.service"))
MAX_EXPOSURE = 2.0  # of 10, which a unit without any limits has nearly (systemd-analyze(1))


def needs_systemd_analyze():
    """Skip unless systemd-analyze is version 250 or newer, which can check a file without a running systemd."""
    path = shutil.which("systemd-analyze")
    if path is None or int(subprocess.check_output([path, "--version"], text=True).split()[1]) < 250:
        pytest.skip("apt-get install systemd")


def exposure(unit, maximum):
    arguments = ["systemd-analyze", "security", "--offline=true", f"--threshold={round(maximum * 10)}", str(unit)]
    return subprocess.run(arguments, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_unit_leaves_little_of_the_machine_to_the_program(unit):
    needs_systemd_analyze()
    judged = exposure(unit, MAX_EXPOSURE)
    assert judged.returncode == 0, judged.stdout
    assert exposure(unit, 0.5).returncode != 0  # the network is left to it, at least


def test_there_are_units():
    assert [unit.stem for unit in UNITS] == ["tunnel-pool-daemon", "tunnel-pool-node"]
