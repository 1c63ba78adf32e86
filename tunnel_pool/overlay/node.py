"""Opening and closing a TunnelCommunity: key, socket, network, discovery."""

import ipaddress
import logging
import socket
from collections import Counter
from collections.abc import Iterable
from functools import partial
from typing import TypeVar

from ipv8.keyvault.crypto import default_eccrypto
from ipv8.messaging.interfaces.endpoint import Endpoint
from ipv8.messaging.interfaces.lan_addresses.any_os.getaddrinfo import SocketGetAddrInfo
from ipv8.messaging.interfaces.lan_addresses.interfaces import get_providers
from ipv8.messaging.interfaces.udp.endpoint import UDPv4Address
from ipv8.peer import Peer

from tunnel_pool.overlay.community import LocalTunnelCommunity, LocalTunnelSettings
from tunnel_pool.overlay.discovery import MAX_PEERS, Discovery
from tunnel_pool.overlay.ground.config import OverlayConfig
from tunnel_pool.overlay.ground.destinations import is_allowed_destination
from tunnel_pool.overlay.ground.end_to_end import END_TO_END, known_as, secret_in_use
from tunnel_pool.overlay.ground.lanes import lane_of
from tunnel_pool.overlay.ground.streams import reaches_ipv6, tries_streams
from tunnel_pool.overlay.hidden_swarms.pex import CarefulPex
from tunnel_pool.overlay.node_community import NodeCommunity, NodeSettings
from tunnel_pool.overlay.one_port.front import FrontCommunity
from tunnel_pool.overlay.one_port.sharing import MainProcess, SharingCommunity, SharingSettings
from tunnel_pool.overlay.peers.dht import CarefulDht
from tunnel_pool.overlay.peers.introductions import PinnedNetwork
from tunnel_pool.overlay.serving.exit_socket import NativeExitSocket, PolicedExitSocket
from tunnel_pool.overlay.serving.exit_source import ExitSource
from tunnel_pool.overlay.wire.udp import BatchedEndpoint, bind_udp, raise_descriptor_limit, receive_buffer_bytes
from tunnel_pool.packet_engine import EngineChoice, choose
from tunnel_pool.steering.group import BUFFER_BYTES

LAN_ADDRESSES_INTERVAL_S = 60.0
# Any remote peer can make these loggers write tracebacks and destinations. We silence them, and count instead.
PROVOKED_LOGGERS = (
    "LocalTunnelCommunity",
    "SharingCommunity",
    "FrontCommunity",
    PolicedExitSocket.__name__,
    NativeExitSocket.__name__,
    "DataCellEndpoint",
    "TunnelExitSocket",
    "RequestCache",
    CarefulDht.__name__,
    "IntroductionPointDht",
    CarefulPex.__name__,
    "Swarm",
)

Settings = TypeVar("Settings", bound=LocalTunnelSettings)
Overlay = TypeVar("Overlay", bound=NodeCommunity)


async def open_overlay(config: OverlayConfig) -> LocalTunnelCommunity:
    """Return a running community on its own port. Raises CannotBindError when that is taken, EngineMissingError."""
    prepare_process()
    sock = bind_udp(*config.listen, device=config.device)
    endpoint, counters = await _open_endpoint(config, sock, config.trains)
    community = _make(LocalTunnelCommunity, _fill(LocalTunnelSettings, config, endpoint, counters), config)
    _find_own_address(community, endpoint)
    Discovery(community, config).start()
    return community


async def open_sharing(
    config: OverlayConfig, sock: socket.socket, buckets: Iterable[int], main: MainProcess
) -> SharingCommunity:
    """Return a child's community on its socket of the node's port. Raises EngineMissingError."""
    prepare_process()
    # Cells of several circuits may come to us as one train, though they be for several children,
    # unless their sender knows better (packet_engine/src/outbox.rs). On loopback nobody else sends trains.
    takes_trains = ipaddress.ip_address(config.listen.host).is_loopback
    endpoint, counters = await _open_endpoint(config, sock, takes_trains)
    settings = _fill(SharingSettings, config, endpoint, counters)
    settings.buckets = buckets
    settings.main = main
    return _make(SharingCommunity, settings, config)


async def open_front(config: OverlayConfig, sock: socket.socket) -> FrontCommunity:
    """Return the overlay of a node whose children share its port; `sock` gets everything but cells."""
    prepare_process()
    counters: Counter[str] = Counter()
    endpoint = BatchedEndpoint(sock, counters)
    await endpoint.open()
    front = _make(FrontCommunity, _fill(NodeSettings, config, endpoint, counters), config)
    _find_own_address(front, endpoint)
    Discovery(front, config).start()
    return front


def prepare_process() -> None:
    for name in PROVOKED_LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    raise_descriptor_limit()
    ask_no_name_server()


def _fill(kind: type[Settings], config: OverlayConfig, endpoint: Endpoint, counters: Counter[str]) -> Settings:
    key = default_eccrypto.key_from_private_bin(config.member_key)
    network = PinnedNetwork()
    network.blacklist_mids += [Peer(sibling).mid for sibling in config.siblings]
    settings = kind(my_peer=Peer(key, UDPv4Address(*endpoint.get_address())), endpoint=endpoint, network=network)
    settings.slot = config.slot
    settings.counters = counters
    settings.siblings = config.siblings
    settings.allow_private = config.allow_private
    settings.exit_source = ExitSource(
        config.exit_from.host or config.listen.host, config.exit_from.ports, config.device
    )
    settings.exit_rules = config.exit_rules
    settings.admission = config.admission
    settings.may_contact = partial(_may_contact, config)
    settings.requires_diversity = config.requires_diversity
    settings.offered_together = config.offered_together
    settings.max_peers = MAX_PEERS
    settings.peer_flags = set(config.peer_flags)
    return settings


def _may_contact(config: OverlayConfig, host: str, port: int) -> bool:
    """Return whether a stranger may make us send a packet there: to other machines, of other networks than ours."""
    return is_allowed_destination(host, port, config.allow_private) and (host, port) != tuple(config.listen)


def _make(kind: type[Overlay], settings: NodeSettings, config: OverlayConfig) -> Overlay:
    of_the_network = type(kind.__name__, (kind,), {"community_id": config.community_id})
    community: Overlay = of_the_network(settings)
    return community


def ask_no_name_server() -> None:
    """Keep py-ipv8 from looking up this machine's own name, every ten seconds, to learn its addresses.

    Of its ways to find them (messaging/interfaces/lan_addresses), that one alone sends packets.
    """
    providers = get_providers()  # one list for all overlays of the process
    providers[:] = [provider for provider in providers if not isinstance(provider, SocketGetAddrInfo)]


async def _open_endpoint(
    config: OverlayConfig, sock: socket.socket, takes_trains: bool
) -> tuple[Endpoint, Counter[str]]:
    """Return an endpoint of the engine asked for, and the counters of what it drops."""
    counters: Counter[str] = Counter()
    if choose(config.engine) is EngineChoice.NATIVE:
        from tunnel_pool.packet_engine.endpoint import NativeEndpoint

        native = NativeEndpoint(
            sock,
            counters,
            exit_host=config.exit_from.host or config.listen.host,
            exit_ports=config.exit_from.ports,
            device=config.device,
            allow_private=config.allow_private,
            own_messages=False,
            trains=config.trains,
            takes_trains=takes_trains,
            secret=secret_in_use(),
            known_as=lambda circuit: known_as(circuit) if circuit.ctype in END_TO_END else 0,
            lane_of=lambda circuit: lane_of(circuit).pack(),
            tries_streams=tries_streams,
            reaches_ipv6=reaches_ipv6,
        )
        if config.limits is not None:
            native.engine.set_limits(config.limits, config.slot)
        return native, counters
    endpoint = BatchedEndpoint(sock, counters)
    await endpoint.open()
    return endpoint, counters


def _find_own_address(community: NodeCommunity, endpoint: Endpoint) -> None:
    """Take the address that the node is bound to as its own; without one, find it as py-ipv8 does, but less often."""
    host, port = endpoint.get_address()
    community.cancel_pending_task("discover_lan_addresses")
    if not ipaddress.ip_address(host).is_unspecified:
        community.my_estimated_lan = community.my_estimated_wan = UDPv4Address(host, port)
    else:
        look = community.discover_lan_addresses
        community.register_task("find our addresses", look, interval=LAN_ADDRESSES_INTERVAL_S, delay=0)


def socket_warning(community: LocalTunnelCommunity) -> str | None:
    """Return what the operator can do when the kernel gave less buffer than asked, None when it gave all."""
    got = receive_buffer_bytes(community.endpoint.sock)
    if got >= BUFFER_BYTES:
        return None
    return (
        f"the kernel gave {got >> 10} KiB of receive buffer, {BUFFER_BYTES >> 10} were asked for: "
        f"sysctl -w net.core.rmem_max={BUFFER_BYTES} net.core.wmem_max={BUFFER_BYTES}"
    )
