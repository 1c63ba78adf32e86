"""Serves others: joins their circuits, lets out what may leave, and counts what it carried."""

import time
from collections import Counter
from typing import Any

from ipv8.messaging.anonymization.caches import CreateRequestCache
from ipv8.messaging.anonymization.community import TunnelCommunity
from ipv8.messaging.anonymization.hidden_services import HiddenTunnelSettings
from ipv8.messaging.anonymization.payload import (
    CreatedPayload,
    CreatePayload,
    DataPayload,
    ExtendPayload,
    TestRequestPayload,
)
from ipv8.messaging.anonymization.tunnel import BACKWARD, RelayRoute
from ipv8.peer import Peer
from ipv8.taskmanager import task

from tunnel_pool.overlay.ground.admission import NO_MORE_THAN_USUAL, Admission, Joins
from tunnel_pool.overlay.ground.exit_rules import NO_RULES, ExitRules, Protocol, exit_protocols
from tunnel_pool.overlay.peers.introductions import MayContact
from tunnel_pool.overlay.peers.machine import own_addresses
from tunnel_pool.overlay.serving.exit_socket import NativeExitSocket, PolicedExitSocket
from tunnel_pool.overlay.serving.exit_source import ExitSource
from tunnel_pool.overlay.serving.resolver import Names
from tunnel_pool.overlay.serving.strangers import StrangersLetIn
from tunnel_pool.rpc.drop_reasons import DropReason
from tunnel_pool.rpc.sync import CarriedState
from tunnel_pool.steering.layout import MESSAGE_ID_AT, PAYLOAD_AT

# Messages taken from any source here: the exit socket checks the source of data, and joining that of CREATE.
_FROM_ANYWHERE = {DataPayload.msg_id, CreatePayload.msg_id}
OWN_ADDRESSES_INTERVAL_S = 30.0
MAX_TEST_BYTES = 2000  # the most bytes of a speed test's request or answer, as in py-ipv8's REST API


class ServingSettings(HiddenTunnelSettings):
    """Holds py-ipv8's settings, and what an operator says."""

    allow_private = False
    exit_source = ExitSource()
    exit_rules = NO_RULES
    admission = NO_MORE_THAN_USUAL


class ServingTunnels(TunnelCommunity):
    """Overrides what py-ipv8's TunnelCommunity does for other nodes: joining, extending and ending their circuits."""

    native: Any  # packet_engine/endpoint.py's NativeEndpoint, None on the Python engine
    counters: Counter[str]
    may_contact: MayContact
    is_draining: bool
    crypto_endpoint: Any

    def __init__(self, settings: Any) -> None:
        self.allow_private = settings.allow_private
        self.exit_source = settings.exit_source
        self.exit_rules = settings.exit_rules
        self.admission = settings.admission
        self.names = Names()
        self.strangers = StrangersLetIn()
        self._offers_nobody = False  # whether the neighbour whose circuit is being joined is offered no candidates
        self._rules = settings.exit_rules
        self._rules_told: ExitRules | None = None
        self._joins = Joins()
        self._carried_before = Counter[str]()
        super().__init__(settings)
        if not self.allow_private:
            look_again = OWN_ADDRESSES_INTERVAL_S
            self.register_task("own addresses", lambda: self.set_exit_rules(self._rules), interval=look_again)

    async def on_extend(self, source_address: tuple[str, int], data: bytes, circuit_id: int | None) -> None:
        """Extend as py-ipv8 does; to an address that comes with an unknown key only if `may_contact` allows it."""
        payload, _ = self.serializer.unpack_serializable(ExtendPayload, data, offset=PAYLOAD_AT)
        host, port = payload.node_addr[:2]
        is_known = self.network.get_verified_by_public_key_bin(payload.node_public_key) is not None
        if not is_known and (host, port) != ("0.0.0.0", 0) and not self.may_contact(host, port):  # noqa: S104 - as py-ipv8 writes none
            self.counters[DropReason.EXTEND_ADDRESS_REFUSED] += 1
            return
        await super().on_extend(source_address, data, circuit_id)

    def on_created(self, source_address: tuple[str, int], data: bytes, circuit_id: int | None) -> None:
        """Take an answer to an EXTEND from the node that was asked alone: py-ipv8 takes it from who guesses 16 bits."""
        payload, _ = self.serializer.unpack_serializable(CreatedPayload, data, offset=PAYLOAD_AT)
        request = self.request_cache.get(CreateRequestCache, payload.identifier)
        asked = None if request is None else (*request.to_peer.address[:2], request.to_circuit_id)
        if asked is not None and asked != (*source_address[:2], payload.circuit_id):
            self.counters[DropReason.CREATED_BY_ANOTHER] += 1
            return
        super().on_created(source_address, data, circuit_id)

    def _is_circuit_id_taken(self, circuit_id: int) -> bool:
        return any(circuit_id in table for table in (self.circuits, self.relay_from_to, self.exit_sockets))

    def set_exit_rules(self, rules: ExitRules) -> None:
        """Apply these rules; nothing leaves for this machine itself, under whatever address it is known."""
        self._rules = rules
        own = () if self.allow_private else own_addresses(self.my_estimated_wan[0], self.exit_source.host)
        rules = rules.with_denied(own)
        if rules == self._rules_told:
            return
        self.exit_rules = self._rules_told = rules
        if self.native is not None:
            self.native.set_exit_rules(rules)

    def set_admission(self, admission: Admission) -> None:
        """Admit so many circuits and handshakes of others from now on."""
        self.admission = admission
        if self.native is not None:
            self.native.engine.set_handshakes(admission.handshakes_per_s, admission.handshakes_per_source_per_s)
        else:
            for handshakes in (self.crypto_endpoint.handshakes, self.crypto_endpoint.answers):
                handshakes.per_s = admission.handshakes_per_s
                handshakes.per_source_per_s = admission.handshakes_per_source_per_s

    def exit_protocols(self) -> Protocol:
        """Return what leaves from here, by content."""
        return exit_protocols(self.exit_rules, self.settings.peer_flags)

    async def should_join_circuit(self, create_payload: CreatePayload, previous_node_address: tuple[str, int]) -> bool:
        """Return whether to join: not while draining, under an id that is taken, or beyond the admission."""
        if self.is_draining:
            self.counters[DropReason.CREATE_WHILE_DRAINING] += 1
            return False
        if self._is_circuit_id_taken(create_payload.circuit_id):
            self.counters[DropReason.CREATE_ID_TAKEN] += 1
            return False
        # Of a relayed circuit's two routes, the one backward says who asked for it.
        asked = [
            route for route in self.relay_from_to.values() if route.direction == BACKWARD or route.rendezvous_relay
        ]
        of_neighbour = sum(
            route.hop.address[0] == previous_node_address[0] for route in (*asked, *self.exit_sockets.values())
        )
        joined = len(self.exit_sockets) + len(self.relay_from_to) // 2
        refusal = self._joins.refusal(self.admission, joined, of_neighbour, time.monotonic())
        if refusal is not None:
            self.counters[refusal] += 1
        return refusal is None

    def on_packet_from_circuit(self, source_address: tuple[str, int], data: bytes, circuit_id: int) -> None:
        """Act on messages of an exit's previous hop; from others only on data and CREATE. py-ipv8 answers anybody."""
        exit_socket = self.exit_sockets.get(circuit_id)
        is_foreign = exit_socket is not None and source_address[0] != exit_socket.hop.address[0]
        if is_foreign and data[MESSAGE_ID_AT] not in _FROM_ANYWHERE:
            self.counters[DropReason.EXIT_FOREIGN_SOURCE] += 1
        else:
            super().on_packet_from_circuit(source_address, data, circuit_id)

    def on_test_request(self, source_address: tuple[str, int], data: bytes, circuit_id: int | None) -> None:
        payload, _ = self.serializer.unpack_serializable(TestRequestPayload, data, offset=PAYLOAD_AT)
        if payload.response_size > MAX_TEST_BYTES:
            self.counters[DropReason.TEST_RESPONSE_TOO_LARGE] += 1
        else:
            super().on_test_request(source_address, data, circuit_id)

    def get_candidates(self, *requested_flags: int) -> list[Peer]:
        peers: list[Peer] = [] if self._offers_nobody else super().get_candidates(*requested_flags)
        return peers

    def join_circuit(self, create_payload: CreatePayload, previous_node_address: tuple[str, int]) -> None:
        """Join as py-ipv8 does, but offer no candidates in a long answer to an address that may be made up."""
        self._offers_nobody = self.network.get_verified_by_address(previous_node_address) not in self.candidates
        try:
            super().join_circuit(create_payload, previous_node_address)
        finally:
            self._offers_nobody = False
        self._carried_before["joined"] += 1
        circuit_id = create_payload.circuit_id
        plain = self.exit_sockets[circuit_id]
        plain.cancel_all_pending_tasks()  # its housekeeping would keep it alive for ever
        self.exit_sockets[circuit_id] = (
            PolicedExitSocket(circuit_id, plain.hop, self)
            if self.native is None
            else NativeExitSocket(circuit_id, plain.hop, self, self.native)
        )

    @task  # type: ignore[untyped-decorator]
    async def remove_relay(
        self, circuit_id: int, additional_info: str = "", remove_now: bool = False, destroy: bool | int = False
    ) -> RelayRoute | None:
        self.crypto_endpoint.update_statistics(circuit_id)
        relay: RelayRoute | None = await super().remove_relay(circuit_id, additional_info, remove_now, destroy)
        if relay is not None:
            self._carried_before["relayed_bytes"] += relay.bytes_up
        return relay

    @task  # type: ignore[untyped-decorator]
    async def remove_exit_socket(
        self, circuit_id: int, additional_info: str = "", remove_now: bool = False, destroy: bool | int = False
    ) -> PolicedExitSocket | None:
        self.crypto_endpoint.update_statistics(circuit_id)
        exit_socket: PolicedExitSocket | None = await super().remove_exit_socket(
            circuit_id, additional_info, remove_now, destroy
        )
        if exit_socket is not None:
            self._carried_before["exited_bytes"] += exit_socket.bytes_up + exit_socket.bytes_down
        return exit_socket

    def carried(self) -> CarriedState:
        """Return what we relay and exit for others, and what our socket sent and received."""
        # Two routes, one each way, make a relayed circuit.
        relayed = sum(relay.bytes_up for relay in self.relay_from_to.values())
        exited = sum(exit_.bytes_up + exit_.bytes_down for exit_ in self.exit_sockets.values())
        let_in = self.strangers
        datagrams, size = (let_in.datagrams, let_in.bytes) if self.native is None else self.native.engine.strangers()
        return CarriedState(
            relays=len(self.relay_from_to) // 2,
            exits=sum(exit_.enabled for exit_ in self.exit_sockets.values()),
            relayed_bytes=self._carried_before["relayed_bytes"] + relayed,
            exited_bytes=self._carried_before["exited_bytes"] + exited,
            joined=self._carried_before["joined"],
            sent_bytes=self.endpoint.bytes_up,
            received_bytes=self.endpoint.bytes_down,
            strangers=datagrams,
            stranger_bytes=size,
        )
