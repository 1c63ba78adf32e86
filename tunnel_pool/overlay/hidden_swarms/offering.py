"""Offers the hidden swarms that we seed at introduction points, many over one circuit where there are many."""

import time
from typing import Any

from ipv8.messaging.anonymization.caches import IPRequestCache
from ipv8.messaging.anonymization.payload import EstablishIntroPayload, IntroEstablishedPayload
from ipv8.messaging.anonymization.tunnel import CIRCUIT_TYPE_IP_SEEDER, Circuit
from ipv8.peer import Peer

from tunnel_pool.overlay.ground.offers import Offers
from tunnel_pool.overlay.ground.pacing import Recent
from tunnel_pool.overlay.hidden_swarms.swarm_circuits import SwarmCircuits
from tunnel_pool.steering.layout import PAYLOAD_AT

REFUSED_S = 600.0  # how long an introduction point is asked last that did not answer


class OfferRequest(IPRequestCache):
    """Waits for an introduction point's answer about one swarm."""

    community: "Offering"

    def __init__(self, community: "Offering", circuit: Circuit, info_hash: bytes) -> None:
        super().__init__(community, circuit)
        self.info_hash = info_hash

    def on_timeout(self) -> None:
        """Have the swarm offered elsewhere; remove the circuit if it offers no other."""
        community, circuit_id = self.community, self.circuit.circuit_id
        if not community.offers.serves(circuit_id, self.info_hash):
            return  # the circuit has ended meanwhile, or the swarm was left
        community.refusing.add(self.circuit.hops[-1].public_key_bin, time.monotonic())
        if community.offers.refused(self.info_hash, circuit_id):
            super().on_timeout()


class Offering(SwarmCircuits):
    """Makes introduction points as py-ipv8 does, but several of our swarms may share one (offers.py)."""

    def __init__(self, settings: Any) -> None:
        super().__init__(settings)
        self.offers = Offers(settings.offered_together)
        self.refusing = Recent[bytes](REFUSED_S)  # introduction points that did not answer, by key

    async def create_introduction_point(self, info_hash: bytes, required_ip: Peer | None = None) -> None:
        """Have a swarm introduced, at `required_ip` if given; without it, only if it is not yet.

        The program that uses us may ask for one that SwarmKeeper has already begun.
        """
        swarm = self.swarms.get(info_hash)
        if swarm is None or not swarm.seeding:
            self.logger.warning("A swarm that we do not seed gets no introduction point")
            return
        begun = self.offers.circuits_of(info_hash) if required_ip is None else ()
        if begun:
            if (circuit := self.circuits.get(begun[0])) is not None:
                await circuit.ready
            return
        circuit = self._circuit_for(info_hash, required_ip)
        if circuit is None:
            return
        self.offers.offer(info_hash, circuit.circuit_id)
        is_ready = await circuit.ready
        # The swarm may have been left meanwhile, or joined anew with another key.
        is_current = self.offers.serves(circuit.circuit_id, info_hash) and self.swarms.get(info_hash) is swarm
        if is_ready and is_current:
            request = OfferRequest(self, circuit, info_hash)
            self.request_cache.add(request)
            key = swarm.seeder_sk.pub().key_to_bin()
            self.send_cell(
                circuit.hop.address, EstablishIntroPayload(circuit.circuit_id, request.number, info_hash, key)
            )

    def _circuit_for(self, info_hash: bytes, required_ip: Peer | None) -> Circuit | None:
        lane = self.lane_of_swarm(self.swarms[info_hash])
        # The circuit to an introduction point has a hop more than the swarm, which is the point.
        there = self.circuits_of(CIRCUIT_TYPE_IP_SEEDER, lane._replace(hops=lane.hops + 1))
        shared = self.offers.circuit_for_one_more(circuit.circuit_id for circuit in there) if not required_ip else None
        if shared is not None:
            return self.circuits[shared]
        built: Circuit | None = self.create_circuit_for_infohash(
            info_hash, CIRCUIT_TYPE_IP_SEEDER, required_exit=required_ip
        )
        return built

    def on_intro_established(self, source_address: tuple[str, int], data: bytes, circuit_id: int | None) -> None:
        """Take an answer as py-ipv8 does, if it came over the circuit that the question took."""
        payload, _ = self.serializer.unpack_serializable(IntroEstablishedPayload, data, offset=PAYLOAD_AT)
        request = self.request_cache.get(IPRequestCache, payload.identifier)
        if request is not None and request.circuit.circuit_id == circuit_id:
            self.offers.accepted(request.info_hash, request.circuit.circuit_id)
            super().on_intro_established(source_address, data, circuit_id)

    def is_offered(self, info_hash: bytes) -> bool:
        """Return whether an introduction point names us as a seeder of this swarm."""
        return self.offers.is_accepted(info_hash)

    def leave_swarm(self, info_hash: bytes) -> None:
        """Leave as py-ipv8 does; a circuit that offers other swarms as well stays, and is named after one of these."""
        offered_over = self.offers.circuits_of(info_hash)
        ended = self.offers.leave(info_hash)
        for circuit in map(self.circuits.get, offered_over):
            if circuit is not None:  # py-ipv8 removes the circuits that are named after the swarm
                is_ended = circuit.circuit_id in ended
                circuit.info_hash = info_hash if is_ended else self.offers.swarms_of(circuit.circuit_id)[0]
        super().leave_swarm(info_hash)

    def remove_circuit(self, circuit_id: int, *args: Any, **kwargs: Any) -> Any:
        self.offers.lost(circuit_id)
        return super().remove_circuit(circuit_id, *args, **kwargs)
