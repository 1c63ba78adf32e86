"""Errors that reach the person who typed the command."""


class UserError(Exception):
    """Something the user can mend; its text is the one line that is shown."""


class UsageError(UserError):
    """The command as it was typed can't be carried out, whatever the state of the world."""
