"""Decides which node becomes which hop of a circuit. Pure: what is random comes from the caller's generator.

All hops are chosen by the originator, from the candidates that it knows itself: a hop that names the next one
would be the whole circuit. No two hops have a key, an address or a network (overlay/ground/networks.py) in common
while there is a choice. The first hops of a client are its guards (overlay/paths/guards.py).
"""

import random
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from tunnel_pool.overlay.ground.networks import NetworksOf, networks_of


class Node(NamedTuple):
    """A candidate."""

    key: bytes  # the public key
    host: str
    port: int = 0


class Ranked(NamedTuple):
    """Orders candidates for a place in a path, the best first."""

    nodes: list[Node]
    diverse: int  # how many of the first have no network in common with the path


def rank(
    candidates: Iterable[Node],
    path: Sequence[Node],
    rng: random.Random,
    networks_of: NetworksOf = networks_of,
    weight: Callable[[Node], float] | None = None,
) -> Ranked:
    """Return the candidates that may follow in a path, in random order; those that share a network come last.

    Nodes whose key is in the path are left out; nodes whose address is in the path come last of all. One of twice the
    `weight` (above 0) comes before another twice as often.
    """
    others = list(candidates)
    if weight is None:
        rng.shuffle(others)
    else:  # Efraimidis and Spirakis, Weighted random sampling with a reservoir (2006)
        others.sort(key=lambda node: rng.random() ** (1 / weight(node)), reverse=True)
    ranked = without_conflicts(others, path, networks_of)
    hosts = {node.host for node in path}
    near = sorted(ranked.nodes[ranked.diverse :], key=lambda node: node.host in hosts)
    return Ranked([*ranked.nodes[: ranked.diverse], *near], ranked.diverse)


def in_order(keys: Sequence[bytes], candidates: Iterable[Node]) -> list[Node]:
    """Return those of the candidates that the keys name, in the order of the keys."""
    by_key = {node.key: node for node in candidates}
    return [by_key[key] for key in keys if key in by_key]


def without_conflicts(nodes: Sequence[Node], path: Sequence[Node], networks_of: NetworksOf = networks_of) -> Ranked:
    """Return nodes whose order is given as `rank` does: those that share a network with the path come last."""
    keys = {node.key for node in path}
    taken = frozenset[str]().union(*(networks_of(node.host) for node in path))
    others = [node for node in nodes if node.key not in keys]
    diverse = [node for node in others if taken.isdisjoint(networks_of(node.host))]
    near = [node for node in others if not taken.isdisjoint(networks_of(node.host))]
    return Ranked([*diverse, *near], len(diverse))
