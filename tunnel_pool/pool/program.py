"""This very program, to be run again: as a child, as the template, as a node of a swarm."""

import os
import sys
from subprocess import _args_from_interpreter_flags  # type: ignore[attr-defined]

import tunnel_pool
from tunnel_pool import CHILD_SWITCH, TEMPLATE_SWITCH
from tunnel_pool.pool.command import child_environment, executable_again


def own_executable() -> list[str]:
    """How to run it, whatever for."""
    frozen = bool(getattr(sys, "frozen", False))
    return executable_again(sys.argv[0], sys.executable, _args_from_interpreter_flags(), frozen)


def own_command() -> list[str]:
    """How to start a child."""
    return [*own_executable(), CHILD_SWITCH]


def template_command() -> list[str]:
    """How to start what children are forked of."""
    return [*own_executable(), TEMPLATE_SWITCH]


def own_environment() -> dict[str, str]:
    """What whoever runs it is to find around it."""
    return child_environment(os.environ, os.path.dirname(os.path.dirname(tunnel_pool.__file__)))
