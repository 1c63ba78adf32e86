"""Errors that reach the person who typed the command."""

from tunnel_pool.system.errors import UserError


class ScenarioError(UserError):
    """A scenario that can't be run; names its file and line."""


class RunError(UserError):
    """A run that came to nothing; the others go on."""
