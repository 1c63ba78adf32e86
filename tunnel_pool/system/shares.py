"""Shares out a server's connections. Pure.

The owner always gets in: others have a share of the connections, and each of them a smaller one. Where somebody has
all of a share, the connection that has been idle for longest makes room.
"""

from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import NamedTuple

MAX_CONNECTIONS = 512
MAX_OF_OTHERS = 384
MAX_OF_ONE = 128


@dataclass(frozen=True, slots=True)
class Visitor:
    """Names who has opened a connection: a user of this machine, or an address."""

    name: str
    is_owner: bool = False


@dataclass(slots=True)
class _Connection:
    visitor: Visitor
    is_busy: bool = False  # a request is being answered


class Decision(NamedTuple):
    """Says whether a connection is taken, and which other one ends for it."""

    is_taken: bool
    ends: Hashable | None = None


ROOM = Decision(is_taken=True)


class Shares:
    """Holds open connections by any key, in the order in which they were opened or last became idle."""

    def __init__(
        self, most: int = MAX_CONNECTIONS, most_of_others: int = MAX_OF_OTHERS, most_of_one: int = MAX_OF_ONE
    ) -> None:
        self._most, self._most_of_others, self._most_of_one = most, most_of_others, most_of_one
        self._open: dict[Hashable, _Connection] = {}
        self._of: Counter[Visitor] = Counter()
        self._others = 0

    def __len__(self) -> int:
        return len(self._open)

    def decide(self, visitor: Visitor) -> Decision:
        """Return whether a connection of this visitor is taken."""
        if not visitor.is_owner and self._of[visitor] >= self._most_of_one:
            return self._instead_of(lambda each: not each.is_busy and each.visitor == visitor)
        if not visitor.is_owner and self._others >= self._most_of_others:
            return self._instead_of(lambda each: not each.is_busy and not each.visitor.is_owner)
        if len(self._open) < self._most:
            return ROOM
        decision = self._instead_of(lambda each: not each.is_busy and not each.visitor.is_owner)
        if visitor.is_owner and not decision.is_taken:
            decision = self._instead_of(lambda each: not (each.is_busy and each.visitor.is_owner))
        return decision

    def _instead_of(self, may_end: Callable[[_Connection], bool]) -> Decision:
        key = next((key for key, connection in self._open.items() if may_end(connection)), None)
        return Decision(key is not None, key)

    def opened(self, key: Hashable, visitor: Visitor) -> None:
        self._open[key] = _Connection(visitor)
        self._of[visitor] += 1
        self._others += not visitor.is_owner

    def begins(self, key: Hashable) -> None:
        """Note that a request of this connection is being answered."""
        if (connection := self._open.get(key)) is not None:
            connection.is_busy = True

    def ends(self, key: Hashable) -> None:
        """Note that a request of this connection was answered."""
        if (connection := self._open.pop(key, None)) is not None:
            connection.is_busy = False
            self._open[key] = connection

    def closed(self, key: Hashable) -> None:
        """Forget a connection, if it is known."""
        if (connection := self._open.pop(key, None)) is not None:
            self._others -= not connection.visitor.is_owner
            self._of[connection.visitor] -= 1
            if not self._of[connection.visitor]:
                del self._of[connection.visitor]
