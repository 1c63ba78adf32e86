"""Keeps the circuits of our hidden swarms, and looks for the peers of those that we download from."""

import asyncio
import random
import time
from collections.abc import Callable, Container
from typing import Any

from ipv8.messaging.anonymization.hidden_services import HiddenTunnelCommunity
from ipv8.messaging.anonymization.tunnel import (
    CIRCUIT_TYPE_RP_DOWNLOADER,
    DESTROY_REASON_UNNEEDED,
    PEER_FLAG_EXIT_IPV8,
    PEER_FLAG_RELAY,
    Circuit,
    Swarm,
)

from tunnel_pool.overlay.ground.lanes import Lane
from tunnel_pool.overlay.hidden_swarms.asking import Questions
from tunnel_pool.overlay.hidden_swarms.meeting_points import ANNOUNCE_AGAIN_S
from tunnel_pool.overlay.hidden_swarms.swarm_circuits import CIRCUIT_TYPE_LOOKUP

TEND_INTERVAL_S = 1.0
# The pause between look-ups of a download that is linked with nobody. It doubles with each look-up, up to
# MAX_RETRY_OF_THE_FOUND_S if introduction points were found, else up to MAX_RETRY_S.
LOOKUP_RETRY_S = 5.0
MAX_RETRY_OF_THE_FOUND_S = 60.0
MAX_RETRY_S = 300.0
ANSWER_TIMEOUT_S = 10.0  # how long a seeder that was asked for a rendezvous may take; py-ipv8 then forgets the question
PING_END_TO_END_S = 3.0
# An introduction point announces each swarm in the DHT: a thousand at once would be dropped by its neighbours' limits.
OFFERED_IN_A_STEP = 16


class SwarmKeeper:
    """Asks for what the swarms lack, once a second, as a part of a tunnel community (services.py)."""

    def __init__(self, community: HiddenTunnelCommunity) -> None:
        self.questions = Questions(ANSWER_TIMEOUT_S)
        self._community = community
        self._is_running = False
        self._retry_s: dict[bytes, float] = {}  # by swarm, how long after a look-up the next one comes

    def start(self) -> None:
        """Start the task unless it is running; it ends by itself when there is no swarm left."""
        if not self._is_running:
            self._is_running = True
            self._community.register_task("keep swarms", self._run)

    async def _run(self) -> None:
        """Look once a second while there are swarms; without them a node does not even wake up."""
        ping_s = time.monotonic() + PING_END_TO_END_S
        try:
            while self._community.swarms:
                self._step()
                if time.monotonic() >= ping_s:
                    ping_s += PING_END_TO_END_S
                    self._ping_end_to_end()
                await asyncio.sleep(TEND_INTERVAL_S)
        finally:
            self._is_running = False

    def _step(self) -> None:
        """Ask for what is missing: circuits to ask over, introduction points, peers."""
        if not self._community.swarms or self._community.is_draining:
            return
        for lane in {self._community.lane_of_swarm(swarm) for swarm in self._community.swarms.values()}:
            if not self._community.circuits_of(CIRCUIT_TYPE_LOOKUP, lane):
                self.create_lookup_circuit(lane)
        for info_hash in self._to_be_offered():
            self._start(f"introduce {info_hash.hex()}", self._community.create_introduction_point, info_hash)
        for info_hash, swarm in self._community.swarms.items():
            if not swarm.seeding and self.is_lookup_due(swarm):
                self._start(f"look up {info_hash.hex()}", self._look_up, swarm)

    def _to_be_offered(self) -> list[bytes]:
        """Return some of the swarms that we seed and that no introduction point is to name yet."""
        offers = self._community.offers
        waiting = [each for each, swarm in self._community.swarms.items() if swarm.seeding and not offers.has(each)]
        return random.sample(waiting, min(len(waiting), OFFERED_IN_A_STEP))

    def _start(self, name: str, function: Callable[..., Any], *arguments: object) -> None:
        if not self._community.is_pending_task_active(name):
            self._community.register_task(name, function, *arguments, ignore=(Exception,))

    def create_lookup_circuit(self, lane: Lane) -> Circuit | None:
        ends = self._community.get_candidates(PEER_FLAG_EXIT_IPV8) or self._community.get_candidates(PEER_FLAG_RELAY)
        if not ends or not self._community.may_build():
            return None
        # Of several hops, a guard is the first; the only hop may be any.
        end = self._community.hop_choice.last(ends) if lane.hops > 1 else random.choice(ends)
        circuit: Circuit | None = self._community.create_circuit(
            lane.hops, CIRCUIT_TYPE_LOOKUP, required_exit=end, group=lane.group
        )
        return circuit

    def is_lookup_due(self, swarm: Swarm) -> bool:
        connections = swarm.get_num_connections()
        if connections:
            self.look_up_anew(swarm.info_hash)
        if self._is_unanswered(swarm):
            return True
        retry_s = self._retry_s.get(swarm.info_hash, LOOKUP_RETRY_S)
        interval_s = self._community.settings.swarm_lookup_interval if connections else retry_s
        return (
            connections < self._community.settings.swarm_connection_limit
            and swarm.last_lookup + interval_s <= time.time()
            and bool(self._community.lookup_circuits(self._community.lane_of_swarm(swarm)))
        )

    async def _look_up(self, swarm: Swarm) -> None:
        """Look a swarm up, and ask each seeder that is found for a rendezvous (py-ipv8's do_peer_discovery)."""
        if not swarm.get_num_connections():
            swarm.min_dht_lookup_interval = swarm.max_dht_lookup_interval = 0
        else:
            swarm.min_dht_lookup_interval = ANNOUNCE_AGAIN_S / 4
        if self._is_unanswered(swarm) and (asked := self.questions.answered(swarm.info_hash)) is not None:
            # The node at the circuit's end answers look-ups, but may withhold seeders' answers: build another circuit.
            self._end_lookup_circuits(self._community.lane_of_swarm(swarm), "no answer of a seeder", asked.over)
            return
        retry_s = self._retry_s.get(swarm.info_hash, LOOKUP_RETRY_S / 2)
        self._retry_s[swarm.info_hash] = min(2 * retry_s, MAX_RETRY_S)
        try:
            found = await swarm.lookup()
        except RuntimeError:  # no answer: the circuit's end may have no DHT, or be gone
            self._end_lookup_circuits(self._community.lane_of_swarm(swarm), "no answer to a look-up")
            return
        if found:
            self._retry_s[swarm.info_hash] = min(2 * retry_s, MAX_RETRY_OF_THE_FOUND_S)
        if self._community.swarms.get(swarm.info_hash) is not swarm:  # left meanwhile
            self.look_up_anew(swarm.info_hash)
            return
        for point in set(found or ()):
            swarm.add_intro_point(point)
        for point in self.questions.in_turn(swarm.info_hash, swarm.intro_points):
            if not swarm.has_connection(point.seeder_pk):
                self._community.create_e2e(swarm.info_hash, point)

    def look_up_anew(self, info_hash: bytes) -> None:
        """Forget how long the swarm's next look-up has to wait, and whom the swarm has asked."""
        self._retry_s.pop(info_hash, None)
        self.questions.forget(info_hash)

    def _is_unanswered(self, swarm: Swarm) -> bool:
        """Return whether a seeder was asked in vain; who has answered is in `connections` at once."""
        return not swarm.connections and self.questions.is_unanswered(swarm.info_hash, time.monotonic())

    def _end_lookup_circuits(self, lane: Lane, why: str, only: Container[int] | None = None) -> None:
        for circuit in self._community.lookup_circuits(lane):
            if only is None or circuit.circuit_id in only:
                self._community.remove_circuit(circuit.circuit_id, why, destroy=DESTROY_REASON_UNNEEDED)

    def _ping_end_to_end(self) -> None:
        """Ping the seeder's end of end-to-end circuits: py-ipv8 keeps both ends alive so, but less often."""
        community = self._community
        found = community.find_circuits(CIRCUIT_TYPE_RP_DOWNLOADER, group=None)
        linked = {circuit.circuit_id for circuit in found if circuit.e2e}
        if linked:
            community.do_ping(exclude=[circuit_id for circuit_id in community.circuits if circuit_id not in linked])
            community.do_remove()
