"""What is installed is what was chosen, to the byte."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
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
