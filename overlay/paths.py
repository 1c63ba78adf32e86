"""Which node becomes which hop of a circuit. Pure: what is random comes from the caller's generator.

All hops are chosen by the originator, from the candidates that it knows itself: a hop that names the next one
would be the whole circuit. No two hops have a key, an address or a network (overlay/networks.py) in common
while there is a choice. The first hops of a client are its guards (overlay/guards.py).
"""

import random
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from overlay.networks import NetworkOf, network_of


class Node(NamedTuple):
    """A candidate."""

    key: bytes  # public
    host: str
    port: int = 0


class Ranked(NamedTuple):
    """Candidates for a place in a path, the best first."""

    nodes: list[Node]
    diverse: int  # so many of the first have no network in common with the path


def rank(
    candidates: Iterable[Node], path: Sequence[Node], rng: random.Random, network: NetworkOf = network_of
) -> Ranked:
    """Return the candidates that may follow in a path, in random order; those that share a network come last.

    Who has a key of the path is none. Who has an address of it is one only where nobody else is.
    """
    keys, networks, hosts = (
        {node.key for node in path},
        {network(node.host) for node in path},
        {node.host for node in path},
    )
    others = [node for node in candidates if node.key not in keys]
    rng.shuffle(others)
    diverse = [node for node in others if network(node.host) not in networks]
    near = [node for node in others if network(node.host) in networks]
    near.sort(key=lambda node: node.host in hosts)
    return Ranked([*diverse, *near], len(diverse))


def in_order(keys: Sequence[bytes], candidates: Iterable[Node]) -> list[Node]:
    """Return those of the candidates that the keys name, in the order of the keys."""
    by_key = {node.key: node for node in candidates}
    return [by_key[key] for key in keys if key in by_key]


def without_conflicts(nodes: Sequence[Node], path: Sequence[Node], network: NetworkOf = network_of) -> Ranked:
    """Return nodes whose order is given as `rank` does: those that share a network with the path come last."""
    keys, networks = {node.key for node in path}, {network(node.host) for node in path}
    others = [node for node in nodes if node.key not in keys]
    diverse = [node for node in others if network(node.host) not in networks]
    return Ranked([*diverse, *(node for node in others if network(node.host) in networks)], len(diverse))
