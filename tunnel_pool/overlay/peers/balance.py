"""Decides how many exits and how many others a node wants to know. Pure.

After Tribler's GoldenRatioStrategy (src/tribler/core/tunnel/discovery.py).
"""

from collections.abc import Set as AbstractSet
from typing import TypeVar

TARGET_PEERS = 24
SHARE_OF_OTHERS = 9 / 16
WANTED_EXITS = round(TARGET_PEERS * (1 - SHARE_OF_OTHERS))

Peer = TypeVar("Peer")


def wants_more(exits: AbstractSet[Peer], others: AbstractSet[Peer]) -> bool:
    """Return whether to look for peers: there are few, or few exits among them."""
    return len(exits) + len(others) < TARGET_PEERS or len(exits) < WANTED_EXITS


def surplus(exits: AbstractSet[Peer], others: AbstractSet[Peer]) -> AbstractSet[Peer]:
    """Return `exits` or `others`, whichever has too many; an empty set if there is room, or the balance is right."""
    count = len(exits) + len(others)
    if count <= TARGET_PEERS or len(others) == SHARE_OF_OTHERS * count:
        return frozenset()
    return others if len(others) > SHARE_OF_OTHERS * count else exits
