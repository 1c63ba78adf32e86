"""What the daemon's clients are told when it does not do what they ask for."""


class RequestError(Exception):
    """Says in one line why what was asked for can't be done."""


def refuse_some(refusals: list[str], asked: int) -> None:
    """Name what was not done of that which was `asked` for, when all else is done. Raises RequestError."""
    if refusals:
        raise RequestError("; ".join(refusals) + ("; all else is set" if len(refusals) < asked else ""))
