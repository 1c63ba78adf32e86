"""py-ipv8 builds circuits by hops of our choice: its TunnelCommunity calls these methods, so they are overridden."""

import logging
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

from ipv8.messaging.anonymization.caches import RetryRequestCache
from ipv8.messaging.anonymization.community import TunnelCommunity
from ipv8.messaging.anonymization.payload import ExtendPayload
from ipv8.messaging.anonymization.tunnel import (
    CIRCUIT_STATE_READY,
    CIRCUIT_TYPE_DATA,
    CIRCUIT_TYPE_IP_SEEDER,
    PEER_FLAG_EXIT_BT,
    Circuit,
    Hop,
)
from ipv8.peer import Peer

from tunnel_pool.overlay.clients.liveness import BUSY_BYTES, Liveness
from tunnel_pool.overlay.ground.config import NOWHERE
from tunnel_pool.overlay.ground.lanes import Lane, asked_hops, set_detour
from tunnel_pool.overlay.ground.pacing import Recent
from tunnel_pool.overlay.paths.hop_choice import OUT, HopChoice
from tunnel_pool.overlay.paths.way_out import (
    DETOUR_AFTER_S,
    MAX_TOLD,
    TOLD_FLAGS,
    WayOut,
    in_order_of_trust,
    may_name_the_exit,
)

HEARD_AGAIN_S = 30.0  # how often it is noted that an exit goes on to serve us
HAD_TIME_S = 2.5  # whoever was asked for less may have had no time to answer

logger = logging.getLogger(__name__)


class ChosenHops(TunnelCommunity):
    """Chooses the hops of its circuits itself, and suspects nodes that did not answer.

    The last hop of a circuit to a rendezvous point is the seeder's choice.
    """

    suspects: Recent[bytes]  # peers that did not answer, by mid
    is_silent: Callable[[Peer], bool]
    _is_me: Callable[[Peer], bool]

    def __init__(self, settings: Any) -> None:
        self.hop_choice = HopChoice(self, settings.requires_diversity)
        self.way_out = WayOut()
        self._group = 0  # its isolation group
        self.liveness = Liveness()
        # What circuits had brought when their exits were last heard to serve us, and when that was (monotonic).
        self._served: dict[int, tuple[int, float]] = {}
        self.on_exit_doubted: Callable[[bytes], None] = lambda mid: None  # called while it is asked whether it is there
        self.on_exit_heard: Callable[[bytes, bool], None] = lambda mid, answered: None  # whether an exit served us
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
        now_s = time.monotonic()
        detour = self._detour(goal_hops, ctype, required_exit, now_s) if ctype in OUT else 0
        if detour is None:
            return None
        hops = goal_hops + detour
        first_hops = self.hop_choice.first(hops, ctype, required_exit) if hops > 1 else []
        if hops > 1 and not first_hops:
            if not detour or goal_hops > 1 or not (required_exit or self._knows_an_exit(ctype)):
                return None
            hops, detour = 1, 0  # where nobody else is known, there is no other way
        if hops == 1 and ctype == CIRCUIT_TYPE_DATA:
            self._ask_directly(now_s)
            required_exit = required_exit or self.hop_choice.only(Lane(goal_hops, self._group))
        if hops == 1:
            only: Circuit | None = super().create_circuit(hops, ctype, None, required_exit, info_hash)
            return only
        # py-ipv8 would create none where only silent relays are left.
        circuit_id = self._generate_circuit_id()
        self.circuits[circuit_id] = circuit = Circuit(circuit_id, hops, ctype, required_exit, info_hash)
        self.send_initial_create(circuit, first_hops, self.settings.circuit_timeout // self.settings.next_hop_timeout)
        if detour:
            set_detour(circuit, detour)
        return circuit

    def _knows_an_exit(self, ctype: str) -> bool:
        return ctype == CIRCUIT_TYPE_DATA and bool(self.get_candidates(PEER_FLAG_EXIT_BT))

    def _detour(self, goal_hops: int, ctype: str, required_exit: Peer | None, now_s: float) -> int | None:
        """Return how many hops more a circuit out gets; None when there is no exit for it yet."""
        if required_exit is not None:
            return int(goal_hops == 1 and self.way_out.is_blocked(now_s))
        if ctype != CIRCUIT_TYPE_DATA:
            return self.way_out.detour(goal_hops, now_s, exits_known=False)
        # Those that do not answer directly may do so over a relay: of one hop, circuits find out.
        exits = self.get_candidates(PEER_FLAG_EXIT_BT) if goal_hops == 1 else self.hop_choice.exits_that_answer()
        return self.way_out.detour(goal_hops, now_s, exits_known=bool(exits))

    def _ask_directly(self, now_s: float) -> None:
        self.way_out.asked(now_s)
        if not self.is_pending_task_active("make a detour"):
            self.register_task("make a detour", self._make_detour, delay=DETOUR_AFTER_S)

    def _make_detour(self) -> None:
        """Stop to wait for exits that do not answer, so that circuits with a detour are built in the place of these."""
        direct = [c for c in self.circuits.values() if c.ctype == CIRCUIT_TYPE_DATA and c.goal_hops == 1]
        if any(circuit.state == CIRCUIT_STATE_READY for circuit in direct):
            self.way_out.answered()
        elif self.way_out.is_blocked(time.monotonic()) and self.hop_choice.first(2, CIRCUIT_TYPE_DATA, None):
            if self.way_out.is_news():
                logger.warning("No exit answers from here: circuits that were to have one hop get two.")
            for circuit in direct:
                self.remove_circuit(circuit.circuit_id, "no exit answers directly", remove_now=True)

    def choose_meeting_point(self, hops: int) -> Peer | None:
        """Return where a circuit of so many hops ends, over which others reach us."""
        return self.hop_choice.meeting_point(hops)

    def send_initial_create(self, circuit: Circuit, candidate_peers: list[Peer], max_tries: int) -> None:
        self._suspect_unverified(circuit)
        super().send_initial_create(circuit, candidate_peers, max_tries)
        if circuit.unverified_hop is not None:
            # Keep the hop's address fixed for this circuit, whatever later messages say.
            circuit.unverified_hop.peer = _pinned(circuit.unverified_hop.peer)

    def send_extend(self, circuit: Circuit, candidates: list[bytes], max_tries: int) -> None:
        """Extend by a hop of our choice; py-ipv8 takes one of those that the last hop tells of, `candidates`."""
        keys = [node.key for node in self.hop_choice.next_of(circuit)]
        told: list[bytes] = []
        if self._may_be_told_the_exit(circuit):
            path = {hop.public_key_bin for hop in circuit.hops}
            named = list(dict.fromkeys(candidates))[:MAX_TOLD]
            told = [key for key in named if key not in path and self._is_other(key)]
            self.hop_choice.shuffle(told)
            keys = in_order_of_trust(keys, told, lambda key: self.is_silent(Peer(key)))
            if not keys:
                self.way_out.told_none(circuit.hops[-1].public_key_bin, time.monotonic())
        self._extend(circuit, keys, max_tries, frozenset(told))

    def _may_be_told_the_exit(self, circuit: Circuit) -> bool:
        is_last = circuit.goal_hops - 1 == len(circuit.hops)
        is_out = circuit.ctype in OUT and circuit.required_exit is None
        # Of an exit that is known by its key alone, nobody can say in which network it is.
        return bool(
            is_last
            and is_out
            and not self.hop_choice.requires_diversity
            and may_name_the_exit(len(circuit.hops), asked_hops(circuit))
        )

    def _is_other(self, key: bytes) -> bool:
        """Return whether a key is one that a hop may have, and none of our own."""
        try:
            peer = Peer(self.crypto.key_from_public_bin(key))
        except (ValueError, TypeError):
            return False
        return bool(self.crypto.is_key_compatible(peer.public_key)) and not self._is_me(peer)

    def _extend(
        self, circuit: Circuit, keys: list[bytes], max_tries: int, told: frozenset[bytes] = frozenset()
    ) -> None:
        """Ask the circuit's end to extend it to the first of these candidates; the others are tried when it fails.

        It has `told` of some of them, which need no address.
        """
        known = {key: Peer(self.crypto.key_from_public_bin(key), NOWHERE) for key in told}
        known |= {peer.public_key.key_to_bin(): peer for peer in self.candidates}
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
        hop = Hop(_pinned(peer), flags=self.candidates.get(peer, TOLD_FLAGS if keys[0] in told else None))
        hop.dh_secret, hop.dh_first_part = self.crypto.generate_diffie_secret()
        circuit.unverified_hop = hop
        timeout_s = self.settings.next_hop_timeout
        again = partial(self._extend, told=told)
        cache = RetryRequestCache(self, circuit, keys[1:], max_tries - 1, again, timeout_s)
        self.request_cache.add(cache)
        payload = ExtendPayload(
            circuit.circuit_id, cache.packet_identifier, hop.public_key_bin, hop.dh_first_part, peer.address
        )
        self.send_cell(circuit.hop.address, payload)

    def _suspect_unverified(self, circuit: Circuit) -> None:
        """Suspect the node that was asked to join, as now another one is asked, or none."""
        if circuit.unverified_hop is not None:
            self.suspects.add(circuit.unverified_hop.mid, time.monotonic())
            if time.time() - circuit.creation_time >= HAD_TIME_S:
                self._exit_heard(circuit, circuit.unverified_hop.mid, answered=False)

    def _exit_heard(self, circuit: Circuit, mid: bytes, *, answered: bool) -> None:
        """Note whether the exit of a circuit has served us, if nobody stood between."""
        if circuit.ctype == CIRCUIT_TYPE_DATA and circuit.goal_hops == 1:
            self.hop_choice.scores.heard(mid, answered, time.time())
            self.on_exit_heard(mid, answered)

    def doubt(self, mid: bytes) -> None:
        """Ask all circuits to an exit, as one has fallen silent: if they die, they die at once."""
        for circuit_id, circuit in self.circuits.items():
            if circuit.ctype == CIRCUIT_TYPE_DATA and circuit.hops and circuit.hops[-1].mid == mid:
                self.liveness.ask(circuit_id, time.time())

    def hear_of_exits(self, out: Mapping[int, Circuit]) -> None:
        """Note now and then which exits serve us: those whose circuits have brought something since."""
        before, self._served = self._served, {}
        now_s = time.monotonic()
        for circuit_id, circuit in out.items():
            had_bytes, at_s = self._served[circuit_id] = before.get(circuit_id, (0, float("-inf")))
            if circuit.bytes_down - had_bytes >= BUSY_BYTES and now_s - at_s >= HEARD_AGAIN_S:
                self._served[circuit_id] = circuit.bytes_down, now_s
                self._exit_heard(circuit, circuit.hops[-1].mid, answered=True)

    def _ours_on_created_extended(self, circuit_id: int, payload: Any) -> None:
        super()._ours_on_created_extended(circuit_id, payload)
        circuit = self.circuits.get(circuit_id)
        if circuit is not None and circuit.hops:
            self.suspects.clear(circuit.hops[-1].mid)
            if circuit.ctype == CIRCUIT_TYPE_DATA and circuit.goal_hops == 1:
                self.way_out.answered()


def _pinned(peer: Peer) -> Peer:
    """Return a copy of the peer that stays at its address."""
    copy = Peer(peer.public_key, peer.address)
    copy.address_frozen = True
    return copy
