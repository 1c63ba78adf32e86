"""A TunnelCommunity whose circuits live in the children of a pool."""

import asyncio
import logging
import secrets
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from ipv8.keyvault.crypto import default_eccrypto
from ipv8.messaging.anonymization.crypto import TunnelCrypto
from ipv8.messaging.anonymization.hidden_services import HiddenTunnelCommunity
from ipv8.messaging.anonymization.tunnel import (
    CIRCUIT_STATE_CLOSING,
    CIRCUIT_STATE_READY,
    CIRCUIT_TYPE_DATA,
    PEER_FLAG_EXIT_BT,
    Circuit,
    Hop,
)
from ipv8.messaging.interfaces.udp.endpoint import UDPv4Address, UDPv6Address
from ipv8.peer import Peer
from ipv8.peerdiscovery.network import Network
from ipv8.taskmanager import TaskManager

from overlay.backoff import Backoff
from overlay.community import PoolTunnelSettings
from overlay.config import SLOT_SHIFT, HostPort, OverlayConfig, slot_of
from overlay.discovery import MAX_PEERS
from rpc import control_pb2 as pb
from rpc.errors import CallError
from rpc.sync import CarriedState, CircuitState, PeerState
from socks5.address import Address, AddressType, Socks5Error, decode_address, encode_address
from tunnel_pool.hidden import PooledHiddenServices, peer_message
from tunnel_pool.pool.policy import Load, least_loaded
from tunnel_pool.pool.pool import ProcessPool
from tunnel_pool.questions import PooledQuestions
from tunnel_pool.speed_test import PooledEndpoint
from tunnel_pool.surface import refuse_the_rest

BUILD_INTERVAL_S = 0.5
SYNC_INTERVAL_S = 0.25
MAX_KNOWN_PEERS = 20

logger = logging.getLogger(__name__)


@refuse_the_rest
class PooledTunnelCommunity(PooledHiddenServices, PooledQuestions, HiddenTunnelCommunity):
    """A HiddenTunnelCommunity to its callers; circuits are mirrors, kept in step by RPC_SYNC.

    What it offers, name by name: tunnel_pool/surface.py.
    """

    settings_class = PoolTunnelSettings

    def __init__(
        self,
        config: OverlayConfig,
        slots: Sequence[int],
        max_circuits: int,
        command: Sequence[str] | None = None,
        own_keys: Mapping[int, bytes] | None = None,
    ) -> None:
        """`config` is what each child gets, but for its slot and port, and its key where `own_keys` has one."""
        PooledHiddenServices.__init__(self)
        PooledQuestions.__init__(self)
        TaskManager.__init__(self)
        self._config = config
        self._own_keys = own_keys or {}
        self._public_keys = {
            slot: default_eccrypto.key_from_private_bin(key).pub().key_to_bin() for slot, key in self._own_keys.items()
        }
        self.logger = logger
        self.crypto = TunnelCrypto()
        self.my_peer = Peer(default_eccrypto.key_from_private_bin(config.member_key))
        self.community_id = config.community_id
        self._prefix = b"\x00" + self.version + config.community_id
        self.ipv8 = self.endpoint = self.dht_provider = None
        self.max_peers = MAX_PEERS * len(slots)
        self.anonymize = False
        self.settings = PoolTunnelSettings(my_peer=self.my_peer, endpoint=self.endpoint, network=Network())
        self.settings.max_circuits = max_circuits
        self.settings.peer_flags = set(config.peer_flags)
        self.crypto_endpoint = PooledEndpoint(self)
        self.circuits: dict[int, Circuit] = {}
        self.circuits_needed: dict[int, int] = defaultdict(int)
        self.candidates: dict[Peer, list[int]] = {}
        self.on_raw_data: Callable[[Circuit, tuple[str, int], bytes], None] = lambda circuit, origin, data: None
        self.on_circuit_removed: Callable[[Circuit, str], None] = lambda circuit, reason: None
        self.on_orphans: Callable[[int, list[bytes]], None] = lambda hops, destinations: None
        self.watchers: list[Callable[[], None]] = []  # called when children or their circuits have changed
        self.drops: Counter[str] = Counter()
        self._peers: dict[bytes, Peer] = {}
        self._backoffs: defaultdict[int, Backoff] = defaultdict(Backoff)
        self._builder: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self.pool = ProcessPool(slots, self._create_message, self, command)

    async def start(self) -> None:
        """Return when the first child is ready. Raises UserError when none can start; `unload` it then, too."""
        await self.pool.start()
        self._build_regularly()

    async def unload(self) -> None:
        """End all children; their circuits go with them."""
        if self._builder is not None:
            self._builder.cancel()
        self.circuits_needed.clear()
        await self.pool.stop()
        await self.shutdown_task_manager()

    def dropped(self) -> Counter[str]:
        """Dropped datagrams by reason, here and in the children."""
        return self.pool.dropped() + self.drops

    def carried(self) -> CarriedState:
        return self.pool.carried()

    def failure(self) -> str | None:
        return self.pool.failure()

    # Circuits

    def create_circuit(
        self,
        goal_hops: int,
        ctype: str = CIRCUIT_TYPE_DATA,
        exit_flags: Collection[int] | None = None,
        required_exit: Peer | None = None,
        info_hash: bytes | None = None,
    ) -> Circuit | None:
        """Have the least loaded child build a circuit; None when no child knows the peers for it."""
        if required_exit is not None and required_exit.mid == self.my_peer.mid:
            return None
        if exit_flags is not None:
            flags = set(exit_flags)
        else:
            flags = {PEER_FLAG_EXIT_BT} if ctype == CIRCUIT_TYPE_DATA else set()
        slot = self._slot_for_circuit(flags, required_exit)
        if slot is None:
            return None
        circuit_id = self._unused_circuit_id(slot)
        circuit = Circuit(circuit_id, goal_hops, ctype, required_exit, info_hash)
        self.circuits[circuit_id] = circuit
        message = pb.BuildCircuit(
            circuit_id=circuit_id,
            goal_hops=goal_hops,
            ctype=ctype,
            has_exit_flags=exit_flags is not None,
            exit_flags=exit_flags or (),
            infohash=info_hash or b"",
        )
        if required_exit is not None:
            message.required_exit.CopyFrom(peer_message(required_exit))
        self.pool.call(slot, "circuit", message).add_done_callback(
            lambda future: self._on_circuit_answered(circuit, future)
        )
        return circuit

    def remove_circuit(
        self, circuit_id: int, additional_info: str = "", remove_now: bool = False, destroy: bool | int = False
    ) -> "asyncio.Future[Any]":
        """Close here at once and have the child remove it."""
        circuit = self.circuits.get(circuit_id)
        if circuit is None:
            logger.warning("Cannot remove unknown circuit %08x", circuit_id)
            done = self._loop.create_future()
            done.set_result(None)
            return done
        circuit.close(additional_info)
        return self._loop.create_task(self._remove_circuit(circuit, additional_info, int(destroy)))

    async def _remove_circuit(self, circuit: Circuit, reason: str, destroy_reason: int) -> None:
        message = pb.RemoveCircuit(circuit_id=circuit.circuit_id, reason=reason[:200], destroy_reason=destroy_reason)
        try:
            await self.pool.call(slot_of(circuit.circuit_id), "remove_circuit", message)
        except (CallError, KeyError) as error:
            logger.info("Circuit %08x is removed here alone: %s", circuit.circuit_id, error)
        self._forget_circuit(circuit.circuit_id, reason)

    def do_circuits(self) -> None:
        """Build what is wanted and missing."""
        now_s = time.monotonic()
        for hops, wanted in self.circuits_needed.items():
            if not self._backoffs[hops].is_due(now_s):
                continue
            missing = wanted - len(self.find_circuits(state=None, hops=hops))
            for _ in range(max(missing, self._owed_to_successors(hops, wanted))):
                if self.create_circuit(hops) is None:
                    break

    def _owed_to_successors(self, hops: int, wanted: int) -> int:
        """Circuits that children which replace dead ones are short of their share.

        The survivors were given the dead one's circuits at once; without more
        than are wanted, its successor would stand idle.
        """
        able = self._able_slots({PEER_FLAG_EXIT_BT})
        count = Counter(slot_of(circuit.circuit_id) for circuit in self.find_circuits(state=None, hops=hops))
        share = wanted // max(len(able), 1)
        return sum(max(0, share - count[slot]) for slot in able if self.pool.records[slot].restarts)

    def _build_regularly(self) -> None:
        self.do_circuits()
        self._builder = self._loop.call_later(BUILD_INTERVAL_S, self._build_regularly)

    def _slot_for_circuit(self, exit_flags: set[int], required_exit: Peer | None) -> int | None:
        """The least loaded of the children that know an exit to use."""
        able = self.pool.running() if required_exit is not None else self._able_slots(exit_flags)
        loads = {slot: [0, 0] for slot in able}
        recent_s = time.time() - 5
        for circuit in self.circuits.values():
            load = loads.get(slot_of(circuit.circuit_id))
            if load is not None and circuit.state != CIRCUIT_STATE_CLOSING:
                load[0] += 1
                load[1] += circuit.bytes_down + circuit.bytes_up if circuit.last_activity > recent_s else 0
        return least_loaded(Load(count, recent, slot) for slot, (count, recent) in loads.items())

    def _able_slots(self, exit_flags: set[int]) -> list[int]:
        """The children that know an exit with these flags."""
        return [
            slot
            for slot in self.pool.running()
            if any(exit_flags <= set(peer.flags) for peer in self.pool.pictures[slot].candidates.values())
        ]

    def _unused_circuit_id(self, slot: int) -> int:
        while True:
            circuit_id = slot << SLOT_SHIFT | secrets.randbits(SLOT_SHIFT)
            if circuit_id not in self.circuits:
                return circuit_id

    def _on_circuit_answered(self, circuit: Circuit, future: "asyncio.Future[Any]") -> None:
        error = future.exception()
        if error is not None:
            logger.info("Circuit %08x was not built: %s", circuit.circuit_id, error)
            self._forget_circuit(circuit.circuit_id, str(error))

    def _forget_circuit(self, circuit_id: int, reason: str) -> None:
        circuit = self.circuits.pop(circuit_id, None)
        if circuit is not None:
            if len(circuit.hops) < circuit.goal_hops:
                self._backoffs[circuit.goal_hops].failed(time.monotonic())
            circuit.close(reason)
            self.on_circuit_removed(circuit, reason)
            self._children_changed()

    # Datagrams

    def slots_with_circuits(self, hops: int) -> set[int]:
        """The children that can carry a new client's datagrams."""
        return {slot_of(circuit.circuit_id) for circuit in self.find_circuits(hops=hops)}

    def send_data(
        self,
        target: tuple[str, int],
        circuit_id: int,
        dest_address: tuple[str, int],
        source_address: tuple[str, int],
        data: bytes,
    ) -> None:
        """Hand the datagram to the child that has the circuit; target and source are its business."""
        if circuit_id not in self.circuits:
            self.drops["unknown_circuit"] += 1
            return
        try:
            self.pool.send_datagram(slot_of(circuit_id), circuit_id, encode_address(*dest_address), data)
        except ValueError:
            self.drops["datagram_malformed"] += 1

    def datagram_received(self, slot: int, circuit_id: int, address: bytes, payload: bytes) -> None:
        circuit = self.circuits.get(circuit_id)
        if circuit is None:
            self.drops["unknown_circuit"] += 1
            return
        try:
            origin = decode_address(address)
        except Socks5Error:
            self.drops["datagram_malformed"] += 1
            return
        self.on_raw_data(circuit, _py_ipv8_address(origin), payload)

    def _children_changed(self) -> None:
        for watcher in self.watchers:
            watcher()

    # What the pool tells (PoolListener)

    def child_ready(self, slot: int) -> None:
        logger.info("Child %d is ready", slot)
        self._share_swarms()
        self._children_changed()

    def child_gone(self, slot: int, how: str) -> None:
        for circuit_id in [circuit_id for circuit_id in self.circuits if slot_of(circuit_id) == slot]:
            self._forget_circuit(circuit_id, f"child {slot} is gone: {how}")
        self._share_swarms()
        self._children_changed()

    def orphaned(self, slot: int, message: pb.Orphans) -> None:
        self.on_orphans(message.hops, list(message.destinations))

    def circuit_died(self, slot: int, message: pb.CircuitDead) -> None:
        circuit = self.circuits.get(message.circuit_id)
        if circuit is not None:
            circuit.bytes_up, circuit.bytes_down = message.bytes_up, message.bytes_down
        self._forget_circuit(message.circuit_id, message.reason)

    def circuits_changed(self, slot: int, circuit_ids: Sequence[int]) -> None:
        picture = self.pool.pictures[slot]
        for circuit_id in circuit_ids:
            self._mirror(picture.circuits[circuit_id])
        if circuit_ids:
            self._children_changed()

    def swarms_changed(self, slot: int, infohashes: Sequence[bytes]) -> None:
        self.mirror_swarms(self.pool.pictures[slot], infohashes)

    def _mirror(self, state: CircuitState) -> None:
        circuit = self.circuits.get(state.circuit_id)
        if circuit is None:
            circuit = Circuit(state.circuit_id, state.goal_hops, state.ctype, info_hash=state.infohash or None)
            self.circuits[state.circuit_id] = circuit
        circuit.bytes_up, circuit.bytes_down = state.bytes_up, state.bytes_down
        circuit.creation_time, circuit.last_activity = state.creation_time, state.last_activity
        was_linked, circuit.e2e = circuit.e2e, state.e2e
        circuit.unverified_hop = self._hop(state.unverified_hop) if state.unverified_hop else None
        for hop in state.hops[len(circuit.hops) :]:
            circuit.add_hop(self._hop(hop))
        if circuit.state == CIRCUIT_STATE_READY:
            self._backoffs[circuit.goal_hops].succeeded()
        if state.closing and circuit.state != CIRCUIT_STATE_CLOSING:
            circuit.close("closing")
        elif circuit.e2e and not was_linked:
            self._end_to_end_linked(circuit)

    def candidates_changed(self) -> None:
        """Merge what the children know; the dict stays the same object, as callers of py-ipv8 expect."""
        merged: dict[Peer, list[int]] = {}
        for picture in self.pool.pictures.values():
            for candidate in picture.candidates.values():
                merged[self.peer_of(candidate)] = list(candidate.flags)
        self.candidates.clear()
        self.candidates.update(merged)

    @property
    def network(self) -> Network:
        """The candidates as py-ipv8 keeps peers; made when it is asked for."""
        network = Network()
        for peer in self.candidates:
            network.add_verified_peer(peer)
        return network

    def get_peers(self) -> list[Peer]:
        return list(self.candidates)

    def _hop(self, hop: PeerState) -> Hop:
        return Hop(self.peer_of(hop), flags=list(hop.flags))

    def peer_of(self, state: PeerState) -> Peer:
        """Parsing a key is slow, so peers are kept while they are candidates or hops of late."""
        peer = self._peers.get(state.public_key)
        if peer is None:
            if len(self._peers) > 4096:
                self._peers.clear()
            peer = self._peers[state.public_key] = Peer(state.public_key)
        if state.port:
            peer.add_address(UDPv4Address(state.host, state.port))
        return peer

    def _create_message(self, slot: int) -> pb.Create:
        """RPC_CREATE for a child: what the node is, and whom its other children know."""
        config = self._config
        port = config.listen.port + slot if config.listen.port else 0
        known = {HostPort(*peer.address) for peer in self.candidates}
        return pb.Create(
            slot=slot,
            member_key=self._own_keys.get(slot, config.member_key),
            sibling_keys=[key for other, key in self._public_keys.items() if other != slot],
            listen=pb.Address(host=config.listen.host, port=port),
            community_id=config.community_id,
            peer_flags=config.peer_flags,
            bootstrap_default=config.bootstrap_default,
            bootstrap=[pb.Address(host=host, port=port) for host, port in config.bootstrap],
            allow_private=config.allow_private,
            known_peers=[pb.Address(host=host, port=port) for host, port in list(known)[:MAX_KNOWN_PEERS]],
            sync_interval_s=SYNC_INTERVAL_S,
            log_level=logging.getLevelName(logging.getLogger().getEffectiveLevel()),
            max_joined_circuits=config.max_joined_circuits,
            engine=config.engine.value,
        )


def _py_ipv8_address(address: Address) -> UDPv4Address | UDPv6Address:
    if address.kind is AddressType.IPV6:
        return UDPv6Address(address.host, address.port)
    return UDPv4Address(address.host, address.port)
