"""Errors that reach the person who typed the command, and where those come from that should not."""

import traceback


class UserError(Exception):
    """Says in one line what the user can mend."""

    exit_code = 1


class UsageError(UserError):
    """Says that the command as it was typed can't be carried out, whatever the state of the world."""

    exit_code = 2


def kind_of(error: BaseException) -> str:
    """Return an unexpected error's type and where it was raised: what it says may name a torrent or an address."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{type(error).__name__} ({frames[-1].name}:{frames[-1].lineno})" if frames else type(error).__name__
