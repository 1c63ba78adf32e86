"""Opening and closing a TunnelCommunity: key, socket, network, discovery."""

import ipaddress
import random
import time
from collections import Counter
from collections.abc import Iterable, Sequence

from ipv8.bootstrapping.bootstrapper_interface import Bootstrapper
from ipv8.bootstrapping.dispersy.bootstrapper import DispersyBootstrapper
from ipv8.configuration import DISPERSY_BOOTSTRAPPER
from ipv8.keyvault.crypto import default_eccrypto
from ipv8.messaging.interfaces.endpoint import Endpoint
from ipv8.messaging.interfaces.udp.endpoint import UDPv4Address
from ipv8.peer import Peer
from ipv8.peerdiscovery.churn import RandomChurn
from ipv8.peerdiscovery.discovery import RandomWalk
from ipv8.peerdiscovery.network import Network

from overlay.community import PoolTunnelCommunity, PoolTunnelSettings
from overlay.config import HostPort, OverlayConfig
from overlay.udp import BUFFER_BYTES, BatchedEndpoint, bind_udp, raise_descriptor_limit, receive_buffer_bytes
from packet_engine import EngineChoice, choose

WALK_INTERVAL_S = 0.5
WALK_TIMEOUT_S = 3.0
MAX_PEERS = 60
BOOTSTRAP_RETRY_S = 1.0
ENOUGH_PEERS = 4
MAX_INTRODUCED = 1000  # addresses that we were told of and never walked to


class StaticBootstrapper(Bootstrapper):
    """Ordinary peers at known addresses: asked again until enough peers are known."""

    def __init__(self, addresses: Iterable[HostPort]) -> None:
        super().__init__()
        self._addresses = [UDPv4Address(*address) for address in addresses]
        self._last_walk = 0.0

    async def initialize(self, overlay: PoolTunnelCommunity) -> bool:
        self.initialized = True
        return True

    async def get_addresses(self, overlay: PoolTunnelCommunity, timeout: float) -> list[UDPv4Address]:
        now = time.monotonic()
        if now - self._last_walk < BOOTSTRAP_RETRY_S:
            return []
        self._last_walk = now
        return random.sample(self._addresses, len(self._addresses))

    def keep_alive(self, overlay: PoolTunnelCommunity) -> None:
        if self._addresses:
            overlay.walk_to(random.choice(self._addresses))

    def blacklist(self) -> Sequence[UDPv4Address]:
        return ()

    def unload(self) -> None:
        pass


async def open_overlay(config: OverlayConfig) -> PoolTunnelCommunity:
    """A running community. Raises CannotBindError when its address is taken, EngineMissingError."""
    raise_descriptor_limit()
    counters: Counter[str] = Counter()
    endpoint = await _open_endpoint(config, counters)
    key = default_eccrypto.key_from_private_bin(config.member_key)
    settings = PoolTunnelSettings(
        my_peer=Peer(key, UDPv4Address(*endpoint.get_address())), endpoint=endpoint, network=Network()
    )
    settings.slot = config.slot
    settings.counters = counters
    settings.siblings = config.siblings
    settings.allow_private = config.allow_private
    settings.exit_host = config.listen.host
    settings.max_joined_circuits = config.max_joined_circuits
    settings.max_peers = MAX_PEERS
    settings.peer_flags = set(config.peer_flags)
    community_class = type("PoolTunnelCommunity", (PoolTunnelCommunity,), {"community_id": config.community_id})
    community: PoolTunnelCommunity = community_class(settings)
    _estimate_own_address(community, endpoint)
    _start_discovery(community, config)
    return community


async def _open_endpoint(config: OverlayConfig, counters: Counter[str]) -> Endpoint:
    host, port = config.listen
    if choose(config.engine) is EngineChoice.NATIVE:
        from packet_engine.endpoint import NativeEndpoint

        sock = bind_udp(host, port)
        return NativeEndpoint(
            sock,
            counters,
            exit_host=host,
            allow_private=config.allow_private,
            own_messages=False,
            trains=config.trains,
        )
    endpoint = BatchedEndpoint(host, port, counters)
    await endpoint.open()
    return endpoint


def _estimate_own_address(community: PoolTunnelCommunity, endpoint: Endpoint) -> None:
    """A node bound to one address is there and nowhere else; others find theirs as py-ipv8 does."""
    host, port = endpoint.get_address()
    if not ipaddress.ip_address(host).is_unspecified:
        community.my_estimated_lan = community.my_estimated_wan = UDPv4Address(host, port)


def _start_discovery(community: PoolTunnelCommunity, config: OverlayConfig) -> None:
    if config.bootstrap_default:
        community.bootstrappers.append(DispersyBootstrapper(**DISPERSY_BOOTSTRAPPER["init"]))
    if config.bootstrap:
        community.bootstrappers.append(StaticBootstrapper(config.bootstrap))
    walk = RandomWalk(community, timeout=WALK_TIMEOUT_S)
    churn = RandomChurn(community)

    def discover() -> None:
        known = len(community.get_peers())
        if known < ENOUGH_PEERS or not community.candidates:
            community.bootstrap()
        if known < MAX_PEERS // 2:
            walk.take_step()
        elif len(unknown := community.network.get_walkable_addresses(community.community_id)) > MAX_INTRODUCED:
            for address in unknown:
                community.network.remove_by_address(address)
        churn.take_step()

    for address in {*config.known_peers, *config.bootstrap}:
        community.walk_to(UDPv4Address(*address))
    community.register_task("discover", discover, interval=WALK_INTERVAL_S, delay=0)


def socket_warning(community: PoolTunnelCommunity) -> str | None:
    """What the operator can do when the kernel gave less buffer than asked, None when it did not."""
    got = receive_buffer_bytes(community.endpoint.sock)
    if got >= BUFFER_BYTES:
        return None
    return (
        f"the kernel gave {got >> 10} KiB of receive buffer, {BUFFER_BYTES >> 10} were asked for: "
        f"sysctl -w net.core.rmem_max={BUFFER_BYTES} net.core.wmem_max={BUFFER_BYTES}"
    )
