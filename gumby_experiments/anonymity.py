"""Simulates clients that use a partly hostile network for weeks, and records which nodes they meet.

The choice of hops is the program's own code (overlay/paths); clock, network and hostile nodes are simulated. Beside
it stand two models: how circuits were extended before (the first hop offered all others, and an honest one its oldest
four), and Tor's rules as far as they concern the choice (one guard for 120 days, every node known to everybody, no
two hops in a /16; nodes here are of equal bandwidth).
"""

import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from tunnel_pool.overlay.ground.path import Node, in_order, rank, without_conflicts
from tunnel_pool.overlay.paths.guards import DAY_S, SECOND_LAYER, GuardLayer, GuardOrder, Guards, LayerSettings
from tunnel_pool.overlay.peers.introductions import has_room

KNOWN = 24  # candidates that a client keeps (overlay/peers/balance.py)
KNOWN_TO_TOR = 300  # relays of one day: to know all would take too long, and change nothing
EXIT_SHARE = 1 / 3
THERE = 0.95  # the share of days on which a node is there
HOSTILE_NETWORK = "66.6"


class Rules(Enum):
    BEFORE = "before"
    OURS = "ours"
    TOR = "tor"


class Placement(Enum):
    SPREAD = "spread"
    ONE_NETWORK = "one_network"


@dataclass(frozen=True, slots=True)
class World:
    nodes: Sequence[Node]
    exits: frozenset[bytes]
    hostile: frozenset[bytes]
    offers: dict[bytes, Node]  # before: the exit that an honest node names first


class Use(NamedTuple):
    """Records what happened to one client."""

    both_ends: bool  # some circuit had a hostile first and a hostile last hop
    first_hops: int  # how many first hops it met
    exit_bits: float  # entropy of the exits of its circuits


def make_world(size: int, hostile_share: float, placement: Placement, rng: random.Random) -> World:
    hostile_count = round(size * hostile_share)
    nodes = []
    for number in range(size):
        in_one = number < hostile_count and placement is Placement.ONE_NETWORK
        network = HOSTILE_NETWORK if in_one else f"{rng.randint(1, 9)}.{rng.randint(0, 255)}"
        nodes.append(Node(number.to_bytes(4, "big"), f"{network}.{number // 250}.{number % 250}"))
    hostile = frozenset(node.key for node in nodes[:hostile_count])
    exits = frozenset(node.key for node in nodes if rng.random() < EXIT_SHARE)
    exit_nodes = [node for node in nodes if node.key in exits] or nodes
    honest_offers = {node.key: rng.choice(exit_nodes) for node in nodes}
    return World(nodes, exits, hostile, honest_offers)


def known_to_a_client(world: World, guards: Iterable[bytes], rng: random.Random, bounded: bool) -> list[Node]:
    """Return the candidates of a day: guards that are there, and others as they are met, `bounded` by network."""
    there = [node for node in world.nodes if rng.random() < THERE]
    known = in_order(list(guards), there)
    rng.shuffle(there)
    for node in there:
        if len(known) >= KNOWN:
            break
        if node not in known and (not bounded or has_room(node, known)):
            known.append(node)
    return known


def use(rules: Rules, world: World, hops: int, *, days: int, circuits_a_day: int, rng: random.Random) -> Use:
    """Return what becomes of one client that builds circuits day after day."""
    firsts, exits = Counter[bytes](), Counter[bytes]()
    both_ends = False
    for first, last in _USES[rules](world, hops, days, circuits_a_day, rng):
        firsts[first] += 1
        exits[last] += 1
        both_ends |= {first, last} <= world.hostile
    return Use(both_ends, len(firsts), entropy_bits(exits.values()))


Ends = Iterable[tuple[bytes, bytes]]


def _before(world: World, hops: int, days: int, circuits_a_day: int, rng: random.Random) -> Ends:
    for _ in range(days):
        known = known_to_a_client(world, (), rng, bounded=False)
        for _ in range(circuits_a_day):
            first = rng.choice(known)
            if first.key in world.hostile:
                yield first.key, first.key  # a hostile node offers only itself
                continue
            second = first
            while hops > 2 and second == first:
                second = rng.choice(world.nodes)
            if second.key in world.hostile:
                yield first.key, second.key
            else:
                yield first.key, world.offers[second.key].key


def _ours(world: World, hops: int, days: int, circuits_a_day: int, rng: random.Random) -> Ends:
    guards = Guards(rng)
    for day in range(days):
        names = [guard.key for guard in (*guards.first.sampled, *guards.second.sampled)]
        known = known_to_a_client(world, names, rng, bounded=True)
        order = guards.choose(known, day * DAY_S)
        usable = in_order(order.first[: order.primary] or order.first, known)
        for number in range(circuits_a_day):
            if usable and (path := _path(world, known, usable[number % len(usable)], hops, rng)) is not None:
                yield path


def _tor(world: World, hops: int, days: int, circuits_a_day: int, rng: random.Random) -> Ends:
    layer = GuardLayer(LayerSettings(1, 120, 120))
    for day in range(days):
        there = [node for node in world.nodes if rng.random() < THERE]
        there = rng.sample(there, min(len(there), KNOWN_TO_TOR))
        there += in_order([guard.key for guard in layer.sampled], set(world.nodes) - set(there))
        keys, _ = layer.choose(there, day * DAY_S, rng)
        guard = in_order(keys, there)[0]
        for _ in range(circuits_a_day):
            if (path := _path(world, there, guard, hops, rng)) is not None:
                yield path


def _path(
    world: World, known: Sequence[Node], first: Node, hops: int, rng: random.Random
) -> tuple[bytes, bytes] | None:
    path = [first]
    while len(path) < hops:
        is_last = len(path) == hops - 1
        ranked = rank((node for node in known if not is_last or node.key in world.exits), path, rng)
        if not ranked.nodes:
            return None
        path.append(ranked.nodes[0])
    return path[0].key, path[-1].key


_USES: dict[Rules, Callable[[World, int, int, int, random.Random], Ends]] = {
    Rules.BEFORE: _before,
    Rules.OURS: _ours,
    Rules.TOR: _tor,
}


def entropy_bits(counts: Iterable[int]) -> float:
    """Return the entropy, in bits, of a choice whose outcomes came up `counts` times."""
    counts = [count for count in counts if count]
    total = sum(counts)
    return -sum(count / total * math.log2(count / total) for count in counts) if total else 0.0


class Requests(NamedTuple):
    """Records what a relay reached that asks a hidden seeder for rendezvous, so that it builds circuits."""

    until_found: int | None  # requests until a given relay was next to the first hop; None: never
    is_guard: bool  # whether that relay is a guard of the seeder, of either layer


def ask_for_rendezvous(rules: Rules, world: World, hops: int, requests: int, rng: random.Random) -> Requests:
    """Return when a hostile relay, one of the seeder's candidates, first sees the seeder's first hop."""
    known = known_to_a_client(world, (), rng, bounded=rules is Rules.OURS)
    relay = rng.choice(known)
    order = Guards(rng).choose(known, 0.0) if rules is Rules.OURS else GuardOrder((), ())
    is_guard = relay.key in order.first or relay.key in order.second
    for number in range(1, requests + 1):
        second = _second_hop(order, known, hops, rng) if rules is Rules.OURS else rng.sample(known, 2)[1]
        if second.key == relay.key:
            return Requests(number, is_guard)
    return Requests(None, is_guard)


def _second_hop(order: GuardOrder, known: Sequence[Node], hops: int, rng: random.Random) -> Node:
    """Return who is next to the first hop: at 2 hops the rendezvous point, at 3 the hop between."""
    first = in_order(order.first[: order.primary], known)
    second = in_order(order.second, known)[: SECOND_LAYER.count]
    rng.shuffle(second)
    return without_conflicts(second, [rng.choice(first)]).nodes[0]
