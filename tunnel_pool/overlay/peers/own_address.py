"""Under which address others see this node, by what most of them say. Pure."""

from collections import Counter, deque

VOTES = 32
AGREEING = 2  # networks that have to say the same before an address that is known is given up

Address = tuple[str, int]
UNKNOWN_PORT = 0


class AddressVotes:
    """Counts the last word of each network; one that says nothing new is not heard twice."""

    def __init__(self) -> None:
        self._votes: dict[str, Address] = {}
        self._order: deque[str] = deque()

    def vote(self, network: str, address: Address, current: Address) -> Address:
        """Count that a peer of this network named an address; return our address after this vote.

        The first address that is named is taken at once. Another one replaces it only if AGREEING networks name
        it, and more networks than name the current one.
        """
        if network not in self._votes:
            self._order.append(network)
        self._votes[network] = address
        while len(self._order) > VOTES:
            del self._votes[self._order.popleft()]
        if current[1] == UNKNOWN_PORT:
            return address
        counts = Counter(self._votes.values())
        winner, votes = counts.most_common(1)[0]
        return winner if votes >= AGREEING and votes > counts[current] else current
