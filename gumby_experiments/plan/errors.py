"""Errors that reach the person who typed the command."""

from tunnel_pool.system.errors import UserError


class ScenarioError(UserError):
    """Says why a scenario can't be run, and names its file and line."""


class RunError(UserError):
    """Says why a run has no result; the others go on."""
