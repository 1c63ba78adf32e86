"""Serves others' hidden swarms, as an introduction point and as a rendezvous point.

The protocol is py-ipv8's (messaging/anonymization/hidden_services.py). py-ipv8 introduces only the first circuit that
names a seeder's key, and does not limit requests; this class keeps several circuits for a key, and limits requests.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from ipv8.messaging.anonymization.hidden_services import HiddenTunnelCommunity, HiddenTunnelSettings
from ipv8.messaging.anonymization.payload import (
    CreateE2EPayload,
    EstablishIntroPayload,
    EstablishRendezvousPayload,
    IntroEstablishedPayload,
    PeersRequestPayload,
    PeersResponsePayload,
)
from ipv8.messaging.anonymization.pex import PexCommunity
from ipv8.messaging.anonymization.tunnel import IntroductionPoint
from ipv8.peer import Peer
from ipv8.peerdiscovery.churn import RandomChurn
from ipv8.peerdiscovery.discovery import RandomWalk

from tunnel_pool.overlay.ground.pacing import TokenBucket
from tunnel_pool.overlay.hidden_swarms.announce_turns import AnnounceTurns
from tunnel_pool.overlay.hidden_swarms.introduced import IntroducedSeeder, IntroducedSeeders
from tunnel_pool.overlay.hidden_swarms.pex import CarefulPex, CarefulPexSettings
from tunnel_pool.overlay.peers.introductions import CarefulIntroductions, PinnedNetwork
from tunnel_pool.rpc.drop_reasons import DropReason
from tunnel_pool.steering.layout import PAYLOAD_AT

PEX_WALK_INTERVAL_S = 5  # as py-ipv8's on_establish_intro has it, with the number of peers
PEX_PEERS = 10
ANNOUNCE_RETRY_S = 5.0
ANNOUNCE_AGAIN_S = 20 * 60.0
# A peers-request that comes by the socket is unsigned, and its answer up to twenty times as long.
PEX_ANSWERS_PER_S, PEX_ANSWERS_AT_ONCE = 2.0, 10.0
# How often a create-e2e is copied to all circuits that claim its seeder; any more of them go to one circuit each.
COPIES_PER_S, COPIES_AT_ONCE = 2.0, 10.0
MAX_UNANSWERED_BYTES = 1000  # bytes of strangers' peers-requests that may be owed answers at a time


class MeetingPoints(HiddenTunnelCommunity):
    """Serves others as introduction and rendezvous point; it comes before py-ipv8's HiddenTunnelCommunity in bases."""

    counters: Counter[str]
    may_contact: Any

    def __init__(self, settings: HiddenTunnelSettings) -> None:
        super().__init__(settings)
        self.introduced = IntroducedSeeders()
        self._turns = AnnounceTurns[IntroducedSeeder]()
        self._has_new_turn = asyncio.Event()
        self._pex_answers = TokenBucket()
        self._unanswered_bytes = 0  # bytes of peers-requests whose sources may be made up
        self._copies = TokenBucket()

    # Introduction points

    def on_establish_intro(self, source_address: tuple[str, int], data: bytes, circuit_id: int | None) -> None:
        """Introduce whoever says that it is a seeder, beside others who say that they are the same."""
        payload, _ = self.serializer.unpack_serializable(EstablishIntroPayload, data, offset=PAYLOAD_AT)
        exit_socket = self.exit_sockets.get(circuit_id) if circuit_id is not None else None
        seeder = IntroducedSeeder(payload.public_key, payload.info_hash)
        is_new = seeder not in self.introduced
        if exit_socket is None or not self.introduced.add(exit_socket.circuit_id, seeder):
            self.counters[DropReason.ESTABLISH_INTRO_REFUSED] += 1
            return
        self.intro_point_for.setdefault(seeder.seeder_key, (exit_socket, seeder.info_hash))
        if is_new:
            self.announce_seeder(seeder)
        self.send_cell(source_address, IntroEstablishedPayload(exit_socket.circuit_id, payload.identifier))

    async def remove_exit_socket(self, circuit_id: int, *args: Any, **kwargs: Any) -> Any:
        """Remove a circuit as py-ipv8 does; another that leads to the same seeder takes its place."""
        self._forget_circuit(circuit_id)
        removed = await super().remove_exit_socket(circuit_id, *args, **kwargs)
        self._forget_circuit(circuit_id)  # forget what came over it meanwhile
        return removed

    def _forget_circuit(self, circuit_id: int) -> None:
        for cookie in [c for c, known in self.rendezvous_point_for.items() if known.circuit_id == circuit_id]:
            del self.rendezvous_point_for[cookie]
        for seeder in self.introduced.remove(circuit_id):
            self.intro_point_for.pop(seeder.seeder_key, None)
            for other, (_, info_hash) in self.introduced.circuits_of_key(seeder.seeder_key):
                self.intro_point_for.setdefault(seeder.seeder_key, (self.exit_sockets[other], info_hash))
            if seeder not in self.introduced:
                self.stop_announcing(seeder)

    def get_max_time(self, circuit_id: int) -> float:
        is_introducing = bool(self.introduced.seeders_of(circuit_id))
        return self.settings.max_time_ip if is_introducing else float(super().get_max_time(circuit_id))

    async def on_create_e2e(self, source_address: tuple[str, int], data: bytes, circuit_id: int | None = None) -> None:
        """Hand what came by the socket to all circuits that say they lead to the seeder; else do as py-ipv8 does."""
        if circuit_id is not None:
            await super().on_create_e2e(source_address, data, circuit_id)
            return
        payload, _ = self.serializer.unpack_serializable(CreateE2EPayload, data, offset=PAYLOAD_AT)
        circuits = self.introduced.circuits_of(IntroducedSeeder(payload.node_public_key, payload.info_hash))
        if not circuits:
            self.counters[DropReason.CREATE_E2E_REFUSED] += 1
        for known in self.reached_now(circuits):
            self.tunnel_data(self.exit_sockets[known], source_address, payload)

    def reached_now(self, contenders: Sequence[int]) -> Sequence[int]:
        """Return the circuits that get a create-e2e: all `contenders` while the rate of copies permits, else one."""
        if len(contenders) <= 1 or self._copies.spend(COPIES_PER_S, COPIES_AT_ONCE, time.monotonic()):
            return contenders
        self.counters[DropReason.CREATE_E2E_NOT_COPIED] += 1
        return [random.choice(contenders)]

    # Announcing seeders

    def is_introduced(self, seeder: IntroducedSeeder) -> bool:
        return seeder in self.introduced

    def announce_seeder(self, seeder: IntroducedSeeder) -> None:
        """Name this node as the seeder's introduction point, by PEX and in the DHT (py-ipv8's on_establish_intro)."""
        info_hash = seeder.info_hash
        if info_hash not in self.pex and self.ipv8 is not None:
            settings = CarefulPexSettings(
                my_peer=self.my_peer, endpoint=self.endpoint, network=PinnedNetwork(), info_hash=info_hash
            )
            settings.may_contact, settings.counters = self.may_contact, self.counters
            pex = CarefulPex(settings)
            self.ipv8.add_strategy(pex, RandomWalk(pex, target_interval=PEX_WALK_INTERVAL_S), PEX_PEERS)
            self.ipv8.add_strategy(pex, RandomChurn(pex), -1)
            self.pex[info_hash] = pex
        if info_hash in self.pex:
            self.pex[info_hash].start_announce(seeder.seeder_key)
        if self.dht_provider is not None:
            self._await_turn(seeder)

    def stop_announcing(self, seeder: IntroducedSeeder) -> None:
        """Take the seeder out of the swarm's PEX, and leave that when nobody is left in it, as py-ipv8 does."""
        pex: PexCommunity | None = self.pex.get(seeder.info_hash)
        if pex is None:
            return
        pex.stop_announce(seeder.seeder_key)
        if pex.done:
            del self.pex[seeder.info_hash]
            if self.ipv8 is not None:
                self.ipv8.overlays.remove(pex)
                self.ipv8.strategies = [entry for entry in self.ipv8.strategies if entry[0].overlay != pex]
            self.register_anonymous_task("unload a PEX", pex.unload)

    def _await_turn(self, seeder: IntroducedSeeder, due_s: float = 0.0) -> None:
        """Store us in the DHT as the seeder's introduction point when it is our turn, and again as long as we are."""
        self._turns.add(seeder, due_s)
        self._has_new_turn.set()
        if not self.is_pending_task_active("announce seeders"):
            self.register_task("announce seeders", self._announce_in_turn)

    async def _announce_in_turn(self) -> None:
        """Begin one announcement after another, with pauses, until there is nobody left to announce."""
        while (next_s := self._turns.next_s()) is not None:
            self._has_new_turn.clear()
            if (wait_s := next_s - time.monotonic()) > 0:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._has_new_turn.wait(), wait_s)
                continue
            seeder = self._turns.take()
            if self.is_introduced(seeder):
                self.register_anonymous_task("announce a seeder", self._announce, seeder, ignore=(Exception,))
                await asyncio.sleep(self.dht_provider.announce_pause_s)

    async def _announce(self, seeder: IntroducedSeeder) -> None:
        stored, here = False, Peer(self.my_peer.key, self.my_estimated_wan)
        try:
            stored = await self.dht_provider.announce(seeder.info_hash, IntroductionPoint(here, seeder.seeder_key))
        finally:
            self._await_turn(seeder, time.monotonic() + (ANNOUNCE_AGAIN_S if stored else ANNOUNCE_RETRY_S))

    async def on_peers_request(
        self, source_address: tuple[str, int], data: bytes, circuit_id: int | None = None
    ) -> None:
        """Answer a request over a circuit as py-ipv8 does, and one by the socket depending on its source address.

        A request by the socket comes from an exit's socket, which answers no question of ours, so we can't check
        that the source is real. A source at the IP address of a node that we know gets the introduction points. All
        other sources get an empty list, and together no more bytes than they sent: they look in the DHT.
        """
        if circuit_id is not None:
            await super().on_peers_request(source_address, data, circuit_id)
            return
        payload, _ = self.serializer.unpack_serializable(PeersRequestPayload, data, offset=PAYLOAD_AT)
        pex, now_s = self.pex.get(payload.info_hash), time.monotonic()
        if pex is None:
            self.counters[DropReason.PEERS_REQUEST_REFUSED] += 1
        elif not self._is_host_of_node(source_address[0], now_s):
            self._answer_with_nobody(source_address, payload, len(data))
        elif self._pex_answers.spend(PEX_ANSWERS_PER_S, PEX_ANSWERS_AT_ONCE, now_s):
            self.send_peers_response(source_address, payload, pex.get_intro_points(), None)
        else:
            self.counters[DropReason.PEERS_REQUEST_TOO_OFTEN] += 1

    def _is_host_of_node(self, host: str, now_s: float) -> bool:
        """Return whether a node answered us from there, or it is our own: an exit asks itself by its socket, too."""
        if host in (self.my_estimated_wan[0], self.my_estimated_lan[0]):
            return True
        overlays = self.ipv8.overlays if self.ipv8 is not None else [self]
        return any(
            overlay.proven.has_host(host, now_s) for overlay in overlays if isinstance(overlay, CarefulIntroductions)
        )

    def _answer_with_nobody(self, source_address: tuple[str, int], request: PeersRequestPayload, came: int) -> None:
        """Say that there is nobody, with one byte more than the request has: about one time in fifty say nothing."""
        payload = PeersResponsePayload(request.circuit_id, request.identifier, request.info_hash, [])
        packet = self.ezr_pack(payload.msg_id, payload, sig=False)
        self._unanswered_bytes = min(self._unanswered_bytes + came, MAX_UNANSWERED_BYTES)
        self.counters[DropReason.PEERS_REQUEST_OF_STRANGER] += 1
        if len(packet) <= self._unanswered_bytes:
            self._unanswered_bytes -= len(packet)
            self.send_packet(source_address, packet)

    # Rendezvous points

    def on_establish_rendezvous(self, source_address: tuple[str, int], data: bytes, circuit_id: int | None) -> None:
        """Keep a cookie for a circuit, as py-ipv8 does: one for each, and none that another circuit has."""
        payload, _ = self.serializer.unpack_serializable(EstablishRendezvousPayload, data, offset=PAYLOAD_AT)
        known = [exit_socket.circuit_id for exit_socket in self.rendezvous_point_for.values()]
        if circuit_id not in self.exit_sockets or circuit_id in known or payload.cookie in self.rendezvous_point_for:
            self.counters[DropReason.ESTABLISH_RENDEZVOUS_REFUSED] += 1
        else:
            super().on_establish_rendezvous(source_address, data, circuit_id)
