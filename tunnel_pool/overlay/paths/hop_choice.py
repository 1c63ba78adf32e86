"""Chooses the peers that become a circuit's hops; path.py says who may follow whom."""

import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from ipv8.messaging.anonymization.community import TunnelCommunity
from ipv8.messaging.anonymization.tunnel import (
    CIRCUIT_TYPE_DATA,
    CIRCUIT_TYPE_IP_SEEDER,
    CIRCUIT_TYPE_RP_DOWNLOADER,
    CIRCUIT_TYPE_RP_SEEDER,
    PEER_FLAG_EXIT_BT,
    PEER_FLAG_EXIT_IPV8,
    PEER_FLAG_RELAY,
    Circuit,
    Hop,
)
from ipv8.peer import Peer

from tunnel_pool.overlay.ground.lanes import Lane, lane_of
from tunnel_pool.overlay.ground.path import Node, Ranked, in_order, rank, without_conflicts
from tunnel_pool.overlay.ground.streams import PEER_FLAG_EXIT_IPV6, PEER_FLAG_EXIT_STREAMS, has_flag
from tunnel_pool.overlay.paths.exit_scores import ExitScores
from tunnel_pool.overlay.paths.guards import SECOND_LAYER
from tunnel_pool.overlay.requests.http import CIRCUIT_TYPE_HTTP
from tunnel_pool.rpc.drop_reasons import DropReason

OUT = frozenset((CIRCUIT_TYPE_DATA, CIRCUIT_TYPE_HTTP))  # circuits that end at an exit
# What not every exit carries. While none of a lane's circuits in this process leads to an exit that sets a flag, those
# that do are chosen so much more often, and the third circuit is sure to: of a few exits that say so, none gets all.
SPECIAL = (PEER_FLAG_EXIT_STREAMS, PEER_FLAG_EXIT_IPV6)
SPECIAL_WEIGHT, SURE_FROM = 3.0, 2
UNLIKELY = 1e-6  # where one of the others is sure to come first, and this one is left for when it fails
Candidates = Callable[..., list[Peer]]  # returns the peers with the flags that are given
# Circuits that others can make us build, by asking for them.
ASKED_FOR = frozenset((CIRCUIT_TYPE_IP_SEEDER, CIRCUIT_TYPE_RP_SEEDER, CIRCUIT_TYPE_RP_DOWNLOADER))


class HopChoice:
    """Chooses among a tunnel community's candidates; its `guard_order` says which are guards."""

    def __init__(self, community: TunnelCommunity, requires_diversity: bool) -> None:
        """`requires_diversity`: hops must differ in network; without it, they do where they can."""
        self._community = community
        self.requires_diversity = requires_diversity
        self.scores = ExitScores()
        self._rng = random.SystemRandom()

    def exits_that_answer(self) -> list[Peer]:
        """Return the exits that are known and have not been silent of late."""
        exits = self._community.get_candidates(PEER_FLAG_EXIT_BT)
        return [peer for peer in exits if not self._community.is_silent(peer)]

    def only(self, lane: Lane) -> Peer | None:
        """Return the exit for a circuit of one hop that is for clients of this lane."""
        weights = self._weights(self._community.get_candidates(PEER_FLAG_EXIT_BT), lane)
        return self._rng.choices(list(weights), list(weights.values()))[0] if weights else None

    def _weights(self, exits: Sequence[Peer], lane: Lane, but: Circuit | None = None) -> dict[Peer, float]:
        """Return how often each of these exits is to end one more circuit of a lane, compared with the others.

        `but` is that circuit. By how the exits have served, and by what the lane's other circuits here lack.
        """
        now_s = time.time()
        weights = {peer: self.scores.weight(peer.mid, now_s) for peer in exits}
        others = [
            circuit
            for circuit in self._community.circuits.values()
            if circuit is not but and circuit.ctype == CIRCUIT_TYPE_DATA and lane_of(circuit) == lane
        ]
        lacking = (flag for flag in SPECIAL if not any(has_flag(circuit, flag) for circuit in others))
        if (flag := next(lacking, None)) is None:
            return weights
        able = {peer for peer in exits if flag in self._community.candidates.get(peer, ())}
        if able and len(others) >= SURE_FROM:
            return {peer: weight if peer in able else weight * UNLIKELY for peer, weight in weights.items()}
        return {peer: weight * (SPECIAL_WEIGHT if peer in able else 1.0) for peer, weight in weights.items()}

    def last(self, peers: Sequence[Peer]) -> Peer | None:
        """Return one to be the last hop; not a guard, which would then be no first hop, while there are others."""
        order = self._community.guard_order()
        primary = set(order.first) if order is not None else set()
        others = [peer for peer in peers if peer.public_key.key_to_bin() not in primary]
        return self._rng.choice(others or peers) if peers else None

    def introduction_point(self) -> Peer | None:
        """Return a node that strangers can send to: exits are taken to be such (py-ipv8's select_exit).

        Those that refuse to introduce us come last.
        """
        now_s, refuses = time.monotonic(), self._community.refusing.has
        known = [self._community.get_candidates(f) for f in (PEER_FLAG_EXIT_BT, PEER_FLAG_EXIT_IPV8, PEER_FLAG_RELAY)]
        willing = [[peer for peer in peers if not refuses(peer.public_key.key_to_bin(), now_s)] for peers in known]
        return self.last(next((peers for peers in (*willing, *known) if peers), []))

    def meeting_point(self, hops: int) -> Peer | None:
        """Return a rendezvous point for a circuit of `hops` hops; a downloader may ask for many of these.

        A rendezvous point knows the hop before it. With one hop it is a guard, with two hops a guard of the second
        layer, so that a stranger's node never gets into these places, however often the stranger asks.
        """
        relays, order = self._community.get_candidates(PEER_FLAG_RELAY), self._community.guard_order()
        if order is not None and hops <= 2:
            keys = order.first if hops == 1 else order.second
            chosen = in_order(keys, map(node_of, relays))
            count = max(1, order.primary) if hops == 1 else SECOND_LAYER.count
            if chosen:
                return self._peer_of(self._rng.choice(chosen[:count]), relays)
        return self.last(relays)

    def first(self, goal_hops: int, ctype: str, required_exit: Peer | None) -> list[Peer]:
        """Return the relays that a circuit of several hops may begin with, the best first.

        Those that were silent of late are taken only where no other may be: of a handful of nodes, each is needed.
        """
        heard, every = self._community.get_candidates, self._community.also_silent
        return self._first(heard(PEER_FLAG_RELAY), goal_hops, ctype, required_exit) or self._first(
            every(PEER_FLAG_RELAY), goal_hops, ctype, required_exit
        )

    def _first(self, relays: list[Peer], goal_hops: int, ctype: str, required_exit: Peer | None) -> list[Peer]:
        path = [node_of(required_exit)] if required_exit is not None else []
        if required_exit is None and ctype in OUT:
            exits = [node_of(peer) for peer in self.exits_that_answer()]
            # One exit has to be left for the end, and in another network where that can be.
            left = {peer: without_conflicts(exits, [node_of(peer)]) for peer in relays}
            fit = [peer for peer in relays if left[peer].diverse] or [p for p in relays if left[p].nodes]
            relays = fit if exits else self._that_may_tell(relays, is_before_exit=goal_hops == 2)
        order = self._community.guard_order()
        nodes = [node_of(peer) for peer in relays]
        used = Counter(
            circuit.hop.peer.public_key.key_to_bin() for circuit in self._community.circuits.values() if circuit.hop
        )
        if order is not None:
            nodes = in_order(order.first, nodes)
            ranked = without_conflicts(nodes, path)
        else:
            ranked = rank(nodes, path, self._rng)
            ranked.nodes[: ranked.diverse] = sorted(ranked.nodes[: ranked.diverse], key=lambda node: used[node.key])
        chosen = self._diverse(ranked)
        if order is not None:
            primary = set(order.first[: order.primary])
            # The primary ones share the circuits.
            chosen.sort(key=lambda node: (node.key not in primary, used[node.key] if node.key in primary else 0))
        return [self._peer_of(node, relays) for node in chosen]

    def shuffle(self, keys: list[bytes]) -> None:
        self._rng.shuffle(keys)

    def next_of(self, circuit: Circuit) -> list[Node]:
        """Return the nodes that the circuit may be extended to, the best first; silent ones as in `first`."""
        heard, every = self._community.get_candidates, self._community.also_silent
        return self._next_of(circuit, heard) or self._next_of(circuit, every)

    def _next_of(self, circuit: Circuit, candidates: Candidates) -> list[Node]:
        path = [_node_of_hop(hop) for hop in circuit.hops]
        is_last = circuit.goal_hops - 1 == len(circuit.hops)
        if circuit.required_exit is not None:
            if is_last:
                return [node_of(circuit.required_exit)]
            path.append(node_of(circuit.required_exit))
        if is_last and circuit.ctype == CIRCUIT_TYPE_HTTP:
            return []  # where exits that make requests are known, one is required
        if is_last:
            by_peer = self._weights(candidates(PEER_FLAG_EXIT_BT), lane_of(circuit), circuit)
            weights = {node_of(peer): weight for peer, weight in by_peer.items()}
            return self._diverse(rank(weights, path, self._rng, weight=weights.__getitem__))
        relays = candidates(PEER_FLAG_RELAY)
        order = self._community.guard_order()
        if order is not None and circuit.ctype in ASKED_FOR and len(circuit.hops) == 1:
            second = in_order(order.second, map(node_of, relays))
            used, reserve = second[: SECOND_LAYER.count], second[SECOND_LAYER.count :]
            self._rng.shuffle(used)
            if chosen := self._diverse(without_conflicts([*used, *reserve], path)):
                return chosen
            # In a network of a handful of nodes, the one that is left may be the circuit's end.
        exits = set(candidates(PEER_FLAG_EXIT_BT))
        if circuit.ctype in OUT and not self.exits_that_answer():
            relays = self._that_may_tell(relays, is_before_exit=circuit.goal_hops - 2 == len(circuit.hops))
        # Exits are rare: they are for the end, while others are there.
        found = rank((node_of(peer) for peer in relays if peer not in exits), path, self._rng)
        also = rank((node_of(peer) for peer in relays if peer in exits), path, self._rng)
        nodes = [*found.nodes[: found.diverse], *also.nodes[: also.diverse]]
        diverse = len(nodes)
        return self._diverse(Ranked([*nodes, *found.nodes[found.diverse :], *also.nodes[also.diverse :]], diverse))

    def _that_may_tell(self, relays: list[Peer], *, is_before_exit: bool) -> list[Peer]:
        """Return the relays for a place in a circuit whose last but one hop has to tell of exits, as none is known."""
        now_s = time.monotonic()
        may_tell = self._community.way_out.may_tell
        return [
            peer for peer in relays if not is_before_exit or may_tell(peer.public_key.key_to_bin(), now_s)
        ] or relays

    def _diverse(self, ranked: Ranked) -> list[Node]:
        if self.requires_diversity:
            return ranked.nodes[: ranked.diverse]
        if ranked.nodes and not ranked.diverse:
            self._community.counters[DropReason.HOP_OF_A_NETWORK_TAKEN_TWICE] += 1
        return ranked.nodes

    @staticmethod
    def _peer_of(node: Node, peers: Iterable[Peer]) -> Peer:
        return next(peer for peer in peers if peer.public_key.key_to_bin() == node.key)


def node_of(peer: Peer) -> Node:
    """Return a peer as the choice of hops knows it."""
    return Node(peer.public_key.key_to_bin(), *peer.address[:2])


def _node_of_hop(hop: Hop) -> Node:
    return Node(hop.public_key_bin, hop.peer.address[0])
