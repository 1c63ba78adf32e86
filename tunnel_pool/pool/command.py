"""Runs this same executable again, with descriptors of its own."""

import os
from collections.abc import Mapping, Sequence
from enum import Enum

from tunnel_pool.rpc.descriptors import (
    CONTROL_IN,
    CONTROL_OUT,
    DATA_IN,
    DATA_OUT,
    EXIT_IN,
    EXIT_OUT,
    SOCKETS,
    STDERR,
    STDIN,
    STDOUT,
)


class StartMethod(Enum):
    """Lists the choices of `--start-method`."""

    SPAWN = "spawn"  # a new process of the same executable
    FORKSERVER = "forkserver"  # a fork of a process that has everything imported; Linux only


# asyncio asks glibc for 256 KiB at a time, which it would map and unmap each
# time; relays and exits on the Python path are 2 to 3 times as fast with these.
MALLOC_SETTINGS = {"MALLOC_MMAP_THRESHOLD_": "33554432", "MALLOC_TRIM_THRESHOLD_": "268435456"}


def executable_again(argv0: str, python: str, python_flags: Sequence[str], frozen: bool) -> list[str]:
    """Return the command that runs this program: frozen, as console script, or as `python -m`.

    A program that embeds the pool is neither; its children run `python -m tunnel_pool`.
    """
    if frozen:
        return [python]
    name = os.path.basename(argv0)
    if name == "tunnel-pool" and os.path.isfile(argv0):
        return [python, *python_flags, os.path.abspath(argv0)]
    return [python, *python_flags, "-m", "tunnel_pool"]


# Variables that Python, its libraries and the system's resolver read; others may hold secrets and are not passed on.
_FOR_CHILDREN = frozenset(
    ("PATH", "HOME", "LANG", "LANGUAGE", "TZ", "TMPDIR", "TERM", "LD_LIBRARY_PATH", "LOCALDOMAIN", "RES_OPTIONS")
)
_FOR_CHILDREN_BY_PREFIX = ("LC_", "PYTHON", "MALLOC_", "RUST_", "COVERAGE_", "_PYI_", "_MEI")


def only_for_children(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the part of the environment that is passed on to a child."""
    return {
        name: value
        for name, value in environment.items()
        if name in _FOR_CHILDREN or name.startswith(_FOR_CHILDREN_BY_PREFIX)
    }


def child_environment(environment: Mapping[str, str], package_parent: str) -> dict[str, str]:
    """Return the parent's environment, able to import what the parent imported from `package_parent`.

    Not from the current folder, where downloads may land: PYTHONSAFEPATH.
    """
    paths = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    if package_parent not in paths:
        paths.append(package_parent)
    safe = {"PYTHONPATH": os.pathsep.join(paths), "PYTHONSAFEPATH": "1"}
    return {**MALLOC_SETTINGS, **environment, **safe}


def descriptor_map(null: int, data_in: int, data_out: int, sockets: int) -> dict[int, int | str]:
    """Return Twisted's childFDs: the child gets these and nothing else.

    "w" and "r" are pipes that Twisted makes and the parent writes and reads;
    numbers are descriptors of the parent.
    """
    return {
        STDIN: null,
        STDOUT: "r",
        STDERR: "r",
        CONTROL_IN: "w",
        CONTROL_OUT: "r",
        DATA_IN: data_in,
        DATA_OUT: data_out,
        EXIT_IN: "w",
        EXIT_OUT: "r",
        SOCKETS: sockets,
    }
