"""Refusals: the daemon's clients are told them when it does not do what they ask for."""

from enum import Enum


class Kind(Enum):
    """Says what was wrong with a request; each interface has a code of its own for it."""

    WRONG = "what was asked for can't be read or done"
    CONFLICT = "it does not go together with what there is"
    NOT_FOUND = "what it names is not there"
    NO_TORRENT = "a file is no torrent"


class RequestError(Exception):
    """Says in one line why what was asked for can't be done."""

    kind = Kind.WRONG


class ConflictError(RequestError):
    kind = Kind.CONFLICT


class NotFoundError(RequestError):
    kind = Kind.NOT_FOUND


class NoTorrentError(RequestError):
    kind = Kind.NO_TORRENT


def refuse_some(refusals: list[str], asked: int) -> None:
    """Name what was not done of that which was `asked` for, when all else is done. Raises RequestError."""
    if refusals:
        raise RequestError("; ".join(refusals) + ("; all else is set" if len(refusals) < asked else ""))
