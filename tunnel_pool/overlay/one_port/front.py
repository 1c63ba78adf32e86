"""A node's only overlay when its children share its UDP port: it meets peers, and carries no cells.

It runs in the main process, where everything but cells arrives. To others it
is the node, with the node's key. What is a child's business goes to `deliver`.
"""

import random
from collections.abc import Callable, Mapping, Sequence

from ipv8.messaging.anonymization.payload import CreateE2EPayload, CreatePayload, DestroyPayload
from ipv8.messaging.anonymization.tunnel import IntroductionPoint
from ipv8.messaging.payload_headers import BinMemberAuthenticationPayload
from ipv8.peer import Peer

from tunnel_pool.overlay.hidden_swarms.introduced import MAX_CONTENDERS, IntroducedSeeder
from tunnel_pool.overlay.node_community import NodeCommunity, NodeSettings
from tunnel_pool.rpc.drop_reasons import DropReason
from tunnel_pool.rpc.sync import CarriedState
from tunnel_pool.steering.layout import PAYLOAD_AT

LOOK_INTERVAL_S = 1.0  # between two looks for candidates that are gone; new ones are told of at once
GATHER_S = 0.05

Deliver = Callable[[int, tuple[str, int], bytes], None]


class FrontCommunity(NodeCommunity):
    """Calls `deliver` with (circuit id, source, packet) that a child is to have, and a hook when candidates changed."""

    def __init__(self, settings: NodeSettings) -> None:
        super().__init__(settings)
        self.on_met = self._look_soon
        self.deliver: Deliver = lambda circuit_id, source, packet: None
        self.on_candidates_changed: Callable[[], None] = lambda: None
        self._introduced_by_children: dict[IntroducedSeeder, Sequence[int]] = {}
        self._told: dict[Peer, tuple[list[int], tuple[str, int]]] = {}
        self.decode_map[DestroyPayload.msg_id] = self._destroy_received
        for idle in ("do_circuits", "do_ping", "do_peer_discovery"):  # py-ipv8 registers them
            self.cancel_pending_task(idle)
        self.register_task("look at candidates", self._look, interval=LOOK_INTERVAL_S)

    def carried(self) -> CarriedState:
        """Return what the socket sent and received; circuits are the children's."""
        return CarriedState(sent_bytes=self.endpoint.bytes_up, received_bytes=self.endpoint.bytes_down)

    async def should_join_circuit(self, create_payload: CreatePayload, previous_node_address: tuple[str, int]) -> bool:
        return False

    # Whom we meet

    def _look_soon(self) -> None:
        if not self.is_pending_task_active("look soon"):
            self.register_task("look soon", self._look, delay=GATHER_S)

    def _look(self) -> None:
        self.do_remove()
        now = {peer: (flags, peer.address) for peer, flags in self.candidates.items()}
        if now != self._told:
            self._told = now
            self.on_candidates_changed()

    # Messages for the children

    def _destroy_received(self, source_address: tuple[str, int], data: bytes) -> None:
        """Hand a destroy message to the child that has the circuit; the child checks who says so."""
        _, remainder = self.serializer.unpack_serializable(BinMemberAuthenticationPayload, data, offset=PAYLOAD_AT)
        payload, _ = self.serializer.unpack_serializable(DestroyPayload, data, offset=remainder)
        self.deliver(payload.circuit_id, source_address, data)

    async def on_create_e2e(self, source_address: tuple[str, int], data: bytes, circuit_id: int | None = None) -> None:
        payload, _ = self.serializer.unpack_serializable(CreateE2EPayload, data, offset=PAYLOAD_AT)
        children = self._introduced_by_children.get(IntroducedSeeder(payload.node_public_key, payload.info_hash), ())
        if not children:
            self.counters[DropReason.CREATE_E2E_REFUSED] += 1
        for known in self.reached_now(random.sample(children, min(len(children), MAX_CONTENDERS))):
            self.deliver(known, source_address, data)

    # Whose introduction point we are

    def is_introduced(self, seeder: IntroducedSeeder) -> bool:
        return seeder in self._introduced_by_children

    def set_introduced(self, introduced: Mapping[IntroducedSeeder, Sequence[int]]) -> None:
        """Announce these seeders and no others; each seeder has one circuit id per child that introduces it."""
        before, self._introduced_by_children = self._introduced_by_children, dict(introduced)
        for seeder in before:
            if seeder not in introduced:
                self.stop_announcing(seeder)
        for seeder in introduced:
            if seeder not in before:
                self.announce_seeder(seeder)

    async def look_up_swarm(self, info_hash: bytes) -> list[IntroductionPoint]:
        """Look a swarm up for a child that was asked over a circuit (py-ipv8's on_peers_request)."""
        if info_hash in self.pex:
            points: list[IntroductionPoint] = self.pex[info_hash].get_intro_points()
            return points
        found = await self.dht_lookup(info_hash)
        return found[1] if found else []

    def prefixes(self) -> list[bytes]:
        """Return the prefixes of all overlays on the socket."""
        return [overlay.get_prefix() for overlay in self.ipv8.overlays] if self.ipv8 is not None else [self._prefix]
