"""Knows which of our introduction requests wait for an answer, and who may be asked next. Pure.

Whoever receives an introduction request from a node that it does not know asks that node in turn. Two nodes that
never get to know each other would ask each other without end. So an address is asked at most once in `PAUSE_S`
seconds, whatever makes us ask, and our own addresses are never asked.
"""

from collections import Counter
from enum import Enum, auto

from tunnel_pool.overlay.ground.pacing import Newest, Recent, TokenBucket

Address = tuple[str, int]

IDENTIFIERS = 65536
QUESTION_S = 10.0  # how long after our question an answer still counts as one
PAUSE_S = 2.0  # between two questions to one address
MAX_WAITING = 4096  # questions that wait for an answer
PROVOKED_PER_S, PROVOKED_AT_ONCE = 50.0, 200.0  # questions that strangers make us ask, of all strangers together
MAX_WRONG_ANSWERS = 16  # the most from an address that was asked; after them its answers count for nothing
MAX_GUESSED = 1000
OWN_ADDRESS_S = 600.0  # how long an address counts as our own after a question came back to us from there
MAX_OWN_ADDRESSES = 16


class Answer(Enum):
    """Says how an introduction response relates to the questions that were sent."""

    ASKED = auto()
    UNASKED = auto()
    GUESSED = auto()  # one wrong answer too many: from now on, none from this address counts


class Questions:
    """Introduction requests that were sent, by address and identifier."""

    def __init__(self) -> None:
        self._waiting: Newest[Address, dict[int, float]] = Newest(MAX_WAITING)  # until when, by identifier
        self._asked = Recent[Address](PAUSE_S)
        self._answered_early = Recent[Address](QUESTION_S)
        self._guessed: Counter[Address] = Counter()  # wrong answers, by the address that they seem to be from
        self._provoked = TokenBucket()
        self._own: Newest[Address, float] = Newest(MAX_OWN_ADDRESSES)  # until when each counts as our own

    def may_ask(self, address: Address, now_s: float) -> bool:
        """Return whether the address may be asked now: not ourselves, and not asked a moment ago."""
        return not self._asked.has(address, now_s) and not self.is_own(address, now_s)

    def may_be_made_to_ask(self, address: Address, now_s: float) -> bool:
        """Return whether a stranger's packet may have us ask this address now."""
        return self.may_ask(address, now_s) and self._provoked.spend(PROVOKED_PER_S, PROVOKED_AT_ONCE, now_s)

    def ask(self, address: Address, identifier: int, now_s: float) -> None:
        """Note a question that is sent."""
        self._asked.add(address, now_s)
        waiting = {each: until_s for each, until_s in self._waiting.get(address, {}).items() if until_s > now_s}
        self._waiting[address] = {**waiting, identifier: now_s + QUESTION_S}

    def is_asked(self, address: Address, now_s: float) -> bool:
        """Return whether a question to this address waits for its answer."""
        return any(until_s > now_s for until_s in self._waiting.get(address, {}).values())

    def may_answer_early(self, address: Address, now_s: float) -> bool:
        """Return whether to answer a node that has not answered our question yet; once for each question.

        Two nodes that have asked each other would wait for each other.
        """
        if not self.is_asked(address, now_s) or self._answered_early.has(address, now_s):
            return False
        self._answered_early.add(address, now_s)
        return True

    def came_back(self, address: Address, identifier: int, now_s: float) -> None:
        """Take an address for our own if a question that we sent there comes from there."""
        if self._waiting.get(address, {}).get(identifier, 0.0) > now_s:
            self._own[address] = now_s + OWN_ADDRESS_S

    def is_own(self, address: Address, now_s: float) -> bool:
        return self._own.get(address, 0.0) > now_s

    def answered(self, address: Address, identifier: int, now_s: float) -> Answer:
        """Judge an answer from this address; each question has one answer."""
        waiting = self._waiting.get(address, {})
        if waiting.pop(identifier, 0.0) > now_s:
            return Answer.ASKED
        self._guessed[address] += 1
        is_too_many = self._guessed[address] > MAX_WRONG_ANSWERS
        if is_too_many:
            # Somebody who does not hear our questions answers them in that address' name.
            self._waiting.pop(address, None)
        if is_too_many or len(self._guessed) > MAX_GUESSED:
            self._guessed.clear()
        return Answer.GUESSED if is_too_many else Answer.UNASKED
