"""Finds the source of the real Tribler 8.4.3, and a Python with its requirements.

Its source is not ours to keep: it is looked for in TRIBLER_SOURCE, else beside the repository.
"""

import glob
import hashlib
import importlib.metadata
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

from tests.worlds.commands import ROOT

NEEDS = (
    "libtorrent==2.0.13",
    "pyipv8==3.2.1",
    "ipv8-rust-tunnels",
    "lz4",
    "pillow",
    "pony",
    "pystray",
    "marshmallow<4",  # py-ipv8's REST views need aiohttp-apispec, which needs this
    "setuptools<80",  # and distutils
)
OWN = {"libtorrent", "pyipv8"}  # requirements of tunnel-pool whose version Tribler decides
INSTALL_TIMEOUT_S = 600


class MissingError(Exception):
    """The real Tribler can't be run here; the message says why."""


def source():
    """Return the folder with Tribler's `src`. Raises MissingError."""
    folder = Path(os.environ.get("TRIBLER_SOURCE") or ROOT.parent / "shared" / "tribler-8.4.3").resolve()
    if not (folder / "src" / "run_tribler.py").exists():
        raise MissingError(f"no Tribler in {folder}: name its folder in TRIBLER_SOURCE")
    return folder


def patched_source(folder):
    """Return a copy of Tribler, made in this folder, that our patch was applied to."""
    shutil.copytree(source() / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
    for path in [folder, *folder.rglob("*")]:
        path.chmod(path.stat().st_mode | stat.S_IWUSR)
    subprocess.run(["git", "apply", "-v", ROOT / "contrib" / "tribler" / "workers.patch"], cwd=folder, check=True)
    return folder


def python():
    """Return a Python that has what Tribler and tunnel-pool need, made where there is none. Raises MissingError."""
    ours = [
        need
        for need in importlib.metadata.requires("tunnel-pool") or ()
        if "extra ==" not in need and not any(need.lower().startswith(name) for name in OWN)
    ]
    needs = sorted({*NEEDS, *ours})
    base = _newer_python()
    name = hashlib.sha256("\n".join([str(base), *needs]).encode()).hexdigest()[:12]
    folder = Path(sys.prefix) / f"tribler-{name}"
    made = folder / "bin" / "python"
    if not (folder / "complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        _run(base, "-m", "venv", folder)
        _run(made, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *needs)
        (folder / "complete").touch()
    return made


def _newer_python():
    pyenv = os.environ.get("PYENV_ROOT", os.path.expanduser("~/.pyenv"))
    named = (shutil.which(f"python3.{minor}") for minor in range(12, 16))
    for candidate in (sys.executable, *named, *sorted(glob.glob(f"{pyenv}/versions/3.1[2-9]*/bin/python"))):
        check = "import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 12))"
        if candidate and subprocess.run([candidate, "-c", check], capture_output=True).returncode == 0:
            return candidate
    raise MissingError("Tribler 8.4 needs Python 3.12 or newer, and there is none on the PATH or in pyenv")


def _run(*arguments):
    try:
        subprocess.run(list(map(str, arguments)), check=True, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S)
    except subprocess.SubprocessError as error:
        said = getattr(error, "stderr", None) or str(error)
        raise MissingError(f"what Tribler needs can't be installed: {said.strip().splitlines()[-1]}") from None
