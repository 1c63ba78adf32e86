"""This very program, to be run again: as a child, as the template, as a node of a swarm."""

import os
import sys
from subprocess import _args_from_interpreter_flags  # type: ignore[attr-defined]

import tunnel_pool
from tunnel_pool.pool import switches
from tunnel_pool.pool.command import child_environment, executable_again


def is_frozen() -> bool:
    """Return whether the executable is the program itself, and no Python."""
    return bool(getattr(sys, "frozen", False))


def own_executable() -> list[str]:
    """Return how to run this program, whatever for."""
    return executable_again(sys.argv[0], sys.executable, _args_from_interpreter_flags(), is_frozen())


def own_command() -> list[str]:
    """Return how to start a child."""
    return _command_for("tunnel_pool.child", switches.CHILD)


def template_command() -> list[str]:
    """Return how to start what children are forked of."""
    return _command_for("tunnel_pool.child.template", switches.TEMPLATE)


def feed_reader_command() -> list[str]:
    """Return how to start a process that reads one feed."""
    return _command_for("tunnel_pool.daemon.feeds.reader", switches.READ_FEED)


def _command_for(module: str, switch: str) -> list[str]:
    return [*own_executable(), switches.of_a_host(module) if is_frozen() else switch]


def own_environment() -> dict[str, str]:
    """Return the environment for a process that runs this program again."""
    return child_environment(os.environ, os.path.dirname(os.path.dirname(tunnel_pool.__file__)))
