"""Errors that reach the person who typed the command."""


class UserError(Exception):
    """Something the user can mend; its text is the one line that is shown."""

    exit_code = 1


class UsageError(UserError):
    """The command as it was typed can't be carried out, whatever the state of the world."""

    exit_code = 2
