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
        """Return the address that holds after a peer of this network has named one.

        The first that is named at all is taken; from then on it takes several networks that agree, and more
        than name the current one.
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
