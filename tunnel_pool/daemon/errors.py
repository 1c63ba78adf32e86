"""What the daemon's clients are told when it does not do what they ask for."""


class RequestError(Exception):
    """What was asked for can't be; says why in one line."""
