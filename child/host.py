"""The child's work: a TunnelCommunity between the control and the data stream."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from ipv8.keyvault.crypto import default_eccrypto
from ipv8.messaging.anonymization.tunnel import Circuit
from ipv8.messaging.interfaces.udp.endpoint import UDPv4Address
from ipv8.peer import Peer

from child.control import ControlStream
from child.data_path import DataPath, open_data_path
from child.snapshot import take_snapshot
from overlay.community import PoolTunnelCommunity
from overlay.config import COMMUNITY_ID_BYTES, INFOHASH_BYTES, MAX_HOPS, HostPort, OverlayConfig, slot_of
from overlay.hidden import WatchedSwarm
from overlay.http import HttpError, NoHttpExitError
from overlay.node import open_overlay, socket_warning
from overlay.speed_test import Sample, run_speed_test
from overlay.udp import CannotBindError, receive_buffer_bytes
from packet_engine import EngineChoice, EngineMissingError
from rpc import control_pb2 as pb
from rpc.descriptors import SOCKETS
from rpc.errors import RemoteError
from rpc.sockets import SocketsTaken
from rpc.sync import SyncEncoder

MIN_SYNC_INTERVAL_S = 0.05
IDLE_SYNC_INTERVAL_S = 1.0  # reached by doubling while nothing changes
ROUTES_INTERVAL_S = 1.0  # others' circuits and our swarms: nobody waits for them
ORPHANS_PER_EVENT = 1024

logger = logging.getLogger(__name__)


class ChildHost:
    """Owns the community; `on_lost(why)` is called when the main process can't be talked to any more."""

    def __init__(self, on_lost: Callable[[str], object]) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_lost = on_lost
        self._community: PoolTunnelCommunity | None = None
        self._encoder = SyncEncoder()
        self._loop_delay_s = 0.0
        self._next_routes_s = 0.0
        self._sync_interval_s = IDLE_SYNC_INTERVAL_S
        self._pause_s = 0.0
        self._ticker: asyncio.TimerHandle | None = None
        self._data_path: DataPath | None = None
        self._sockets = SocketsTaken(SOCKETS)
        self._control = ControlStream(
            {
                "create": self._on_create,
                "monitor": self._on_monitor,
                "circuit": self._on_circuit,
                "remove_circuit": self._on_remove_circuit,
                "drain": self._on_drain,
                "heartbeat": self._on_heartbeat,
                "associate": self._on_associate,
                "dissociate": self._on_dissociate,
                "steer": self._on_steer,
                "remove_route": self._on_remove_route,
                "introduce": self._on_introduce,
                "estimate_swarm": self._on_estimate_swarm,
                "speed_test": self._on_speed_test,
                "http_request": self._on_http_request,
                "find_dht_node": self._on_find_dht_node,
            },
            on_lost,
        )

    async def open(self) -> None:
        """Start listening to the main process."""
        await self._control.open()

    async def close(self) -> None:
        """Tell the neighbours that our circuits end."""
        if self._ticker is not None:
            self._ticker.cancel()
        if self._community is not None:
            await self._community.unload()

    # Calls of the main process

    async def _on_create(self, message: pb.Create) -> pb.Created:
        if self._community is not None:
            raise RemoteError(pb.ERROR_BAD_REQUEST, "already created")
        if len(message.community_id) != COMMUNITY_ID_BYTES:
            raise RemoteError(pb.ERROR_BAD_REQUEST, f"a community id has {COMMUNITY_ID_BYTES} bytes")
        logging.getLogger().setLevel(message.log_level or logging.WARNING)
        try:
            community = await open_overlay(_config(message))
        except (CannotBindError, EngineMissingError) as error:
            raise RemoteError(pb.ERROR_CANNOT_START, str(error)) from None
        self._data_path = open_data_path(community, self._on_lost)
        community.on_circuit_removed = self._on_circuit_removed
        community.on_orphans = self._on_orphans
        self._community = community
        if warning := socket_warning(community):
            self._control.send_event("notify", pb.Notify(level=pb.Notify.WARNING, text=warning))
        community.on_circuits_changed = self._sync_soon
        community.cancel_pending_task("statistics")  # each sync reads them
        self._sync_interval_s = max(message.sync_interval_s, MIN_SYNC_INTERVAL_S)
        self._tick(self._loop.time())
        host, port = community.endpoint.get_address()
        return pb.Created(
            listen=pb.Address(host=host, port=port),
            receive_buffer_bytes=receive_buffer_bytes(community.endpoint.sock),
        )

    async def _on_monitor(self, message: pb.Monitor) -> pb.Monitored:
        active = (pb.SWARM_STATE_DOWNLOADING, pb.SWARM_STATE_SEEDING)
        self._created().watch(
            WatchedSwarm(swarm.infohash, swarm.hops, swarm.state == pb.SWARM_STATE_SEEDING)
            for swarm in message.swarms
            if swarm.state in active and len(swarm.infohash) == INFOHASH_BYTES and 0 < swarm.hops <= MAX_HOPS
        )
        return pb.Monitored()

    async def _on_circuit(self, message: pb.BuildCircuit) -> pb.CircuitAccepted:
        community = self._created()
        if slot_of(message.circuit_id) != community.slot or message.circuit_id in community.circuits:
            raise RemoteError(pb.ERROR_BAD_REQUEST, f"circuit id {message.circuit_id:08x} is not free in this slot")
        arguments: dict[str, Any] = {}
        if message.has_exit_flags:
            arguments["exit_flags"] = list(message.exit_flags)
        if message.HasField("required_exit"):
            arguments["required_exit"] = _peer(message.required_exit)
        circuit = community.create_circuit_with_id(
            message.circuit_id,
            message.goal_hops,
            ctype=message.ctype,
            info_hash=message.infohash or None,
            **arguments,
        )
        if circuit is None:
            raise RemoteError(pb.ERROR_NO_CANDIDATES, f"no peers for a circuit of {message.goal_hops} hops yet")
        return pb.CircuitAccepted()

    async def _on_remove_circuit(self, message: pb.RemoveCircuit) -> pb.CircuitRemoved:
        community = self._created()
        if message.circuit_id not in community.circuits:
            raise RemoteError(pb.ERROR_NO_CIRCUIT, f"no circuit {message.circuit_id:08x}")
        destroy = message.destroy_reason or False
        await community.remove_circuit(message.circuit_id, message.reason, destroy=destroy)
        return pb.CircuitRemoved()

    async def _on_drain(self, message: pb.Drain) -> pb.Drained:
        self._created().drain(message.on)
        return pb.Drained()

    async def _on_heartbeat(self, message: pb.Heartbeat) -> pb.HeartbeatReply:
        if self._ticker is not None and self._ticker.when() - self._loop.time() < IDLE_SYNC_INTERVAL_S / 2:
            due_s = self._ticker.when()
            self._ticker.cancel()  # awake already: an idle child wakes up once a second, not twice
            self._tick(due_s)
        return pb.HeartbeatReply(loop_delay_s=self._loop_delay_s)

    async def _on_associate(self, message: pb.Associate) -> pb.Associated:
        data_path = self._opened_data_path()
        sock = self._sockets.take(message.association_id)
        if sock is None:
            raise RemoteError(pb.ERROR_BAD_REQUEST, f"no socket came for association {message.association_id}")
        data_path.associate(message.association_id, sock, message.hops, (message.client.host, message.client.port))
        return pb.Associated()

    async def _on_dissociate(self, message: pb.Dissociate) -> pb.Dissociated:
        self._opened_data_path().dissociate(message.association_id)
        return pb.Dissociated()

    async def _on_steer(self, message: pb.Steer) -> pb.Steered:
        self._opened_data_path().steer(message.association_id, message.datagram)
        return pb.Steered()

    async def _on_remove_route(self, message: pb.RemoveRoute) -> pb.RouteRemoved:
        community = self._created()
        table = community.exit_sockets if message.exit else community.relay_from_to
        if message.circuit_id not in table:
            kind = "exit" if message.exit else "relay"
            raise RemoteError(pb.ERROR_NO_CIRCUIT, f"no {kind} {message.circuit_id:08x}")
        remove = community.remove_exit_socket if message.exit else community.remove_relay
        await remove(message.circuit_id, message.reason, destroy=message.destroy_reason or False)
        return pb.RouteRemoved()

    async def _on_introduce(self, message: pb.Introduce) -> pb.Introduced:
        community = self._created()
        swarm = community.swarms.get(message.infohash)
        if swarm is None or not swarm.seeding:
            raise RemoteError(pb.ERROR_BAD_REQUEST, "not seeding that swarm here")
        required = _peer(message.required) if message.HasField("required") else None
        await community.create_introduction_point(message.infohash, required)
        return pb.Introduced()

    async def _on_estimate_swarm(self, message: pb.EstimateSwarm) -> pb.SwarmEstimate:
        seeders = await self._created().estimate_swarm_size(message.infohash, message.hops, message.max_requests)
        return pb.SwarmEstimate(seeders=seeders)

    async def _on_speed_test(self, message: pb.SpeedTest) -> pb.SpeedTested:
        community = self._created()
        circuit = community.circuits.get(message.circuit_id)
        if circuit is None:
            raise RemoteError(pb.ERROR_NO_CIRCUIT, f"no circuit {message.circuit_id:08x}")
        sizes = message.request_bytes, message.response_bytes
        try:
            samples = await run_speed_test(community, circuit, message.milliseconds / 1000, sizes, message.window)
        except ValueError as error:
            raise RemoteError(pb.ERROR_BAD_REQUEST, str(error)) from None
        fields = zip(Sample._fields, zip(*samples, strict=True), strict=False)
        return pb.SpeedTested(**dict(fields))

    async def _on_http_request(self, message: pb.HttpRequest) -> pb.HttpResponse:
        destination = message.host, message.port
        try:
            response = await self._created().perform_http_request(destination, message.request, message.hops)
        except NoHttpExitError as error:
            raise RemoteError(pb.ERROR_NO_CANDIDATES, str(error)) from None
        except HttpError as error:
            raise RemoteError(pb.ERROR_FAILED, str(error)) from None
        return pb.HttpResponse(response=response)

    async def _on_find_dht_node(self, message: pb.FindDhtNode) -> pb.DhtNode:
        found = await self._created().find_dht_node(message.name, message.port, message.hops)
        return pb.DhtNode(address=pb.Address(host=found[0], port=found[1]) if found else None)

    def _opened_data_path(self) -> DataPath:
        if self._data_path is None:
            raise RemoteError(pb.ERROR_NOT_READY, "RPC_CREATE comes first")
        return self._data_path

    def _created(self) -> PoolTunnelCommunity:
        if self._community is None:
            raise RemoteError(pb.ERROR_NOT_READY, "RPC_CREATE comes first")
        return self._community

    # What the main process hears unasked

    def _tick(self, due_s: float) -> None:
        """Sync, and be back sooner when something happens than when nothing does."""
        now_s = self._loop.time()
        self._loop_delay_s = max(0.0, now_s - due_s)
        lively = self._sync() or self._created().is_building()
        self._pause_s = self._sync_interval_s if lively else min(2 * self._pause_s, IDLE_SYNC_INTERVAL_S)
        self._schedule_tick(now_s + self._pause_s)

    def _schedule_tick(self, due_s: float) -> None:
        self._ticker = self._loop.call_at(due_s, self._tick, due_s)

    def _sync_soon(self) -> None:
        """Something has begun that the main process waits for."""
        due_s = self._loop.time() + self._sync_interval_s
        if self._ticker is not None and self._ticker.when() > due_s:
            self._ticker.cancel()
            self._schedule_tick(due_s)

    def _sync(self) -> bool:
        """Send what changed, unless the frame before is still waiting: the next one carries it, too."""
        if self._control.unsent_bytes or self._data_path is None:
            return True
        now_s = self._loop.time()
        with_routes = now_s >= self._next_routes_s
        if with_routes:
            self._next_routes_s = now_s + ROUTES_INTERVAL_S
        frame = self._encoder.encode(take_snapshot(self._created(), self._data_path.counters(), with_routes))
        if frame is not None:
            self._control.send_event("sync", frame)
        return frame is not None

    def _on_orphans(self, hops: int, destinations: list[bytes]) -> None:
        for start in range(0, len(destinations), ORPHANS_PER_EVENT):
            some = destinations[start : start + ORPHANS_PER_EVENT]
            self._control.send_event("orphans", pb.Orphans(hops=hops, destinations=some))

    def _on_circuit_removed(self, circuit: Circuit, reason: str) -> None:
        if self._data_path is not None:
            self._data_path.circuit_removed(circuit.circuit_id)
        self._control.send_event(
            "circuit_dead",
            pb.CircuitDead(
                circuit_id=circuit.circuit_id,
                reason=reason,
                bytes_up=circuit.bytes_up,
                bytes_down=circuit.bytes_down,
            ),
        )


def _config(message: pb.Create) -> OverlayConfig:
    return OverlayConfig(
        slot=message.slot,
        member_key=message.member_key,
        listen=HostPort(message.listen.host, message.listen.port),
        peer_flags=frozenset(message.peer_flags),
        community_id=message.community_id,
        bootstrap_default=message.bootstrap_default,
        bootstrap=tuple(HostPort(address.host, address.port) for address in message.bootstrap),
        siblings=frozenset(message.sibling_keys),
        known_peers=tuple(HostPort(address.host, address.port) for address in message.known_peers),
        allow_private=message.allow_private,
        max_joined_circuits=message.max_joined_circuits,
        engine=EngineChoice(message.engine or EngineChoice.AUTO.value),
    )


def _peer(message: pb.PeerInfo) -> Peer:
    key = default_eccrypto.key_from_public_bin(message.public_key)
    return Peer(key, UDPv4Address(message.address.host, message.address.port))
