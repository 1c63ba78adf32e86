"""Records where figures come from: what ran, on what, when, and how it was asked for."""

import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec
import psutil

from tunnel_pool import __version__
from tunnel_pool.gumby_experiments.plan.config import FOLDER, Experiment
from tunnel_pool.packet_engine import is_built

SOURCE = Path(__file__).resolve().parent.parent.parent
PACKAGES = ("pyipv8", "libtorrent", "Twisted", "protobuf", "cryptography", "psutil", "pandas", "scipy", "matplotlib")


def provenance(experiment: Experiment, name: str, command: Sequence[str], links: str) -> dict[str, Any]:
    """`links`: how links between nodes are made, if they are."""
    return {
        "experiment": name,
        "command": " ".join(command),
        "began": now(),
        "seed": experiment.seed,
        "configuration": msgspec.to_builtins(experiment),
        "scenario": (FOLDER / experiment.scenario).read_text(),
        "links": links,
        "program": {"version": __version__, **revision(SOURCE), "native_engine": is_built()},
        "versions": {"python": platform.python_version(), **{package: _version(package) for package in PACKAGES}},
        "machine": machine(),
    }


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def revision(folder: Path) -> dict[str, Any]:
    """Return the commit, and whether files differ from it; nothing where there is no repository."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", "-C", folder, *arguments], capture_output=True, text=True, check=True).stdout  # noqa: S607

    try:
        return {"commit": git("rev-parse", "HEAD").strip(), "changed": bool(git("status", "--porcelain").strip())}
    except (OSError, subprocess.CalledProcessError):
        return {}


def machine() -> dict[str, Any]:
    return {
        "system": f"{platform.system()} {platform.release()}",
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "load_before": round(psutil.getloadavg()[0], 2),
        "largest_receive_buffer_bytes": _number(Path("/proc/sys/net/core/rmem_max")),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), sys.platform)


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
