"""py-ipv8 builds circuits by hops of our choice: its TunnelCommunity calls these methods, so they are overridden."""

import time
from collections.abc import Collection
from typing import Any

from ipv8.messaging.anonymization.caches import RetryRequestCache
from ipv8.messaging.anonymization.community import TunnelCommunity
from ipv8.messaging.anonymization.payload import ExtendPayload
from ipv8.messaging.anonymization.tunnel import CIRCUIT_TYPE_DATA, CIRCUIT_TYPE_IP_SEEDER, Circuit, Hop
from ipv8.peer import Peer

from tunnel_pool.overlay.pacing import Recent
from tunnel_pool.overlay.paths.hop_choice import HopChoice


class ChosenHops(TunnelCommunity):
    """Chooses the hops of its circuits itself, and suspects nodes that did not answer.

    The only hop of a data circuit of one hop is py-ipv8's choice among the exits (`select_exit`); the last of one to a
    rendezvous point is the seeder's.
    """

    suspects: Recent[bytes]  # peers that did not answer, by mid

    def __init__(self, settings: Any) -> None:
        self.hop_choice = HopChoice(self, settings.requires_diversity)
        self._first_hops: list[Peer] = []  # the first hops of the circuit that is being created
        super().__init__(settings)

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
            required_exit = self.hop_choice.last(self.get_candidates(*exit_flags))
            if required_exit is None:
                return None
        if ctype == CIRCUIT_TYPE_IP_SEEDER and required_exit is None:
            required_exit = self.hop_choice.introduction_point()
        if goal_hops > 1:
            self._first_hops = self.hop_choice.first(goal_hops, ctype, required_exit)
            if not self._first_hops:
                return None
        circuit: Circuit | None = super().create_circuit(goal_hops, ctype, None, required_exit, info_hash)
        return circuit

    def choose_meeting_point(self, hops: int) -> Peer | None:
        """Return where a circuit of so many hops ends, over which others reach us."""
        return self.hop_choice.meeting_point(hops)

    def send_initial_create(self, circuit: Circuit, candidate_peers: list[Peer], max_tries: int) -> None:
        self._suspect_unverified(circuit)
        if circuit.unverified_hop is None and circuit.goal_hops > 1 and self._first_hops:
            candidate_peers, self._first_hops = self._first_hops, []
        super().send_initial_create(circuit, candidate_peers, max_tries)
        if circuit.unverified_hop is not None:
            # Keep the hop's address fixed for this circuit, whatever later messages say.
            circuit.unverified_hop.peer = _pinned(circuit.unverified_hop.peer)

    def send_extend(self, circuit: Circuit, candidates: list[bytes], max_tries: int) -> None:
        """Extend by a hop of our choice; py-ipv8 takes one of those that the last hop offers, `candidates`."""
        self._extend(circuit, [node.key for node in self.hop_choice.next_of(circuit)], max_tries)

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
        """Suspect the node that was asked to join, as now another one is asked, or none."""
        if circuit.unverified_hop is not None:
            self.suspects.add(circuit.unverified_hop.mid, time.monotonic())

    def _ours_on_created_extended(self, circuit_id: int, payload: Any) -> None:
        super()._ours_on_created_extended(circuit_id, payload)
        circuit = self.circuits.get(circuit_id)
        if circuit is not None and circuit.hops:
            self.suspects.clear(circuit.hops[-1].mid)


def _pinned(peer: Peer) -> Peer:
    """Return a copy of the peer that stays at its address."""
    copy = Peer(peer.public_key, peer.address)
    copy.address_frozen = True
    return copy
