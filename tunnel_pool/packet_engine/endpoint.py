"""py-ipv8's CryptoEndpoint on the Rust engine: data cells never reach Python."""

import asyncio
import logging
import socket
from asyncio import Future
from collections import Counter
from collections.abc import Callable
from typing import Any

from ipv8.messaging.anonymization.crypto import CryptoEndpoint
from ipv8.messaging.anonymization.exit_socket import TunnelExitSocket
from ipv8.messaging.anonymization.payload import NO_CRYPTO_PACKETS, CellPayload
from ipv8.messaging.anonymization.tunnel import (
    BACKWARD,
    CIRCUIT_STATE_READY,
    CIRCUIT_TYPE_RP_SEEDER,
    FORWARD,
    Circuit,
    RelayRoute,
)
from ipv8.messaging.interfaces.endpoint import Endpoint, EndpointListener
from ipv8.messaging.interfaces.udp.endpoint import EndpointClosedException, UDPv4Address

from tunnel_pool.packet_engine._native import Engine, Settings, Stats
from tunnel_pool.packet_engine.boundary import GuardedDelivery
from tunnel_pool.packet_engine.routes import HeldKeys, KeyRing, RouteTable
from tunnel_pool.rpc.drop_reasons import DropReason

EVENTS_PER_WAKE_UP = 64  # then the loop's other work has its turn
NOWHERE = ("0.0.0.0", 0)  # noqa: S104 - no address, as py-ipv8 writes it

logger = logging.getLogger(__name__)


class NativeEndpoint(GuardedDelivery, CryptoEndpoint):
    """Owns the tunnel socket and everything a data cell needs, in the engine's own thread.

    `own_messages` lets all of the overlay's messages out of every node, as py-ipv8 does;
    without it, those of hidden services.
    """

    def __init__(
        self,
        sock: socket.socket,
        counters: Counter[str],
        *,
        exit_host: str = "0.0.0.0",  # noqa: S104 - any address of this machine
        exit_ports: tuple[int, int] = (0, 0),
        device: str = "",
        allow_private: bool = False,
        own_messages: bool = True,
        trains: bool = True,
        takes_trains: bool = True,
        secret: bytes = bytes(32),
        known_as: Callable[[Circuit], int] = lambda circuit: 0,
        lane_of: Callable[[Circuit], int] = lambda circuit: int(circuit.goal_hops),
        tries_streams: Callable[[Circuit], bool] = lambda circuit: False,
        reaches_ipv6: Callable[[Circuit], bool] = lambda circuit: False,
    ) -> None:
        """`sock` is bound; the endpoint closes it. Exits leave from `exit_host` and a port of `exit_ports`,
        (0, 0) being any, through the `device`, "" being any.

        `lane_of` says which associations' clients a circuit serves: those that were added with the same number.
        `known_as` is the number of the address that stands for the other end of an end-to-end circuit, 0 for other
        circuits; of `secret` it is derived which numbers lead to this child. `tries_streams` says whether the
        other end of a circuit may speak streams, `reaches_ipv6` whether it is an exit that reaches IPv6 destinations.

        Without `trains`, each datagram is sent by itself; without `takes_trains`, the kernel joins none for us.
        """
        CryptoEndpoint.__init__(self)
        Endpoint.__init__(self)
        self.sock = sock
        self._reset_at = (0, 0)
        self.on_orphans: Callable[[int, list[bytes]], None] = lambda lane, destinations: None
        # Finds a name's address, for a stream of the circuit with this id, which ends here.
        self.look_up: Callable[[str, int], Future[str | None]] | None = None
        # Called when a client is to connect to who has opened a stream: the circuit, the id that his address stands
        # for, and the infohash that a caller asks for.
        self.on_guest: Callable[[int, int, bytes | None], None] = lambda circuit_id, known_as, infohash: None
        self.on_streams: Callable[[], None] = lambda: None  # called when a circuit has got, or lost, streams
        self.on_stream_lost: Callable[[str], object] = lambda why: None
        self.on_failed: Callable[[str], object] = lambda why: logger.error("The packet engine failed: %s", why)
        self._exit_ports: dict[int, Future[int | None]] = {}  # those that were asked for, by circuit
        self._counters = counters
        self._own_messages = own_messages
        self._allow_private = allow_private
        self._secret, self._known_as = secret, known_as
        self._lane_of = lane_of
        self._tries_streams, self._reaches_ipv6 = tries_streams, reaches_ipv6
        self._keyring = KeyRing()
        self._address = UDPv4Address(*sock.getsockname()[:2])
        self._loop = asyncio.get_running_loop()
        self._peer_flags = 0
        self._max_relay_early = 8
        self.engine = Engine(
            sock.fileno(), exit_host, self._engine_settings(), trains, takes_trains, exit_ports, device
        )
        self._open = True
        self._loop.add_reader(self.engine.fileno(), self._take_events)
        self.circuits = RouteTable[Circuit](self._set_circuit, self.engine.remove_circuit)
        self.relays = RouteTable[RelayRoute](self._set_relay, self.engine.remove_relay)
        self.exit_sockets = RouteTable[TunnelExitSocket](self._set_exit, self.engine.remove_exit)

    # CryptoEndpoint

    def setup_tunnels(self, tunnel_community: Any, settings: Any) -> None:
        self.prefix = tunnel_community.get_prefix()
        self.settings = settings
        self.set_max_relay_early(settings.max_relay_early)
        self.set_peer_flags(settings.peer_flags)

    def set_max_relay_early(self, max_relay_early: int) -> None:
        """Set how many cells of a circuit may be marked as relay_early; py-ipv8's TunnelSettings call this, too."""
        self._max_relay_early = max_relay_early
        self._configure()

    def set_peer_flags(self, peer_flags: set[int]) -> None:
        """Set what this node serves as; py-ipv8's TunnelSettings call this, too."""
        self._peer_flags = sum(peer_flags)
        self._configure()

    def send_cell(self, target_addr: tuple[str, int], cell: CellPayload) -> None:
        circuit = self.circuits.data.get(cell.circuit_id)
        if circuit is not None and circuit.dirty:
            self.circuits.refresh(cell.circuit_id)
        self._send(lambda: self.engine.send_cell(target_addr, cell.circuit_id, cell.plaintext, cell.message))

    def _engine_settings(self) -> Settings:
        prefixes = None if self._listeners else [prefix for prefix in self._prefix_map if prefix != self.prefix]
        if self.settings is None:
            prefixes = []  # which cells belong to the tunnels is not known yet
        return Settings(
            self.prefix,
            prefixes,
            self._max_relay_early,
            list(NO_CRYPTO_PACKETS),
            self._peer_flags,
            self._own_messages,
            self._allow_private,
            self._secret,
        )

    def _configure(self) -> None:
        self.engine.configure(self._engine_settings())

    def set_exit_rules(self, rules: Any) -> None:
        """Apply the rules of overlay/ground/exit_rules.py in the engine."""
        self.engine.set_exit_rules(rules.pack())

    # The tables

    def _set_circuit(self, circuit_id: int, circuit: Circuit, stats: Stats) -> tuple[HeldKeys, ...]:
        held = [self._keyring.hold(hop.keys) for hop in circuit.hops]
        end_to_end = None
        if circuit.hs_session_keys is not None:
            other_end = self._keyring.hold(circuit.hs_session_keys)
            held.append(other_end)
            end_to_end = other_end.keys, FORWARD if circuit.ctype == CIRCUIT_TYPE_RP_SEEDER else BACKWARD
        self.engine.set_circuit(
            circuit_id,
            circuit.hop.address if circuit.hop else NOWHERE,
            [keys.keys for keys in held[: len(circuit.hops)]],
            end_to_end,
            self._lane_of(circuit),
            circuit.ctype,
            circuit.state == CIRCUIT_STATE_READY,
            stats,
            self._tries_streams(circuit),
            self._reaches_ipv6(circuit),
            self._known_as(circuit),
        )
        return tuple(held)

    def _set_relay(self, circuit_id: int, relay: RelayRoute, stats: Stats) -> tuple[HeldKeys, ...]:
        held = self._keyring.hold(relay.hop.keys)
        self.engine.set_relay(
            circuit_id,
            relay.circuit_id,
            relay.hop.address,
            held.keys,
            relay.direction,
            relay.rendezvous_relay,
            relay.relay_early_count,
            stats,
        )
        return (held,)

    def _set_exit(self, circuit_id: int, exit_socket: TunnelExitSocket, stats: Stats) -> tuple[HeldKeys, ...]:
        held = self._keyring.hold(exit_socket.hop.keys)
        self.engine.set_exit(circuit_id, exit_socket.hop.address, held.keys, stats)
        return (held,)

    def update_statistics(self, circuit_id: int | None = None) -> None:
        """Bring the engine's counts into py-ipv8's objects: of one id, or of all."""
        for table in (self.circuits, self.relays, self.exit_sockets):
            for known in list(table.data) if circuit_id is None else [circuit_id]:
                table.update_statistics(known)

    async def exit_port(self, circuit_id: int) -> int | None:
        """Return the port of an exit's IPv4 socket, which is opened for it; None if it is gone, or can't be opened."""
        asked = self._exit_ports.get(circuit_id)
        if asked is None:
            asked = self._exit_ports[circuit_id] = self._loop.create_future()
            self.engine.tell_exit_port(circuit_id)
        return await asyncio.shield(asked)

    def dropped(self) -> Counter[str]:
        """Return how much the engine dropped, by reason."""
        return Counter(self.engine.counters())

    # Endpoint

    def add_listener(self, listener: EndpointListener) -> None:
        super().add_listener(listener)
        self._configure()

    def add_prefix_listener(self, listener: EndpointListener, prefix: bytes) -> None:
        super().add_prefix_listener(listener, prefix)
        self._configure()

    def remove_listener(self, listener: EndpointListener) -> None:
        super().remove_listener(listener)
        self._configure()

    def send(self, socket_address: tuple[str, int], packet: bytes) -> None:
        self._send(lambda: self.engine.send(socket_address, packet))

    def _send(self, command: Callable[[], None]) -> None:
        if not self._open:
            return
        try:
            command()
        except (ValueError, OverflowError, TypeError):  # it is not an IP address, or has no port
            self._counters[DropReason.UDP_SEND_NO_ADDRESS] += 1

    def _take_events(self) -> None:
        for event in self.engine.take_events(EVENTS_PER_WAKE_UP):
            match event:
                case ("packet", source, packet):
                    self.notify_listeners((UDPv4Address(*source), packet))
                case ("orphans", lane, destinations):
                    self.on_orphans(lane, destinations)
                case ("resolve", number, name, circuit_id):
                    self._resolve(number, name, circuit_id)
                case ("guest", circuit_id, known_as, infohash):
                    self.on_guest(circuit_id, known_as, infohash)
                case ("streams", circuit_id):
                    self.circuits.update_statistics(circuit_id)
                    self.on_streams()
                case ("exit_port", circuit_id, port):
                    self._exit_ports.pop(circuit_id).set_result(port or None)
                case ("stream_lost", why):
                    self.on_stream_lost(why)
                case ("failed", why):
                    self.on_failed(why)

    def _resolve(self, number: int, name: str, circuit_id: int) -> None:
        if self.look_up is None:
            self.engine.resolved(number, None)
            return
        self.look_up(name, circuit_id).add_done_callback(
            lambda found: None if found.cancelled() else self.engine.resolved(number, found.result())
        )

    async def open(self) -> bool:
        return self._open

    def is_open(self) -> bool:
        return self._open

    def assert_open(self) -> None:
        if not self._open:
            raise EndpointClosedException(self)

    def get_address(self) -> UDPv4Address:
        return self._address

    def reset_byte_counters(self) -> None:
        self._reset_at = self.engine.wire_bytes()

    @property
    def bytes_up(self) -> int:
        """Return the payload bytes of all datagrams that the tunnels' socket sent since `reset_byte_counters`."""
        return self.engine.wire_bytes()[0] - self._reset_at[0]

    @property
    def bytes_down(self) -> int:
        """Return the payload bytes of all datagrams that the tunnels' socket received since `reset_byte_counters`."""
        return self.engine.wire_bytes()[1] - self._reset_at[1]

    def close(self) -> None:
        """Send what was asked to be sent, then close the socket."""
        if self._open:
            self._open = False
            self._loop.remove_reader(self.engine.fileno())
            self.engine.close()
            self.sock.close()
