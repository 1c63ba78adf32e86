"""Hidden services by the rules of this project: seeder and downloader meet at a relay, none exits.

py-ipv8's protocol (messaging/anonymization/hidden_services.py); ours are the
circuits that ask introduction points, who is answered, and how soon a lost
introduction point, swarm or end-to-end circuit is replaced.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from ipv8.messaging.anonymization.caches import E2ERequestCache, PeersRequestCache
from ipv8.messaging.anonymization.community import TunnelCommunity
from ipv8.messaging.anonymization.hidden_services import HiddenTunnelSettings
from ipv8.messaging.anonymization.payload import (
    CreatedE2EPayload,
    CreatedPayload,
    CreateE2EPayload,
    CreatePayload,
    DataPayload,
    ExtendedPayload,
    IntroEstablishedPayload,
    LinkedE2EPayload,
    PeersRequestPayload,
    PeersResponsePayload,
    PingPayload,
    PongPayload,
    RendezvousEstablishedPayload,
    TestResponsePayload,
)
from ipv8.messaging.anonymization.tunnel import (
    CIRCUIT_TYPE_DATA,
    CIRCUIT_TYPE_IP_SEEDER,
    CIRCUIT_TYPE_RP_DOWNLOADER,
    CIRCUIT_TYPE_RP_SEEDER,
    DESTROY_REASON_UNNEEDED,
    Circuit,
    IntroductionPoint,
    RendezvousPoint,
)
from ipv8.peer import Peer

from tunnel_pool.overlay.ground.lanes import Lane
from tunnel_pool.overlay.hidden_swarms.keeper import SwarmKeeper
from tunnel_pool.overlay.hidden_swarms.offering import Offering
from tunnel_pool.overlay.hidden_swarms.swarm_circuits import CIRCUIT_TYPE_LOOKUP
from tunnel_pool.rpc.drop_reasons import DropReason
from tunnel_pool.steering.layout import MESSAGE_ID_AT, PAYLOAD_AT

# A seeder whose rendezvous point fails within this time tries another; py-ipv8 gives up a first hop after 5 s.
RENDEZVOUS_RETRY_S = 6.0
END_TO_END_SILENCE_S = 10.0
MAX_RENDEZVOUS_PER_SWARM = 64

# Messages between exits and introduction points of others: every relay lets them pass, as in py-ipv8.
HIDDEN_SERVICE_QUESTIONS = frozenset({CreateE2EPayload.msg_id, PeersRequestPayload.msg_id})
HIDDEN_SERVICE_ANSWERS = frozenset({CreatedE2EPayload.msg_id, PeersResponsePayload.msg_id})
HIDDEN_SERVICE_MESSAGES = HIDDEN_SERVICE_QUESTIONS | HIDDEN_SERVICE_ANSWERS

# The messages that a hop of our circuit may send us over it. Requests are not among them: the node at the
# circuit's end could ask us what it asks other nodes, and so find out what else we do.
_CELLS_OVER_OUR_CIRCUITS = frozenset(
    payload.msg_id
    for payload in (
        DataPayload,
        CreatePayload,  # a stranger may have chosen an id that is ours: a rule of its own refuses it
        CreatedPayload,
        ExtendedPayload,
        PingPayload,
        PongPayload,
        IntroEstablishedPayload,
        RendezvousEstablishedPayload,
        LinkedE2EPayload,
        PeersResponsePayload,
        TestResponsePayload,
    )
)
# What may come from outside over a circuit of ours, by its type.
_MESSAGES_FROM_OUTSIDE = {
    CIRCUIT_TYPE_DATA: HIDDEN_SERVICE_ANSWERS,
    CIRCUIT_TYPE_LOOKUP: HIDDEN_SERVICE_ANSWERS,
    CIRCUIT_TYPE_IP_SEEDER: frozenset({CreateE2EPayload.msg_id}),
}


class WatchedSwarm(NamedTuple):
    """A hidden swarm that we take part in; `info_hash` is the one that is looked up (`lookup_hash`)."""

    info_hash: bytes
    hops: int
    seeding: bool
    group: int = 0

    @property
    def lane(self) -> Lane:
        return Lane(self.hops, self.group)


class HiddenServices(Offering):
    """Takes part in the swarms that `watch` was told of last; overrides how py-ipv8 asks, answers and lets in."""

    counters: Counter[str]
    is_draining: bool
    may_build: Callable[[], bool]
    choose_meeting_point: Callable[[int], Peer | None]

    def __init__(self, settings: HiddenTunnelSettings) -> None:
        super().__init__(settings)
        self.cells_over_our_circuits = set(_CELLS_OVER_OUR_CIRCUITS)  # message ids
        self.swarm_keeper = SwarmKeeper(self)
        self.cancel_pending_task("do_peer_discovery")

    # What we take part in

    def watch(self, swarms: Iterable[WatchedSwarm]) -> None:
        """Take part in these swarms from now on, and in no others."""
        wanted = {swarm.info_hash: swarm for swarm in swarms}
        for info_hash, joined in list(self.swarms.items()):
            swarm = wanted.get(info_hash)
            if swarm is None or (swarm.lane, swarm.seeding) != (self.lane_of_swarm(joined), joined.seeding):
                self.leave_swarm(info_hash)
        for swarm in wanted.values():
            if swarm.info_hash not in self.swarms:
                # The callback does nothing: RPC_SYNC reports linked circuits (`e2e`).
                self.join_swarm(swarm.info_hash, swarm.hops, lambda address: None, swarm.seeding, swarm.group)

    def join_swarm(
        self,
        info_hash: bytes,
        hops: int,
        callback: Callable[[tuple[str, int]], Any] | None = None,
        seeding: bool = True,
        group: int = 0,
    ) -> None:
        """Join a swarm as py-ipv8 does; swarms of one `group` are looked up over the same circuits."""
        super().join_swarm(info_hash, hops, callback, seeding)
        self.set_group_of_swarm(info_hash, group)
        self.swarm_keeper.start()

    def leave_swarm(self, info_hash: bytes) -> None:
        self.swarm_keeper.look_up_anew(info_hash)
        super().leave_swarm(info_hash)
        self.set_group_of_swarm(info_hash, 0)

    async def create_rendezvous_point(self, info_hash: bytes) -> RendezvousPoint | None:
        """Make a rendezvous point as py-ipv8 does; if that fails, try another while the downloader still waits."""
        swarm, begun_s = self.swarms.get(info_hash), time.monotonic()
        point: RendezvousPoint | None = await super().create_rendezvous_point(info_hash)
        is_wanted = swarm is not None and self.swarms.get(info_hash) is swarm and not self.is_draining
        if point is None and is_wanted and time.monotonic() - begun_s < RENDEZVOUS_RETRY_S:
            point = await super().create_rendezvous_point(info_hash)
        return point

    def create_e2e(self, info_hash: bytes, intro_point: IntroductionPoint) -> None:
        """Ask a seeder for a rendezvous as py-ipv8 does; `Questions` says who may be asked."""
        now_s, swarm = time.monotonic(), self.swarms.get(info_hash)
        if (
            swarm is None
            or not self.swarm_keeper.questions.may_ask(intro_point.seeder_pk, now_s)
            or self.select_circuit_for_infohash(info_hash) is None
        ):
            return
        over = [circuit.circuit_id for circuit in self.lookup_circuits(self.lane_of_swarm(swarm))]
        self.swarm_keeper.questions.asked(info_hash, intro_point, over, now_s)
        try:
            super().create_e2e(info_hash, intro_point)
        except ValueError:  # it is not a public key
            self.counters[DropReason.SEEDER_KEY_MALFORMED] += 1
            swarm.remove_intro_point(intro_point)

    def on_peers_response(self, source_address: tuple[str, int], data: bytes, circuit_id: int | None = None) -> None:
        """Take a response as py-ipv8 does, if it came over the circuit that the question took."""
        payload, _ = self.serializer.unpack_serializable(PeersResponsePayload, data, offset=PAYLOAD_AT)
        question = self.request_cache.get(PeersRequestCache, payload.identifier)
        if question is not None and question.circuit.circuit_id != circuit_id:
            self.counters[DropReason.PEERS_RESPONSE_OF_ANOTHER_CIRCUIT] += 1
            return
        super().on_peers_response(source_address, data, circuit_id)

    async def on_created_e2e(self, source_address: tuple[str, int], data: bytes, circuit_id: int | None = None) -> None:
        """Take an answer as py-ipv8 does; it is waited for no longer, whatever becomes of the circuit."""
        payload, _ = self.serializer.unpack_serializable(CreatedE2EPayload, data, offset=PAYLOAD_AT)
        question = self.request_cache.get(E2ERequestCache, payload.identifier)
        await super().on_created_e2e(source_address, data, circuit_id)
        if question is not None:
            self.swarm_keeper.questions.answered(question.info_hash)

    async def estimate_swarm_size(self, info_hash: bytes, hops: int = 1, max_requests: int = 10) -> int:
        """Estimate as py-ipv8 does, with a circuit to ask over."""
        lane = Lane(hops, self.group_of_swarm(info_hash))
        circuits = self.circuits_of(CIRCUIT_TYPE_LOOKUP, lane)
        circuit = circuits[0] if circuits else self.swarm_keeper.create_lookup_circuit(lane)
        if circuit is None or not await circuit.ready:
            return 0
        return int(await super().estimate_swarm_size(info_hash, hops, max_requests))

    # Circuits

    def do_circuits(self) -> None:
        """Keep the circuits that are wanted by hop count; SwarmKeeper builds those of swarms."""
        TunnelCommunity.do_circuits(self)

    def create_circuit_for_infohash(
        self, info_hash: bytes, ctype: str, exit_flags: set[int] | None = None, required_exit: Peer | None = None
    ) -> Circuit | None:
        """Build as py-ipv8 does; a rendezvous point is any relay that we know, so that no exit is needed."""
        if ctype == CIRCUIT_TYPE_RP_SEEDER and required_exit is None and info_hash in self.swarms:
            required_exit = self.choose_meeting_point(self.swarms[info_hash].hops)
        circuit: Circuit | None = super().create_circuit_for_infohash(info_hash, ctype, exit_flags, required_exit)
        return circuit

    def do_remove(self) -> None:
        """Remove what py-ipv8 removes, and end-to-end circuits whose other end has gone silent."""
        super().do_remove()
        silent_s = time.time() - END_TO_END_SILENCE_S
        for circuit in self.find_circuits(CIRCUIT_TYPE_RP_DOWNLOADER, group=None):
            if circuit.e2e and circuit.last_activity < silent_s:
                self.remove_circuit(circuit.circuit_id, "the other end is silent", destroy=DESTROY_REASON_UNNEEDED)

    # Messages

    def on_packet_from_circuit(self, source_address: tuple[str, int], data: bytes, circuit_id: int) -> None:
        """Act on a cell's message; over our own circuits on answers only."""
        if circuit_id in self.circuits and data[MESSAGE_ID_AT] not in self.cells_over_our_circuits:
            self.counters[DropReason.CIRCUIT_OVERLAY_MESSAGE_REFUSED] += 1
        else:
            super().on_packet_from_circuit(source_address, data, circuit_id)

    def message_from_outside(self, circuit: Circuit, origin: tuple[str, int], data: bytes) -> None:
        """Act on an overlay message in a data message over a circuit of ours, if its type may come there."""
        if data[MESSAGE_ID_AT] in _MESSAGES_FROM_OUTSIDE.get(circuit.ctype, ()):
            super().on_packet_from_circuit(origin, data, circuit.circuit_id)
        else:
            # py-ipv8 would act on it and answer `origin` past the circuit: whoever
            # sees the exit could ask for our address.
            self.counters[DropReason.CIRCUIT_OVERLAY_MESSAGE_REFUSED] += 1

    async def on_create_e2e(self, source_address: tuple[str, int], data: bytes, circuit_id: int | None = None) -> None:
        """Answer as py-ipv8 does a request over a circuit that offers its swarm; limit the swarm's rendezvous circuits.

        A circuit to another introduction point could find out so what else we seed.
        """
        payload, _ = self.serializer.unpack_serializable(CreateE2EPayload, data, offset=PAYLOAD_AT)
        circuit = self.circuits.get(circuit_id) if circuit_id is not None else None
        if circuit_id is not None and (circuit is None or not self.offers.serves(circuit_id, payload.info_hash)):
            self.counters[DropReason.CREATE_E2E_REFUSED] += 1
        elif self.is_draining:
            self.counters[DropReason.CREATE_E2E_WHILE_DRAINING] += 1
        elif circuit and len(self.circuits_of_swarm(CIRCUIT_TYPE_RP_SEEDER, payload.info_hash)) >= (
            MAX_RENDEZVOUS_PER_SWARM
        ):
            self.counters[DropReason.CREATE_E2E_TOO_MANY] += 1
        else:
            await super().on_create_e2e(source_address, data, circuit_id)
