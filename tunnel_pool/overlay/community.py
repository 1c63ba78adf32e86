"""The TunnelCommunity that a child or a single-process node runs: its circuits, and datagrams over them."""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

from ipv8.messaging.anonymization.crypto import CryptoEndpoint
from ipv8.messaging.anonymization.tunnel import (
    CIRCUIT_STATE_CLOSING,
    CIRCUIT_STATE_READY,
    CIRCUIT_TYPE_DATA,
    DESTROY_REASON_SHUTDOWN,
    PEER_FLAG_RELAY,
    Circuit,
)
from ipv8.taskmanager import task

from tunnel_pool.overlay.clients.datagrams import Datagrams, may_carry
from tunnel_pool.overlay.clients.direct import DirectCarrier
from tunnel_pool.overlay.clients.liveness import Carried
from tunnel_pool.overlay.ground.config import SLOT_SHIFT
from tunnel_pool.overlay.ground.lanes import Lane, set_announced, set_group
from tunnel_pool.overlay.ground.offers import MOST_TOGETHER
from tunnel_pool.overlay.ground.pacing import Backoff
from tunnel_pool.overlay.ground.streams import Guest
from tunnel_pool.overlay.hidden_swarms.services import HiddenServices
from tunnel_pool.overlay.node_community import NodeCommunity, NodeSettings
from tunnel_pool.overlay.paths.chosen_hops import ChosenHops
from tunnel_pool.overlay.paths.exit_scores import ExitScores
from tunnel_pool.overlay.paths.guards import Guards
from tunnel_pool.overlay.paths.hop_choice import node_of
from tunnel_pool.overlay.paths.way_out import DETOUR_AFTER_S
from tunnel_pool.overlay.requests.dht_names import DhtNames
from tunnel_pool.overlay.requests.exit_ports import ExitPorts
from tunnel_pool.overlay.requests.http import HttpRequests
from tunnel_pool.overlay.serving.http_exit import HttpExit
from tunnel_pool.overlay.serving.serving import ServingSettings, ServingTunnels
from tunnel_pool.overlay.serving.stream_names import StreamNames
from tunnel_pool.socks5.carrier import OnLost
from tunnel_pool.steering.cells import BUCKETS, random_id

CANDIDATE_DELAY_S = 0.2
REBUILD_DELAY_S = 1.0
STATISTICS_INTERVAL_S = 0.25


class LocalTunnelSettings(ServingSettings, NodeSettings):
    """Holds py-ipv8's settings, and what this project adds."""

    slot = 0
    requires_diversity = False  # whether hops must differ in network; without it, they do where they can
    offered_together = MOST_TOGETHER  # the most hidden swarms that are offered over one circuit


class LocalTunnelCommunity(Datagrams, ChosenHops, ServingTunnels, HiddenServices, NodeCommunity):
    """py-ipv8's TunnelCommunity with ids in a slot, an exit policy and no way through ourselves.

    Each base overrides methods that py-ipv8 calls, for one purpose. Features that py-ipv8 does not have are parts:
    `hop_choice`, `swarm_keeper`, `http`, `http_exit`, `stream_names` and `dht_names`.

    A caller may replace `on_datagram`, `on_raw_data`, `on_circuit_removed`, `on_orphans`, `on_guest` and `on_changed`.
    `on_changed` is called when a circuit was created, is ready, has failed or carries streams from now on, and when the
    first peers are known.
    `native` is the endpoint of the native engine, None on the Python engine.
    """

    settings_class = LocalTunnelSettings
    pool: None = None  # tunnel_pool.contract: there are no children here
    scaling: None = None

    def __init__(self, settings: LocalTunnelSettings) -> None:
        self.slot = settings.slot
        self.buckets: Sequence[int] = range(BUCKETS)  # where its circuit ids lie (steering/cells.py)
        self.is_draining = False  # whether nothing new is begun
        self._backoff = Backoff()
        self.on_circuit_removed: Callable[[Circuit, str], None] = lambda circuit, reason: None
        self.on_orphans: Callable[[Lane, list[bytes]], None] = lambda lane, destinations: None
        self.on_changed: Callable[[], None] = lambda: None
        self.on_guest: Callable[[Guest], None] = lambda guest: None
        self._next_circuit_id: int | None = None
        self._failure: str | None = None
        super().__init__(settings)
        self.hops_in_use = lambda: {circuit.hop.peer for circuit in self.circuits.values() if circuit.hop is not None}
        self.lacks_circuits = lambda: any(self.tunnels_ready(*lane) < 1 for lane in self.wanted_circuits())
        self.on_met = self._met
        self.http, self.http_exit = HttpRequests(self), HttpExit(self)
        self.exit_ports = ExitPorts(self)
        self.stream_names = StreamNames(self)
        self.dht_names = DhtNames(self)
        self.on_answer = self.dht_names.answered
        self._use_engine()
        self.set_exit_rules(settings.exit_rules)
        self.set_admission(settings.admission)
        self.register_task("statistics", self._look, interval=STATISTICS_INTERVAL_S)

    def _use_engine(self) -> None:
        self.native = self.endpoint if isinstance(self.endpoint, CryptoEndpoint) else None
        if self.native is not None:
            self.native.on_orphans = self._orphaned
            self.native.on_failed = self._engine_failed
            self.native.look_up = self.stream_names.look_up
            self.native.on_streams = self._streams_changed
            self.native.on_guest = self._guest_came
        else:
            # It takes 2 MB, which a process on the native engine saves.
            from tunnel_pool.overlay.wire.session_keys import SessionCrypto

            self.crypto = SessionCrypto()
            self.crypto.initialize(self.my_peer.key)
            self.crypto_endpoint.on_data_message = self.on_data_message

    def listening(self) -> list[tuple[str, int]]:
        return [self.endpoint.get_address()]

    def failure(self) -> str | None:
        """Return why no datagram can be carried any more, None while one can."""
        return self._failure

    def _engine_failed(self, why: str) -> None:
        self._failure = f"the packet engine failed: {why}; please report it"

    def _guest_came(self, circuit_id: int, known_as: int, infohash: bytes | None) -> None:
        if (circuit := self.circuits.get(circuit_id)) is not None:
            self.on_guest(Guest(circuit, known_as, infohash))

    def refuse_guest(self, guest: Guest) -> None:
        """Tell the guests that are known as this one that no client will connect (tunnel_pool.contract)."""
        if self.native is not None:
            self.native.engine.refuse_guest(guest.known_as)

    def _streams_changed(self) -> None:
        self.on_changed()

    def _orphaned(self, lane: int, destinations: list[bytes]) -> None:
        self.on_orphans(Lane.unpack(lane), destinations)

    async def unload(self) -> None:
        """Tell the neighbours that our circuits end, then close the socket.

        py-ipv8 starts the removals too, but may cancel them before they are done.
        """
        self.is_draining = True
        why = {"additional_info": "unload", "remove_now": True, "destroy": DESTROY_REASON_SHUTDOWN}
        removals = [self.remove_circuit(circuit_id, **why) for circuit_id in list(self.circuits)]
        removals += [self.remove_relay(circuit_id, **why) for circuit_id in list(self.relay_from_to)]
        removals += [self.remove_exit_socket(circuit_id, **why) for circuit_id in list(self.exit_sockets)]
        await asyncio.gather(*removals, return_exceptions=True)
        self.stream_names.close()
        await super().unload()

    def _generate_circuit_id(self) -> int:
        """Return a random id within the slot and its buckets, unused here by circuits, relays and exits."""
        if self._next_circuit_id is not None:
            return self._next_circuit_id
        while True:
            circuit_id = random_id(self.slot, SLOT_SHIFT, self.buckets)
            if circuit_id and not self._is_circuit_id_taken(circuit_id):
                return circuit_id

    def create_circuit_with_id(self, circuit_id: int, goal_hops: int, **kwargs: Any) -> Circuit | None:
        """Create a circuit as `create_circuit` does, with an id that the caller chose."""
        self._next_circuit_id = circuit_id
        try:
            return self.create_circuit(goal_hops, **kwargs)
        finally:
            self._next_circuit_id = None

    def circuits_for_new_peers(self, hops: int, group: int = 0) -> list[Circuit]:
        """Return all ready circuits (tunnel_pool.contract)."""
        return self.find_circuits(hops=hops, group=group)

    def drain(self, on: bool) -> None:
        """Begin nothing new, for ourselves or others; `on` False takes it back."""
        self.is_draining = on

    def create_circuit(self, goal_hops: int, *args: Any, group: int = 0, **kwargs: Any) -> Circuit | None:
        """Create a circuit as py-ipv8 does; refuse a required exit that is ourselves."""
        required_exit = kwargs.get("required_exit")
        if required_exit is not None and self._is_me(required_exit):
            return None
        self._group = group
        circuit: Circuit | None = super().create_circuit(goal_hops, *args, **kwargs)
        if circuit is not None:
            set_group(circuit, group or self.group_of_swarm(circuit.info_hash))
            circuit.ready.add_done_callback(lambda ready: self.on_changed())
            self.on_changed()
        return circuit

    @property
    def exit_scores(self) -> ExitScores:
        """Return how well exits have served of late."""
        return self.hop_choice.scores

    def use_guards(self, guards: Guards) -> None:
        """Begin our circuits of several hops at these from now on; a guard that is silent for a moment stays one."""
        self.guard_order = lambda: guards.choose(map(node_of, self.also_silent(PEER_FLAG_RELAY)), time.time())

    def is_building(self) -> bool:
        """Return whether any of our circuits can't carry datagrams yet."""
        return any(not may_carry(circuit) for circuit in self.circuits.values())

    def _met(self) -> None:
        if self.way_out.met(time.monotonic()):
            self.register_task("build without exits", self.do_circuits, delay=DETOUR_AFTER_S + CANDIDATE_DELAY_S)
        self._build_soon(CANDIDATE_DELAY_S)

    def _build_soon(self, delay_s: float) -> None:
        """Build what is wanted, where py-ipv8 would wait for its next 5-second tick."""
        if self.candidates and self.is_missing_circuits() and not self.is_pending_task_active("build soon"):
            self.register_task("build soon", self.do_circuits, delay=delay_s)

    def do_circuits(self) -> None:
        """Keep the wanted circuits as py-ipv8 does, for all groups, and less and less often while circuits fail."""
        if not self.may_build():
            self.do_remove()
            return
        for (hops, group), wanted in self.wanted_circuits().items():
            if not group:
                continue  # py-ipv8 builds these
            have = len(self.find_circuits(state=None, hops=hops, group=group))
            for _ in range(wanted - have):
                if self.create_circuit(hops, group=group) is None:
                    break
        super().do_circuits()

    def may_build(self) -> bool:
        return self._backoff.is_due(time.monotonic())

    def _ours_on_created_extended(self, circuit_id: int, payload: Any) -> None:
        super()._ours_on_created_extended(circuit_id, payload)
        circuit = self.circuits.get(circuit_id)
        if circuit is not None and circuit.state == CIRCUIT_STATE_READY:
            self._backoff.succeeded()

    def announce_over(self, circuit_id: int, then: Callable[[], object] = lambda: None) -> None:
        """Hand what strangers send over this circuit to `on_datagram` (tunnel_pool.contract)."""
        circuit = self.circuits.get(circuit_id)
        if circuit is None:
            return
        set_announced(circuit)
        if self.native is not None:
            self.native.engine.announce(circuit_id)
        then()

    async def perform_http_request(
        self,
        destination: tuple[str, int],
        request: bytes,
        hops: int = 1,
        group: int = 0,
        circuit_id: int | None = None,
    ) -> bytes:
        """Return the answer to a request that an exit makes (tunnel_pool.contract). Raises HttpError."""
        answer: bytes = await self.http.perform(destination, request, Lane(hops, group), circuit_id)
        return answer

    async def find_exit_port(self, circuit_id: int) -> int | None:
        """Return the port by which a circuit's exit sends (tunnel_pool.contract)."""
        return await self.exit_ports.find(circuit_id)

    async def find_dht_node(self, name: str, port: int, hops: int) -> tuple[str, int] | None:
        """Return where the DHT node of this name is (tunnel_pool.contract)."""
        return await self.dht_names.find(name, port, hops)

    def carrier(self, lane: Lane, on_lost: OnLost, *, announced: bool = False) -> DirectCarrier | None:
        """Return a carrier by which the native engine reads clients' datagrams, else None (tunnel_pool.contract)."""
        return DirectCarrier(self.native.engine, lane, self.circuits, announced) if self.native is not None else None

    @task  # type: ignore[untyped-decorator]
    async def remove_circuit(
        self, circuit_id: int, additional_info: str = "", remove_now: bool = False, destroy: bool | int = False
    ) -> None:
        self.crypto_endpoint.update_statistics(circuit_id)
        circuit = self.circuits.get(circuit_id)
        was_closing = circuit is not None and circuit.state == CIRCUIT_STATE_CLOSING
        await super().remove_circuit(circuit_id, additional_info, remove_now, destroy)
        if circuit is not None and not was_closing:
            if len(circuit.hops) < circuit.goal_hops:
                self._backoff.failed(time.monotonic())
                self._suspect_unverified(circuit)
            self.on_circuit_removed(circuit, additional_info)
            self._build_soon(REBUILD_DELAY_S)

    def _look(self) -> None:
        self.crypto_endpoint.update_statistics()
        self.look_after_circuits()

    def look_after_circuits(self) -> None:
        """Ping circuits that have fallen silent while they were in use, and remove those whose ends do not answer.

        Call it a few times a second, when the circuits' statistics are new.
        """
        out = {
            circuit.circuit_id: circuit
            for circuit in self.circuits.values()
            if circuit.ctype == CIRCUIT_TYPE_DATA and circuit.state == CIRCUIT_STATE_READY
        }
        now_s = time.time()
        self.hear_of_exits(out)
        carried = [Carried(c.circuit_id, c.bytes_up, c.bytes_down, c.last_activity) for c in out.values()]
        found = self.liveness.look(carried, now_s)
        if found.to_ping:
            self.do_ping(exclude=[circuit_id for circuit_id in self.circuits if circuit_id not in found.to_ping])
        for mid in {out[circuit_id].hops[-1].mid for circuit_id in found.silent}:
            self.doubt(mid)
            self.on_exit_doubted(mid)
        for circuit_id in found.dead:
            self.suspects.add(out[circuit_id].hops[-1].mid, time.monotonic())
            self._exit_heard(out[circuit_id], out[circuit_id].hops[-1].mid, answered=False)
            self.remove_circuit(circuit_id, "what is sent is not answered", remove_now=True)

    async def update_statistics(self) -> None:
        """Bring what the engine counted into circuits and routes."""
        self.crypto_endpoint.update_statistics()
