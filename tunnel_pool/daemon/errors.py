"""What the daemon's clients are told when it does not do what they ask for."""


class RequestError(Exception):
    """Says in one line why what was asked for can't be done."""
