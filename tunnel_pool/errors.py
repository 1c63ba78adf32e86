"""Errors that reach the person who typed the command."""


class UserError(Exception):
    """Something the user can mend; its text is the one line that is shown."""
