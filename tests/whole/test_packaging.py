"""Tests that the pinned versions and hashes agree, and that the source distribution and the wheels are complete."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
ENGINE = ROOT / "tunnel_pool" / "packet_engine"
PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", re.MULTILINE)


def pins(path):
    return {re.sub(r"[._-]+", "-", name).lower(): version for name, version in PIN.findall((ROOT / path).read_text())}


@pytest.mark.parametrize("name", ["build", "run", "dev"])
def test_every_requirement_is_of_the_version_that_was_chosen_and_has_hashes(name):
    text = (ROOT / "requirements" / f"{name}.txt").read_text()
    requirements = pins(f"requirements/{name}.txt")
    for requirement in PIN.split(text)[3::3]:
        assert "--hash=sha256:" in requirement.split("\n\n")[0]
    chosen = pins("constraints.txt")
    assert requirements
    assert {
        name: (version, chosen.get(name)) for name, version in requirements.items() if chosen.get(name) != version
    } == {}


def test_what_builds_is_what_the_project_says():
    said = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    lines = (ROOT / "requirements" / "build.in").read_text().splitlines()
    assert [line for line in lines if not line.startswith("#")] == said


def test_what_runs_is_tested_in_the_same_version():
    run, dev = pins("requirements/run.txt"), pins("requirements/dev.txt")
    assert run.items() <= dev.items()


BUILT = (".git", ".venv*", "target", "*.so", "*.egg-info", "__pycache__", "results", ".*_cache")


@pytest.fixture
def source(tmp_path):
    """Return a copy of the source as it is checked out, without what was built of it."""
    shutil.copytree(ROOT, tmp_path / "source", ignore=shutil.ignore_patterns(*BUILT), symlinks=True)
    return tmp_path / "source"


def build(source, what, **environment):
    """Build the source with setuptools, and return the file; `what` is sdist or wheel."""
    program = f"from setuptools import build_meta; build_meta.build_{what}('dist')"
    environment = {
        **os.environ,
        "CARGO_TARGET_DIR": str(ENGINE / "target"),
        **environment,
    }
    subprocess.run([sys.executable, "-c", program], cwd=source, env=environment, check=True, capture_output=True)
    (file,) = (source / "dist").iterdir()
    return file


def test_the_source_distribution_holds_the_engine(source):
    with tarfile.open(build(source, "sdist")) as archive:
        names = {name.split("/", 1)[-1] for name in archive.getnames()}
    assert {f"tunnel_pool/packet_engine/{name}" for name in ("Cargo.toml", "Cargo.lock", "src/lib.rs")} <= names
    assert {str(path.relative_to(ROOT)) for path in (ENGINE / "src").rglob("*.rs")} <= names


def test_a_wheel_without_the_engine_is_for_any_machine(source):
    without_rust = build(source, "wheel", PATH="/nowhere")
    assert without_rust.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(without_rust) as archive:
        # PyPI has projects named rpc, overlay and socks5.
        assert {name.split("/")[0].split("-")[0] for name in archive.namelist()} == {"tunnel_pool"}
        assert not [name for name in archive.namelist() if "_native" in name and name.endswith(".so")]


def test_an_engine_that_must_be_there_and_can_not_be_is_an_error(source):
    with pytest.raises(subprocess.CalledProcessError) as failed:
        build(source, "wheel", PATH="/nowhere", TUNNEL_POOL_BUILD_ENGINE="native")
    assert b"there is no Rust here" in failed.value.stderr
    assert b"Traceback" not in failed.value.stderr


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cargo") is None, reason="there is no cargo")
def test_a_wheel_with_the_engine_is_for_every_python_of_this_machine(source):
    wheel = build(source, "wheel")
    assert "-cp311-abi3-" in wheel.name
    with zipfile.ZipFile(wheel) as archive:
        assert [name for name in archive.namelist() if name.startswith("tunnel_pool/packet_engine/_native")]
