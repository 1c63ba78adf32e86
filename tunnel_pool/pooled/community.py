"""A TunnelCommunity whose circuits live in the children of a pool."""

import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from google.protobuf.message import Message
from ipv8.keyvault.crypto import default_eccrypto
from ipv8.messaging.anonymization.crypto import TunnelCrypto
from ipv8.messaging.anonymization.hidden_services import HiddenTunnelCommunity
from ipv8.messaging.anonymization.tunnel import (
    CIRCUIT_STATE_CLOSING,
    CIRCUIT_STATE_READY,
    Circuit,
)
from ipv8.peer import Peer
from ipv8.peerdiscovery.network import Network
from ipv8.taskmanager import TaskManager

from tunnel_pool.overlay.community import LocalTunnelSettings
from tunnel_pool.overlay.config_messages import admission_message, config_message
from tunnel_pool.overlay.discovery import MAX_PEERS
from tunnel_pool.overlay.ground.admission import Admission
from tunnel_pool.overlay.ground.config import HostPort, OverlayConfig, slot_of
from tunnel_pool.overlay.ground.end_to_end import secret_in_use, set_known_as
from tunnel_pool.overlay.ground.exit_rules import ExitRules
from tunnel_pool.overlay.ground.lanes import Lane, asked_hops, set_detour, set_group
from tunnel_pool.overlay.ground.streams import Guest
from tunnel_pool.overlay.paths.exit_scores import ExitScores
from tunnel_pool.overlay.paths.guards import Guards
from tunnel_pool.overlay.serving.limits import LimitsMemory
from tunnel_pool.pool.command import StartMethod
from tunnel_pool.pool.policy import FINAL_STATES
from tunnel_pool.pool.pool import ProcessPool
from tunnel_pool.pool.scaling import Scaling
from tunnel_pool.pooled.circuits import PooledCircuits
from tunnel_pool.pooled.datagrams import PooledDatagrams
from tunnel_pool.pooled.exit_requests import PooledExitRequests
from tunnel_pool.pooled.hidden_services import PooledHiddenServices
from tunnel_pool.pooled.neighbours import PooledNeighbours
from tunnel_pool.pooled.shared_port import SharedPort
from tunnel_pool.pooled.speed_test import PooledEndpoint
from tunnel_pool.pooled.surface import refuse_the_rest
from tunnel_pool.rpc import control_pb2 as pb
from tunnel_pool.rpc.errors import RemoteError
from tunnel_pool.rpc.sockets import AS_NUMBERS, LIMITS_MEMORY, HasDescriptor
from tunnel_pool.rpc.sync import CarriedState, CircuitState

SYNC_INTERVAL_S = 0.25
MAX_KNOWN_PEERS = 20
TELL_SCORES_S = 5.0  # how long children wait to be told how exits have served the others

logger = logging.getLogger(__name__)


@refuse_the_rest
class PooledTunnelCommunity(
    PooledDatagrams, PooledCircuits, PooledNeighbours, PooledHiddenServices, PooledExitRequests, HiddenTunnelCommunity
):
    """Acts as a HiddenTunnelCommunity; its circuits are mirrors, kept in step by RPC_SYNC.

    What it offers, name by name: tunnel_pool/pooled/surface.py.
    """

    settings_class = LocalTunnelSettings

    def __init__(
        self,
        config: OverlayConfig,
        slots: Sequence[int],
        max_circuits: int,
        *,
        command: Sequence[str] | None = None,
        own_keys: Mapping[int, bytes] | None = None,
        start_method: StartMethod = StartMethod.SPAWN,
        nice: int = 0,
        shares_port: bool = False,
        limits: LimitsMemory | None = None,
        guards: Guards | None = None,
        as_database: HasDescriptor | None = None,
    ) -> None:
        """Prepare a pool whose children get `config`, each with its slot and, unless they share one (Linux), a port.

        `own_keys` maps slots to private keys, which children with ports of their own use in place of the config's.
        """
        PooledDatagrams.__init__(self)
        PooledCircuits.__init__(self)
        PooledNeighbours.__init__(self)
        PooledHiddenServices.__init__(self)
        PooledExitRequests.__init__(self)
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
        self.decode_map: dict[int, object] = {}
        self.settings = LocalTunnelSettings(my_peer=self.my_peer, endpoint=self.endpoint, network=Network())
        self.settings.max_circuits = max_circuits
        self.settings.peer_flags = set(config.peer_flags)
        self.on_circuit_removed: Callable[[Circuit, str], None] = lambda circuit, reason: None
        self.on_orphans: Callable[[Lane, list[bytes]], None] = lambda lane, destinations: None
        self.on_guest: Callable[[Guest], None] = lambda guest: None
        self._shares_port = shares_port
        self._limits = limits
        self._as_database = as_database  # the file of the database of AS numbers
        self._guards = guards  # the guards that children with a shared port use
        self.scaling: Scaling | None = None  # stopped with us
        self.exit_scores = ExitScores()  # of all children
        self.pool = ProcessPool(slots, self._create_message, self, command, start_method, nice=nice)
        self.crypto_endpoint = PooledEndpoint(self.pool, self.register_anonymous_task)
        self._told_share = self._admission_share()

    async def start(self) -> None:
        """Return when the first child is ready. Raises UserError when none can start; `unload` it then, too."""
        if self._shares_port:
            self.port = await SharedPort.open(self._config, self.pool, self.pool.records, self._guards)
            front = self.port.front
            front.hops_in_use = lambda: {circuit.hop.peer for circuit in self.circuits.values() if circuit.hop}
            front.lacks_circuits = lambda: any(self.tunnels_ready(*lane) < 1 for lane in self.wanted_circuits())
        await self.pool.start()
        if self.pool.running():  # the pool may have been stopped meanwhile
            self._build_regularly()

    async def unload(self) -> None:
        """End all children; their circuits go with them."""
        if self.scaling is not None:
            self.scaling.stop()
        if self._builder is not None:
            self._builder.cancel()
        self.circuits_needed.clear()
        self.groups_needed.clear()
        await self.pool.stop()
        if self.port is not None:
            await self.port.close()
        await self.shutdown_task_manager()

    async def update_statistics(self) -> None:
        await self.pool.told()

    def dropped(self) -> Counter[str]:
        """Return the dropped datagrams by reason, here and in the children."""
        return self.pool.dropped() + self.drops + (self.port.dropped() if self.port is not None else Counter())

    def carried(self) -> CarriedState:
        carried = self.pool.carried()
        return carried if self.port is None else carried.plus(self.port.front.carried())

    def failure(self) -> str | None:
        return self.pool.failure()

    def listening(self) -> list[tuple[str, int]]:
        found = (self.pool.listen_address(slot) for slot in self.pool.records)
        return list(dict.fromkeys(address for address in found if address))

    def _children_changed(self) -> None:
        for watcher in self.watchers:
            watcher()

    # More children and fewer

    def drain(self, slot: int) -> None:
        """Give this child nothing new; what it carries it goes on carrying (`ProcessPool.end` ends it)."""
        self.pool.drain(slot)
        self._tell_of_draining(slot, on=True)

    def resume(self, slot: int) -> None:
        """Undo `drain`: the child takes new work, and gets back the swarms whose circuits it still has."""
        self.pool.resume(slot)
        self._tell_of_draining(slot, on=False)
        self._take_swarms_back(slot)

    def _tell_of_draining(self, slot: int, on: bool) -> None:
        self.pool.tell(slot, "drain", pb.Drain(on=on))
        if self.port is not None:
            self.port.pool_changed()
        self._share_admission()
        self._share_swarms()
        self._children_changed()

    def set_exit_rules(self, rules: ExitRules) -> None:
        """Apply these rules from now on, in children that are yet to come, too."""
        self._config = replace(self._config, exit_rules=rules)
        self._tell_all("set_exit_rules", pb.SetExitRules(rules=rules.pack()))

    def set_admission(self, admission: Admission) -> None:
        """Apply this admission from now on, for the node as a whole."""
        self._config = replace(self._config, admission=admission)
        self._share_admission()

    def _share_admission(self, newcomer: int | None = None) -> None:
        """Tell the children their share of what the node admits, as it changes with their number."""
        before, self._told_share = self._told_share, self._admission_share()
        message = pb.SetAdmission(admission=admission_message(self._told_share))
        if self._told_share != before:
            self._tell_all("set_admission", message)
        elif newcomer is not None:
            self.pool.tell(newcomer, "set_admission", message)

    def _admission_share(self) -> Admission:
        """Return a child's share of what the node admits."""
        records = self.pool.records.values()
        joining = sum(record.state not in FINAL_STATES and not record.unwanted for record in records)
        return self._config.admission.share(max(1, joining))

    def _tell_all(self, name: str, message: Message) -> None:
        for slot in self.pool.working():
            self.pool.tell(slot, name, message)

    # What the pool tells (PoolListener)

    def child_ready(self, slot: int) -> None:
        logger.info("Child %d is ready", slot)
        # The child has missed the changes that were sent to all while it started.
        self.pool.tell(slot, "set_exit_rules", pb.SetExitRules(rules=self._config.exit_rules.pack()))
        self._share_admission(newcomer=slot)
        self.pool.tell(slot, "rate_exits", self._ratings())
        if self.port is not None:
            self.port.child_ready(slot)
        self._share_swarms()
        self._children_changed()

    def child_gone(self, slot: int, how: str) -> None:
        if self.port is not None:
            self.port.child_gone(slot)
        for circuit_id in [circuit_id for circuit_id in self.circuits if slot_of(circuit_id) == slot]:
            self._forget_circuit(circuit_id, f"child {slot} is gone: {how}")
        self._share_admission()
        self._share_swarms()
        self._children_changed()

    def orphaned(self, slot: int, message: pb.Orphans) -> None:
        self.on_orphans(Lane(message.hops, message.group), list(message.destinations))

    def exit_heard(self, message: pb.ExitHeard) -> None:
        """Hear how an exit has served a child, and tell all of them in a while."""
        if message.doubted:
            self._tell_all("rate_exits", pb.RateExits(doubted=[message.mid]))
            return
        before = self.exit_scores.changes
        self.exit_scores.heard(message.mid, message.answered, time.time())
        if self.exit_scores.changes != before and not self.is_pending_task_active("tell scores"):
            self.register_task("tell scores", self._tell_scores, delay=TELL_SCORES_S)

    def _tell_scores(self) -> None:
        self._tell_all("rate_exits", self._ratings())

    def _ratings(self) -> pb.RateExits:
        scores = self.exit_scores.known(time.time())
        return pb.RateExits(ratings=[pb.RateExits.Rating(mid=mid, score=score) for mid, score in scores.items()])

    def refuse_guest(self, guest: Guest) -> None:
        """Tell the guests that are known as this one that no client will connect (tunnel_pool.contract)."""
        slot = slot_of(guest.circuit.circuit_id)
        if slot in self.pool.working():
            self.pool.tell(slot, "refuse_guest", pb.RefuseGuest(known_as=guest.known_as))

    def guest_came(self, message: pb.StreamGuest) -> None:
        if (circuit := self.circuits.get(message.circuit_id)) is not None:
            infohash = message.infohash if message.HasField("infohash") else None
            self.on_guest(Guest(circuit, message.known_as, infohash))

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

    def routes_changed(self, slot: int) -> None:
        if self.port is not None:
            self.port.introduced(slot)

    async def called(self, slot: int, name: str, message: Any) -> Message:
        if self.port is None:
            raise RemoteError(pb.ERROR_UNIMPLEMENTED, f"call {name} is for children that share a port")
        return await self.port.called(slot, name, message)

    def swarms_changed(self, slot: int, infohashes: Sequence[bytes]) -> None:
        self.mirror_swarms(self.pool.pictures[slot], infohashes)

    def _mirror(self, state: CircuitState) -> None:
        circuit = self.circuits.get(state.circuit_id)
        if circuit is None:
            circuit = Circuit(state.circuit_id, state.goal_hops, state.ctype, info_hash=state.infohash or None)
            set_group(circuit, state.group)
            self.circuits[state.circuit_id] = circuit
        circuit.bytes_up, circuit.bytes_down = state.bytes_up, state.bytes_down
        circuit.creation_time, circuit.last_activity = state.creation_time, state.last_activity
        circuit.streams = state.streams
        circuit.goal_hops = state.goal_hops  # one more than was asked for where the child makes a detour
        set_detour(circuit, state.detour)
        set_known_as(circuit, state.known_as)
        was_linked, circuit.e2e = circuit.e2e, state.e2e
        circuit.unverified_hop = self._hop(state.unverified_hop) if state.unverified_hop else None
        for hop in state.hops[len(circuit.hops) :]:
            circuit.add_hop(self._hop(hop))
        if circuit.state == CIRCUIT_STATE_READY:
            self._backoffs[asked_hops(circuit)].succeeded()
        if state.closing and circuit.state != CIRCUIT_STATE_CLOSING:
            circuit.close("closing")
        elif circuit.e2e and not was_linked:
            self._end_to_end_linked(circuit)

    def _create_message(self, slot: int) -> pb.Create:
        """Return RPC_CREATE for a child: what the node is, and whom its other children know."""
        config = self._config
        port = config.listen.port + slot if config.listen.port else 0
        known = dict.fromkeys([*(HostPort(*peer.address) for peer in self.candidates), *config.known_peers])
        own_keys = {} if self._shares_port else self._public_keys
        message = config_message(
            replace(
                config,
                slot=slot,
                member_key=self._own_keys[slot] if slot in own_keys else config.member_key,
                siblings=frozenset(key for other, key in own_keys.items() if other != slot),
                listen=HostPort(config.listen.host, port),
                known_peers=tuple(known)[:MAX_KNOWN_PEERS],
                admission=self._admission_share(),
            )
        )
        message.sync_interval_s = SYNC_INTERVAL_S
        message.log_level = logging.getLevelName(logging.getLogger().getEffectiveLevel())
        message.end_to_end_secret = secret_in_use()
        if self._limits is not None:
            message.limited = True
            with contextlib.suppress(OSError):
                self.pool.give(slot, LIMITS_MEMORY, self._limits)
        if self._as_database is not None:
            message.as_numbers = True
            with contextlib.suppress(OSError):
                self.pool.give(slot, AS_NUMBERS, self._as_database)
        if self.port is not None:
            self.port.prepare_child(slot, message)
        return message
