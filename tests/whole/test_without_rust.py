"""Tests an install without cargo: it succeeds, says so, and everything runs on the Python engine."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.worlds.commands import ROOT, command

BUILD_TIMEOUT_S = 110


def path_without_cargo():
    folders = os.environ["PATH"].split(os.pathsep)
    return os.pathsep.join(folder for folder in folders if not (Path(folder) / "cargo").exists())


@pytest.fixture
def fresh_copy(tmp_path):
    """Return what a clone would have, and a virtual environment in which all but ourselves is installed."""
    files = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    )
    if files.returncode:
        pytest.skip("not a git checkout")
    copy = tmp_path / "copy"
    for name in files.stdout.splitlines():
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)
    venv = copy / ".venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    (packages,) = venv.glob("lib/python*/site-packages")
    (packages / "installed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return copy


@pytest.mark.slow
def test_make_demo_without_cargo(fresh_copy):
    environment = {
        **os.environ,
        "PATH": path_without_cargo(),
        "PIP_NO_INDEX": "1",
        "PIP_NO_BUILD_ISOLATION": "0",  # pip reads it the other way round
        "PYTHONPATH": "",
    }
    made = subprocess.run(
        ["make", "demo", "DEMO_ARGS=--size=5"],
        cwd=fresh_copy,
        env=environment,
        capture_output=True,
        text=True,
        timeout=BUILD_TIMEOUT_S,
    )
    assert made.returncode == 0, made.stderr
    assert "packet engine: python; for the native one" in made.stdout
    assert "on the python engine" in made.stdout
    assert "file is the same byte for byte: yes" in made.stdout
    assert not list(fresh_copy.glob("tunnel_pool/packet_engine/_native*.so"))


async def test_the_native_engine_asked_for_and_not_there(tmp_path):
    """One line says what to do."""
    (tmp_path / "run.py").write_text(
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "from tunnel_pool import packet_engine; packet_engine.is_built = lambda: False\n"
        "from tunnel_pool.cli.main import run\nsys.exit(run(sys.argv[1:]))\n"
    )
    program = [sys.executable, str(tmp_path / "run.py")]
    arguments = ["--engine=native", f"--state={tmp_path / 'state'}", "--bootstrap=none", "--listen=127.0.0.1:0"]
    async with command("node", *arguments, "--json", program=program) as node:
        code, report, lines = await node.ended()
    assert code == 1
    assert "not built" in report["error"]
    assert "--engine python" in lines[-1]
