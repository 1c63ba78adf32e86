"""A TunnelCommunity that chooses every hop of its circuits itself; path.py says who becomes which hop."""

import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from ipv8.messaging.anonymization.caches import RetryRequestCache
from ipv8.messaging.anonymization.payload import ExtendPayload
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

from tunnel_pool.overlay.paths.guards import SECOND_LAYER, GuardOrder
from tunnel_pool.overlay.paths.path import Node, Ranked, in_order, rank, without_conflicts
from tunnel_pool.rpc.drop_reasons import DropReason

# Circuits that others can make us build, by asking for them.
ASKED_FOR = frozenset((CIRCUIT_TYPE_IP_SEEDER, CIRCUIT_TYPE_RP_SEEDER, CIRCUIT_TYPE_RP_DOWNLOADER))


class HopChoice:
    """Chooses the hops of circuits; it comes before a py-ipv8 TunnelCommunity among the bases of a class.

    `guard_order` may be replaced by a caller: it returns the guards, None where first hops are chosen anew.
    """

    counters: Counter[str]
    circuits: dict[int, Circuit]
    candidates: dict[Peer, list[int]]
    crypto: Any
    my_peer: Peer
    request_cache: Any
    settings: Any
    get_candidates: Callable[..., list[Peer]]
    send_cell: Any
    remove_circuit: Any

    def __init__(self, settings: Any) -> None:
        self.guard_order: Callable[[], GuardOrder | None] = lambda: None
        self.requires_diversity = settings.requires_diversity
        self._rng = random.SystemRandom()
        self._first_hops: list[Peer] = []  # the first hops of the circuit that is being created
        super().__init__(settings)  # type: ignore[call-arg]

    # The first hop

    def create_circuit(
        self,
        goal_hops: int,
        ctype: str = CIRCUIT_TYPE_DATA,
        exit_flags: Collection[int] | None = None,
        required_exit: Peer | None = None,
        info_hash: bytes | None = None,
    ) -> Circuit | None:
        """Create a circuit as py-ipv8 does, with hops of our choice; None as well when there is no guard or exit."""
        if exit_flags is not None and required_exit is None:
            required_exit = self.choose_last(self.get_candidates(*exit_flags))
            if required_exit is None:
                return None
        if ctype == CIRCUIT_TYPE_IP_SEEDER and required_exit is None:
            required_exit = self._choose_introduction_point()
        if goal_hops > 1:
            self._first_hops = self._ranked_first_hops(goal_hops, ctype, required_exit)
            if not self._first_hops:
                return None
        return super().create_circuit(goal_hops, ctype, None, required_exit, info_hash)  # type: ignore[misc]

    def choose_last(self, peers: Sequence[Peer]) -> Peer | None:
        """Return one to be the last hop; not a guard, which would then be no first hop, while there are others."""
        order = self.guard_order()
        primary = set(order.first) if order is not None else set()
        others = [peer for peer in peers if peer.public_key.key_to_bin() not in primary]
        return self._rng.choice(others or peers) if peers else None

    def _choose_introduction_point(self) -> Peer | None:
        """Return a node that strangers can send to: exits are taken to be such (py-ipv8's select_exit)."""
        for flag in (PEER_FLAG_EXIT_BT, PEER_FLAG_EXIT_IPV8, PEER_FLAG_RELAY):
            if peers := self.get_candidates(flag):
                return self.choose_last(peers)
        return None

    def choose_meeting_point(self, hops: int) -> Peer | None:
        """Return a rendezvous point at the end of so many hops; a downloader may ask for many of these.

        Whoever is there knows the hop before it. Next to us it is a guard, next to a guard one of the second
        layer, so that a stranger gets there in neither place however often he asks.
        """
        relays, order = self.get_candidates(PEER_FLAG_RELAY), self.guard_order()
        if order is not None and hops <= 2:
            keys = order.first if hops == 1 else order.second
            chosen = in_order(keys, map(node_of, relays))
            count = max(1, order.primary) if hops == 1 else SECOND_LAYER.count
            if chosen:
                return self._peer_of(self._rng.choice(chosen[:count]), relays)
        return self.choose_last(relays)

    def _ranked_first_hops(self, goal_hops: int, ctype: str, required_exit: Peer | None) -> list[Peer]:
        """Return the relays that a circuit of several hops may begin with, the best first."""
        relays = self.get_candidates(PEER_FLAG_RELAY)
        path = [node_of(required_exit)] if required_exit is not None else []
        if required_exit is None and ctype == CIRCUIT_TYPE_DATA:
            exits = [node_of(peer) for peer in self.get_candidates(PEER_FLAG_EXIT_BT)]
            # One exit has to be left for the end, and in another network where that can be.
            left = {peer: without_conflicts(exits, [node_of(peer)]) for peer in relays}
            relays = [peer for peer in relays if left[peer].diverse] or [p for p in relays if left[p].nodes]
        order = self.guard_order()
        nodes = [node_of(peer) for peer in relays]
        used = Counter(circuit.hop.peer.public_key.key_to_bin() for circuit in self.circuits.values() if circuit.hop)
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

    def send_initial_create(self, circuit: Circuit, candidate_peers: list[Peer], max_tries: int) -> None:
        self._suspect_unverified(circuit)
        if circuit.unverified_hop is None and circuit.goal_hops > 1 and self._first_hops:
            candidate_peers, self._first_hops = self._first_hops, []
        super().send_initial_create(circuit, candidate_peers, max_tries)  # type: ignore[misc]
        if circuit.unverified_hop is not None:
            # Where this hop is, no message that comes later changes for this circuit.
            circuit.unverified_hop.peer = _pinned(circuit.unverified_hop.peer)

    # All others

    def send_extend(self, circuit: Circuit, candidates: list[bytes], max_tries: int) -> None:
        """Extend by a hop of our choice; py-ipv8 takes one of those that the last hop offers, `candidates`."""
        self._extend(circuit, [node.key for node in self._ranked_next(circuit)], max_tries)

    def _ranked_next(self, circuit: Circuit) -> list[Node]:
        path = [_node_of_hop(hop) for hop in circuit.hops]
        is_last = circuit.goal_hops - 1 == len(circuit.hops)
        if circuit.required_exit is not None:
            if is_last:
                return [node_of(circuit.required_exit)]
            path.append(node_of(circuit.required_exit))
        if is_last:
            return self._diverse(rank(map(node_of, self.get_candidates(PEER_FLAG_EXIT_BT)), path, self._rng))
        relays = self.get_candidates(PEER_FLAG_RELAY)
        order = self.guard_order()
        if order is not None and circuit.ctype in ASKED_FOR and len(circuit.hops) == 1:
            second = in_order(order.second, map(node_of, relays))
            used, reserve = second[: SECOND_LAYER.count], second[SECOND_LAYER.count :]
            self._rng.shuffle(used)
            return self._diverse(without_conflicts([*used, *reserve], path))
        exits = set(self.get_candidates(PEER_FLAG_EXIT_BT))
        # Exits are rare: they are for the end, while others are there.
        found = rank((node_of(peer) for peer in relays if peer not in exits), path, self._rng)
        also = rank((node_of(peer) for peer in relays if peer in exits), path, self._rng)
        nodes = [*found.nodes[: found.diverse], *also.nodes[: also.diverse]]
        diverse = len(nodes)
        return self._diverse(Ranked([*nodes, *found.nodes[found.diverse :], *also.nodes[also.diverse :]], diverse))

    def _diverse(self, ranked: Ranked) -> list[Node]:
        if self.requires_diversity:
            return ranked.nodes[: ranked.diverse]
        if ranked.nodes and not ranked.diverse:
            self.counters[DropReason.HOP_OF_A_NETWORK_TAKEN_TWICE] += 1
        return ranked.nodes

    def _extend(self, circuit: Circuit, keys: list[bytes], max_tries: int) -> None:
        """Ask the circuit's end to extend it to the first of these candidates; the others are tried when it fails."""
        known = {peer.public_key.key_to_bin(): peer for peer in self.candidates}
        if circuit.required_exit is not None:
            known[circuit.required_exit.public_key.key_to_bin()] = circuit.required_exit
        keys = [key for key in keys if key in known and self.crypto.key_from_public_bin(key)]
        if not keys:
            self.remove_circuit(circuit.circuit_id, "no candidates to extend")
            return
        self._suspect_unverified(circuit)
        if self.request_cache.has(RetryRequestCache, circuit.circuit_id):
            self.request_cache.pop(RetryRequestCache, circuit.circuit_id)
        peer = known[keys[0]]
        hop = Hop(_pinned(peer), flags=self.candidates.get(peer))
        hop.dh_secret, hop.dh_first_part = self.crypto.generate_diffie_secret()
        circuit.unverified_hop = hop
        timeout_s = self.settings.next_hop_timeout
        cache = RetryRequestCache(self, circuit, keys[1:], max_tries - 1, self._extend, timeout_s)
        self.request_cache.add(cache)
        payload = ExtendPayload(
            circuit.circuit_id, cache.packet_identifier, hop.public_key_bin, hop.dh_first_part, peer.address
        )
        self.send_cell(circuit.hop.address, payload)

    def _suspect_unverified(self, circuit: Circuit) -> None:
        """Note that the node that was asked to join did not answer."""
        raise NotImplementedError

    @staticmethod
    def _peer_of(node: Node, peers: Iterable[Peer]) -> Peer:
        return next(peer for peer in peers if peer.public_key.key_to_bin() == node.key)


def node_of(peer: Peer) -> Node:
    """Return a peer as the choice of hops knows it."""
    return Node(peer.public_key.key_to_bin(), *peer.address[:2])


def _pinned(peer: Peer) -> Peer:
    """Return a copy of the peer that stays at its address."""
    copy = Peer(peer.public_key, peer.address)
    copy.address_frozen = True
    return copy


def _node_of_hop(hop: Hop) -> Node:
    return Node(hop.public_key_bin, hop.peer.address[0])
