"""Errors that reach the person who typed the command."""


class UserError(Exception):
    """Says in one line what the user can mend."""

    exit_code = 1


class UsageError(UserError):
    """Says that the command as it was typed can't be carried out, whatever the state of the world."""

    exit_code = 2
