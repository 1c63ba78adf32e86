"""The child's work: a TunnelCommunity between the control and the data stream."""

import logging
import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ipv8.messaging.anonymization.tunnel import PEER_FLAG_EXIT_BT, PEER_FLAG_EXIT_IPV8

from tunnel_pool.child.confinement import give_up_names
from tunnel_pool.child.control import ControlStream
from tunnel_pool.child.data_path import DataPath, open_data_path
from tunnel_pool.child.reports import Reports
from tunnel_pool.child.sharing import MainByCalls, SharedPortCalls
from tunnel_pool.overlay.community import LocalTunnelCommunity
from tunnel_pool.overlay.config_messages import admission_of, config_of
from tunnel_pool.overlay.ground.config import (
    COMMUNITY_ID_BYTES,
    INFOHASH_BYTES,
    MAX_HOPS,
    slot_of,
)
from tunnel_pool.overlay.ground.end_to_end import use_secret
from tunnel_pool.overlay.ground.exit_rules import ExitRules
from tunnel_pool.overlay.ground.lanes import Lane
from tunnel_pool.overlay.ground.messages import address_message, address_of, peer_of
from tunnel_pool.overlay.ground.networks import use_as_numbers
from tunnel_pool.overlay.ground.streams import PEER_FLAG_EXIT_STREAMS
from tunnel_pool.overlay.hidden_swarms.services import WatchedSwarm
from tunnel_pool.overlay.node import open_overlay, open_sharing, socket_warning
from tunnel_pool.overlay.paths.as_numbers import AsDatabaseError, open_as_numbers
from tunnel_pool.overlay.requests.http import PEER_FLAG_EXIT_HTTP, HttpError, NoHttpExitError
from tunnel_pool.overlay.speed_test import Sample, run_speed_test
from tunnel_pool.overlay.wire.udp import CannotBindError, receive_buffer_bytes
from tunnel_pool.packet_engine import EngineMissingError
from tunnel_pool.rpc import control_pb2 as pb
from tunnel_pool.rpc.descriptors import SOCKETS
from tunnel_pool.rpc.errors import RemoteError
from tunnel_pool.rpc.sockets import AS_NUMBERS, LIMITS_MEMORY, TUNNEL_SOCKET, DescriptorsTaken

EXIT_FLAGS = frozenset({PEER_FLAG_EXIT_BT, PEER_FLAG_EXIT_IPV8, PEER_FLAG_EXIT_HTTP, PEER_FLAG_EXIT_STREAMS})

logger = logging.getLogger(__name__)


class ChildHost:
    """Owns the community; `on_lost(why)` is called when the main process can't be talked to any more."""

    def __init__(self, on_lost: Callable[[str], object]) -> None:
        self._on_lost = on_lost
        self._community: LocalTunnelCommunity | None = None
        self._reports: Reports | None = None
        self._data_path: DataPath | None = None
        self._sockets = DescriptorsTaken(SOCKETS)
        self._control = ControlStream(
            {
                "create": self._on_create,
                "monitor": self._on_monitor,
                "circuit": self._on_circuit,
                "remove_circuit": self._on_remove_circuit,
                "drain": self._on_drain,
                "set_exit_rules": self._on_set_exit_rules,
                "set_admission": self._on_set_admission,
                "rate_exits": self._on_rate_exits,
                "refuse_guest": self._on_refuse_guest,
                "heartbeat": self._on_heartbeat,
                "associate": self._on_associate,
                "dissociate": self._on_dissociate,
                "set_usual": self._on_set_usual,
                "steer": self._on_steer,
                "announce": self._on_announce,
                "pin": self._on_pin,
                "open_stream": self._on_open_stream,
                "remove_route": self._on_remove_route,
                "introduce": self._on_introduce,
                "estimate_swarm": self._on_estimate_swarm,
                "speed_test": self._on_speed_test,
                "http_request": self._on_http_request,
                "find_dht_node": self._on_find_dht_node,
                "find_exit_port": self._on_find_exit_port,
                **SharedPortCalls(self._created).handlers,
            },
            on_lost,
        )

    async def open(self) -> None:
        """Start listening to the main process."""
        await self._control.open()

    async def close(self) -> None:
        """Tell the neighbours that our circuits end."""
        if self._reports is not None:
            self._reports.end()
        if self._community is not None:
            await self._community.unload()

    # Calls of the main process

    async def _on_create(self, message: pb.Create) -> pb.Created:
        if self._community is not None:
            raise RemoteError(pb.ERROR_BAD_REQUEST, "already created")
        if len(message.community_id) != COMMUNITY_ID_BYTES:
            raise RemoteError(pb.ERROR_BAD_REQUEST, f"a community id has {COMMUNITY_ID_BYTES} bytes")
        logging.getLogger().setLevel(message.log_level or logging.WARNING)
        use_secret(message.end_to_end_secret)
        if not EXIT_FLAGS.intersection(message.peer_flags):
            give_up_names()
        try:
            community = await self._open_community(message)
        except (CannotBindError, EngineMissingError) as error:
            raise RemoteError(pb.ERROR_CANNOT_START, str(error)) from None
        self._data_path = open_data_path(community, self._on_lost)
        self._community = community
        community.cancel_pending_task("statistics")  # each sync reads them
        self._reports = Reports(self._control, community, self._data_path, message.sync_interval_s)
        if warning := socket_warning(community):
            self._reports.warn(warning)
        return pb.Created(
            listen=address_message(community.endpoint.get_address()),
            receive_buffer_bytes=receive_buffer_bytes(community.endpoint.sock),
        )

    async def _open_community(self, message: pb.Create) -> LocalTunnelCommunity:
        limits = self._sockets.take(LIMITS_MEMORY)
        if message.limited and limits is None:
            raise RemoteError(pb.ERROR_BAD_REQUEST, "no memory came for the limits")
        if message.as_numbers:
            self._use_as_numbers()
        config = replace(config_of(message), limits=limits)
        if not message.shared_port:
            return await open_overlay(config)
        sock = self._sockets.take_socket(TUNNEL_SOCKET)
        if sock is None:
            raise RemoteError(pb.ERROR_BAD_REQUEST, "no socket came for the tunnels")
        community = await open_sharing(config, sock, message.buckets, MainByCalls(self._control))
        community.my_estimated_lan, community.my_estimated_wan = address_of(message.lan), address_of(message.wan)
        return community

    def _use_as_numbers(self) -> None:
        fd = self._sockets.take(AS_NUMBERS)
        if fd is None:
            raise RemoteError(pb.ERROR_BAD_REQUEST, "no database of AS numbers came")
        try:
            use_as_numbers(open_as_numbers(fd))
        except AsDatabaseError as error:
            raise RemoteError(pb.ERROR_CANNOT_START, f"database of AS numbers: {error}") from None
        finally:
            os.close(fd)

    async def _on_monitor(self, message: pb.Monitor) -> pb.Monitored:
        active = (pb.SWARM_STATE_DOWNLOADING, pb.SWARM_STATE_SEEDING)
        self._created().watch(
            WatchedSwarm(swarm.infohash, swarm.hops, swarm.state == pb.SWARM_STATE_SEEDING, swarm.group)
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
            arguments["required_exit"] = peer_of(message.required_exit)
        circuit = community.create_circuit_with_id(
            message.circuit_id,
            message.goal_hops,
            ctype=message.ctype,
            info_hash=message.infohash or None,
            group=message.group,
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

    async def _on_set_exit_rules(self, message: pb.SetExitRules) -> pb.ExitRulesSet:
        self._created().set_exit_rules(ExitRules.unpack(message.rules))
        return pb.ExitRulesSet()

    async def _on_set_admission(self, message: pb.SetAdmission) -> pb.AdmissionSet:
        self._created().set_admission(admission_of(message.admission))
        return pb.AdmissionSet()

    async def _on_rate_exits(self, message: pb.RateExits) -> pb.ExitsRated:
        ratings = {rating.mid: rating.score for rating in message.ratings}
        self._created().hop_choice.scores.take(ratings, time.time())
        for mid in message.doubted:
            self._created().doubt(mid)
        return pb.ExitsRated()

    async def _on_refuse_guest(self, message: pb.RefuseGuest) -> pb.GuestRefused:
        if (native := self._created().native) is not None:
            native.engine.refuse_guest(message.known_as)
        return pb.GuestRefused()

    async def _on_heartbeat(self, message: pb.Heartbeat) -> pb.HeartbeatReply:
        loop_delay_s = self._reports.heartbeat(message.tell) if self._reports is not None else 0.0
        return pb.HeartbeatReply(loop_delay_s=loop_delay_s)

    async def _on_associate(self, message: pb.Associate) -> pb.Associated:
        data_path = self._opened_data_path()
        sock = self._sockets.take_socket(message.association_id)
        if sock is None:
            raise RemoteError(pb.ERROR_BAD_REQUEST, f"no socket came for association {message.association_id}")
        data_path.associate(
            message.association_id,
            sock,
            Lane(message.hops, message.group),
            (message.client.host, message.client.port),
        )
        return pb.Associated()

    async def _on_dissociate(self, message: pb.Dissociate) -> pb.Dissociated:
        self._opened_data_path().dissociate(message.association_id)
        return pb.Dissociated()

    async def _on_set_usual(self, message: pb.SetUsual) -> pb.UsualSet:
        self._opened_data_path().set_usual(message.association_id)
        return pb.UsualSet()

    async def _on_steer(self, message: pb.Steer) -> pb.Steered:
        self._opened_data_path().steer(message.association_id, message.datagram)
        return pb.Steered()

    async def _on_announce(self, message: pb.Announce) -> pb.Announced:
        self._created().announce_over(message.circuit_id)
        return pb.Announced()

    async def _on_pin(self, message: pb.Pin) -> pb.Pinned:
        self._opened_data_path().pin(message.association_id, message.destination, message.circuit_id)
        return pb.Pinned()

    async def _on_open_stream(self, message: pb.OpenStream) -> pb.StreamOpened:
        data_path = self._opened_data_path()
        sock = self._sockets.take_socket(message.stream_id)
        if sock is None:
            raise RemoteError(pb.ERROR_BAD_REQUEST, f"no socket came for stream {message.stream_id}")
        data_path.open_stream(sock, Lane(message.hops, message.group), message.destination, message.early)
        return pb.StreamOpened()

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
        required = peer_of(message.required) if message.HasField("required") else None
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
            response = await self._created().perform_http_request(
                destination, message.request, message.hops, message.group, message.circuit_id or None
            )
        except NoHttpExitError as error:
            raise RemoteError(pb.ERROR_NO_CANDIDATES, str(error)) from None
        except HttpError as error:
            raise RemoteError(pb.ERROR_FAILED, str(error)) from None
        return pb.HttpResponse(response=response)

    async def _on_find_dht_node(self, message: pb.FindDhtNode) -> pb.DhtNode:
        found = await self._created().find_dht_node(message.name, message.port, message.hops)
        return pb.DhtNode(address=address_message(found) if found else None)

    async def _on_find_exit_port(self, message: pb.FindExitPort) -> pb.ExitPort:
        return pb.ExitPort(port=await self._created().find_exit_port(message.circuit_id) or 0)

    def _opened_data_path(self) -> DataPath:
        if self._data_path is None:
            raise RemoteError(pb.ERROR_NOT_READY, "RPC_CREATE comes first")
        return self._data_path

    def _created(self) -> LocalTunnelCommunity:
        if self._community is None:
            raise RemoteError(pb.ERROR_NOT_READY, "RPC_CREATE comes first")
        return self._community
