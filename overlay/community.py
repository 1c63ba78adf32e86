"""The TunnelCommunity that a child or a single-process node runs."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

from ipv8.messaging.anonymization.crypto import CryptoEndpoint
from ipv8.messaging.anonymization.payload import CellPayload
from ipv8.messaging.anonymization.tunnel import (
    CIRCUIT_STATE_CLOSING,
    CIRCUIT_STATE_READY,
    CIRCUIT_TYPE_DATA,
    DESTROY_REASON_SHUTDOWN,
    PEER_FLAG_RELAY,
    Circuit,
)
from ipv8.peer import Peer
from ipv8.taskmanager import task

from tunnel_pool.overlay.backoff import Backoff, Recent
from tunnel_pool.overlay.clients.direct import DirectCarrier
from tunnel_pool.overlay.clients.lanes import Lane, set_group
from tunnel_pool.overlay.config import NOWHERE, SLOT_SHIFT
from tunnel_pool.overlay.hidden_swarms.end_to_end import (
    END_TO_END,
    end_to_end_address,
    end_to_end_circuit_id,
    is_linked,
)
from tunnel_pool.overlay.paths.guards import Guards
from tunnel_pool.overlay.paths.hops import HopChoice, node_of
from tunnel_pool.overlay.peers.introductions import CarefulIntroductions, MayContact
from tunnel_pool.overlay.requests.dht_names import DhtNames
from tunnel_pool.overlay.serving.serving import ServingSettings, ServingTunnels
from tunnel_pool.overlay.wire.addresses import encoded, pack_address, packed, packed_address_end, unpack_address
from tunnel_pool.overlay.wire.crypto_endpoint import DATA_MESSAGE, DataCellEndpoint
from tunnel_pool.overlay.wire.session_keys import SessionCrypto
from tunnel_pool.rpc.drop_reasons import DropReason
from tunnel_pool.socks5.address import Socks5Error, encode_address
from tunnel_pool.socks5.carrier import OnLost
from tunnel_pool.steering.cells import BUCKETS, random_id
from tunnel_pool.steering.layout import AFTER_CIRCUIT_ID, MESSAGE_ID_AT, PAYLOAD_AT

if TYPE_CHECKING:
    from tunnel_pool.packet_engine.endpoint import NativeEndpoint

CANDIDATE_DELAY_S = 0.2
REBUILD_DELAY_S = 1.0
SUSPECT_S = 120.0  # within this time, churn has asked whether the peer lives
STATISTICS_INTERVAL_S = 0.25
MAX_PINGED = 256
_NO_ORIGIN = pack_address(*NOWHERE)  # of what leaves an exit


class LocalTunnelSettings(ServingSettings):
    """Holds py-ipv8's settings, and what this project adds."""

    slot = 0
    siblings: frozenset[bytes] = frozenset()
    counters: Counter[str]

    # py-ipv8 keeps removed circuits for 5 seconds, for payments that this
    # project does not make.
    remove_tunnel_delay = 0

    may_contact: MayContact = staticmethod(lambda host, port: True)
    requires_diversity = False  # whether hops must differ in network; without it, they do where they can

    # Of a node that is there, the answer comes within a few round trips.
    next_hop_timeout = 5


class LocalTunnelCommunity(DhtNames, CarefulIntroductions, HopChoice, ServingTunnels):
    """py-ipv8's TunnelCommunity with ids in a slot, an exit policy and no way through ourselves.

    `on_raw_data`, `on_circuit_removed`, `on_orphans` and `on_changed` may be replaced by a caller;
    the last says that a circuit was begun, is ready or has failed, or that peers are known where none
    were. `native` is the endpoint of the native engine, None on the Python one.
    """

    settings_class = LocalTunnelSettings
    pool: None = None  # tunnel_pool.contract: there are no children here
    scaling: None = None

    def __init__(self, settings: LocalTunnelSettings) -> None:
        self.slot = settings.slot
        self.buckets: Sequence[int] = range(BUCKETS)  # where its circuit ids lie (steering/cells.py)
        self.counters = settings.counters
        self._siblings = settings.siblings
        self._backoff = Backoff()
        self._pinged_s: dict[bytes, float] = {}  # when each peer was pinged, by mid
        self._suspects = Recent[bytes](SUSPECT_S)  # peers that did not answer, by mid
        self.on_circuit_removed: Callable[[Circuit, str], None] = lambda circuit, reason: None
        self.on_orphans: Callable[[Lane, list[bytes]], None] = lambda lane, destinations: None
        self.on_changed: Callable[[], None] = lambda: None
        self.on_datagram: Callable[[Circuit, bytes, bytes], None] = self._hand_on_raw_data
        self._next_circuit_id: int | None = None
        self._failure: str | None = None
        self.crypto_endpoint: Any
        super().__init__(settings)
        self.crypto = SessionCrypto()
        self.crypto.initialize(self.my_peer.key)
        self.native: NativeEndpoint | None = None
        if isinstance(self.endpoint, CryptoEndpoint):
            self.native = cast("NativeEndpoint", self.endpoint)
            self.native.on_orphans = self._orphaned
            self.native.on_failed = self._engine_failed
        else:
            self._use_python_engine()
        self.set_exit_rules(settings.exit_rules)
        self.set_admission(settings.admission)
        self.register_task("statistics", self.crypto_endpoint.update_statistics, interval=STATISTICS_INTERVAL_S)

    def listening(self) -> list[tuple[str, int]]:
        return [self.endpoint.get_address()]

    def failure(self) -> str | None:
        """Return why no datagram can be carried any more, None while one can."""
        return self._failure

    def _engine_failed(self, why: str) -> None:
        self._failure = f"the packet engine failed: {why}; please report it"

    def _orphaned(self, lane: int, destinations: list[bytes]) -> None:
        self.on_orphans(Lane.unpack(lane), destinations)

    def _use_python_engine(self) -> None:
        """Put our Python packet path in the place of py-ipv8's."""
        self.endpoint.remove_listener(self.crypto_endpoint)
        self.crypto_endpoint = DataCellEndpoint(self.endpoint, self.counters)
        self.crypto_endpoint.on_data_message = self.on_data_message
        self.crypto_endpoint.setup_tunnels(self, self.settings)
        self.circuits = self.crypto_endpoint.circuits
        self.relay_from_to = self.crypto_endpoint.relays
        self.exit_sockets = self.crypto_endpoint.exit_sockets

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
        if self.ipv8 is not None:
            await self.ipv8.close()
        await super().unload()
        await asyncio.sleep(0)
        self.endpoint.close()

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
        circuit: Circuit | None = super().create_circuit(goal_hops, *args, **kwargs)
        if circuit is not None:
            set_group(circuit, group or self.group_of_swarm(circuit.info_hash))
            circuit.ready.add_done_callback(lambda ready: self.on_changed())
            self.on_changed()
        return circuit

    def use_guards(self, guards: Guards) -> None:
        """Begin our circuits of several hops at these from now on."""
        self.guard_order = lambda: guards.choose(map(node_of, self.get_candidates(PEER_FLAG_RELAY)), time.time())

    def first_hops(self) -> set[Peer]:
        """Return the peers that our circuits begin with, or may begin with next: our guards."""
        return {circuit.hop.peer for circuit in self.circuits.values() if circuit.hop is not None} | self.guards()

    def guards(self) -> set[Peer]:
        """Return the peers that are guards, of both layers."""
        order = self.guard_order()
        keys = {*order.first, *order.second} if order is not None else set()
        return {peer for peer in self.candidates if peer.public_key.key_to_bin() in keys}

    def is_missing_circuits(self) -> bool:
        """Return whether circuits are wanted that we have none of, or could not be built."""
        return not self.candidates or any(self.tunnels_ready(*lane) < 1 for lane in self.wanted_circuits())

    def is_building(self) -> bool:
        """Return whether a circuit is not yet what it is to be."""
        return any(not _may_carry(circuit) for circuit in self.circuits.values())

    def _is_me(self, peer: Peer) -> bool:
        """Return whether the peer is this node: this process or another child, of the same key or of a sibling's."""
        return peer.mid == self.my_peer.mid or peer.public_key.key_to_bin() in self._siblings

    def introduction_request_callback(self, peer: Peer, dist: Any, payload: Any) -> None:
        if not self._is_me(peer):
            super().introduction_request_callback(peer, dist, payload)
            self._build_soon(CANDIDATE_DELAY_S)

    def introduction_response_callback(self, peer: Peer, dist: Any, payload: Any) -> None:
        if not self._is_me(peer):
            super().introduction_response_callback(peer, dist, payload)
            # py-ipv8 keeps the object that it met first, at the address of then.
            known = self.network.get_verified_by_public_key_bin(peer.public_key.key_to_bin())
            self.candidates[known or peer] = self.candidates.pop(peer)
            self._note_pong(peer)
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

    def send_ping(self, peer: Peer) -> None:
        """Ask whether a peer lives, for RandomChurn; only py-ipv8's DiscoveryCommunity has real pings."""
        if len(self._pinged_s) > MAX_PINGED:
            self._pinged_s.clear()
        self._pinged_s[peer.mid] = time.monotonic()
        self.send_introduction_request(peer)

    def _note_pong(self, peer: Peer) -> None:
        """Note the answer to a ping so that RandomChurn asks this peer again only when it has been silent."""
        pinged_s = self._pinged_s.pop(peer.mid, None)
        known = self.network.get_verified_by_public_key_bin(peer.public_key.key_to_bin())
        if pinged_s is not None and known is not None:
            known.pings.extend([time.monotonic() - pinged_s] * known.pings.maxlen)

    def get_candidates(self, *requested_flags: int) -> list[Peer]:
        """Return candidates as py-ipv8 does, without ourselves, and without silent ones while there are others."""
        now_s = time.monotonic()
        peers = [peer for peer in super().get_candidates(*requested_flags) if not self._is_me(peer)]
        return [peer for peer in peers if not self._suspects.has(peer.mid, now_s)] or peers

    def _suspect_unverified(self, circuit: Circuit) -> None:
        """Suspect the node that was asked to join, as now another one is asked, or none."""
        if circuit.unverified_hop is not None:
            self._suspects.add(circuit.unverified_hop.mid, time.monotonic())

    def _ours_on_created_extended(self, circuit_id: int, payload: Any) -> None:
        super()._ours_on_created_extended(circuit_id, payload)
        circuit = self.circuits.get(circuit_id)
        if circuit is not None and circuit.hops:
            self._suspects.clear(circuit.hops[-1].mid)
        if circuit is not None and circuit.state == CIRCUIT_STATE_READY:
            self._backoff.succeeded()

    def send_data(
        self,
        target: tuple[str, int],
        circuit_id: int,
        dest_address: tuple[str, int],
        source_address: tuple[str, int],
        data: bytes,
    ) -> None:
        """Send a datagram over a circuit, or back over one that we exit.

        py-ipv8 would send it in the clear over a circuit that is unknown or has
        no hop yet, and let it out too early over one that misses hops.
        """
        circuit = self.circuits.get(circuit_id)
        if circuit is None and circuit_id not in self.exit_sockets:
            self.counters[DropReason.UNKNOWN_CIRCUIT] += 1
        elif circuit is not None and not _may_carry(circuit):
            self.counters[DropReason.CIRCUIT_NOT_READY] += 1
        else:
            self._send_message(target, circuit_id, pack_address(*dest_address) + pack_address(*source_address) + data)

    def send_datagram(self, circuit_id: int, address: bytes, data: bytes) -> None:
        """Send a datagram out of the circuit's exit (tunnel_pool.contract)."""
        circuit = self.circuits.get(circuit_id)
        if circuit is None:
            self.counters[DropReason.UNKNOWN_CIRCUIT] += 1
        elif not _may_carry(circuit):
            self.counters[DropReason.CIRCUIT_NOT_READY] += 1
        else:
            try:
                self._send_message(circuit.hop.address, circuit_id, packed(address) + _NO_ORIGIN + data)
            except Socks5Error:
                self.counters[DropReason.DATAGRAM_MALFORMED] += 1

    def _send_message(self, target: tuple[str, int], circuit_id: int, body: bytes) -> None:
        self.crypto_endpoint.send_cell(target, CellPayload(circuit_id, DATA_MESSAGE + body))

    def carrier(self, lane: Lane, on_lost: OnLost) -> DirectCarrier | None:
        """Return what has the native engine read clients' datagrams (tunnel_pool.contract)."""
        return DirectCarrier(self.native.engine, lane) if self.native is not None else None

    def on_data(self, source: tuple[str, int], data: bytes, circuit_id: int | None) -> None:
        """Take a data message that came by py-ipv8's way: prefix (22), id, circuit id (4), the rest of the message."""
        if circuit_id is not None:
            self.on_data_message(source, circuit_id, data[MESSAGE_ID_AT:PAYLOAD_AT] + data[AFTER_CIRCUIT_ID:])

    def on_data_message(self, source: tuple[str, int], circuit_id: int, message: bytes) -> None:
        """Take a decrypted data message: for us over our circuit, or to leave from our exit (py-ipv8's on_data)."""
        try:
            origin_at = packed_address_end(message, 1)
            data_at = packed_address_end(message, origin_at)
            destination = unpack_address(message[1:origin_at])
            origin = unpack_address(message[origin_at:data_at])
        except ValueError:
            self.counters[DropReason.CELL_DATA_MALFORMED] += 1
            return
        data = message[data_at:]
        circuit = self.circuits.get(circuit_id)
        if circuit is not None and source != circuit.hop.address:
            self.counters[DropReason.CIRCUIT_FOREIGN_SOURCE] += 1
        elif circuit is not None and not _may_carry(circuit):
            self.counters[DropReason.CIRCUIT_NOT_READY] += 1
        elif circuit is not None and circuit.ctype in END_TO_END:
            self.on_datagram(circuit, encode_address(*end_to_end_address(circuit_id)), data)
        elif circuit is not None:
            if data.startswith(self._prefix):
                self.message_from_outside(circuit, origin, data)
            elif end_to_end_circuit_id(origin[0], origin[1]) is not None:
                # An exit that gives itself out for the other end of a circuit of ours.
                self.counters[DropReason.CIRCUIT_FOREIGN_SOURCE] += 1
            elif circuit.ctype == CIRCUIT_TYPE_DATA:
                self._hand_in(circuit, message[origin_at:data_at], data)
            else:
                self.datagram_from_outside(circuit, origin, data)
        elif destination != NOWHERE:
            self.exit_data(circuit_id, source, destination, data)
        else:
            self.counters[DropReason.EXIT_DESTINATION_REFUSED] += 1

    def _hand_in(self, circuit: Circuit, origin: bytes, data: bytes) -> None:
        try:
            address = encoded(origin)
        except ValueError:  # an exit made up a name
            self.counters[DropReason.ORIGIN_MALFORMED] += 1
        else:
            self.on_datagram(circuit, address, data)

    def _hand_on_raw_data(self, circuit: Circuit, address: bytes, data: bytes) -> None:
        self.on_raw_data(circuit, unpack_address(packed(address)), data)

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

    async def update_statistics(self) -> None:
        """Bring what the engine counted into circuits and routes."""
        self.crypto_endpoint.update_statistics()

    def dropped(self) -> Counter[str]:
        """Return the dropped datagrams by reason, since the start."""
        of_the_engine: Counter[str] = self.crypto_endpoint.dropped()
        return self.counters + of_the_engine


def _may_carry(circuit: Circuit) -> bool:
    """Return whether all hops are there, and the other end can read what is sent, where there is one."""
    return bool(circuit.state == CIRCUIT_STATE_READY and (circuit.ctype not in END_TO_END or is_linked(circuit)))
