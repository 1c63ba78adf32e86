"""Opening and closing a TunnelCommunity: key, socket, network, discovery."""

import ipaddress
from collections import Counter

from ipv8.keyvault.crypto import default_eccrypto
from ipv8.messaging.interfaces.endpoint import Endpoint
from ipv8.messaging.interfaces.lan_addresses.any_os.getaddrinfo import SocketGetAddrInfo
from ipv8.messaging.interfaces.lan_addresses.interfaces import get_providers
from ipv8.messaging.interfaces.udp.endpoint import UDPv4Address
from ipv8.peer import Peer
from ipv8.peerdiscovery.network import Network

from overlay.community import PoolTunnelCommunity, PoolTunnelSettings
from overlay.config import OverlayConfig
from overlay.discovery import MAX_PEERS, Discovery
from overlay.udp import BUFFER_BYTES, BatchedEndpoint, bind_udp, raise_descriptor_limit, receive_buffer_bytes
from packet_engine import EngineChoice, choose

LAN_ADDRESSES_INTERVAL_S = 60.0


async def open_overlay(config: OverlayConfig) -> PoolTunnelCommunity:
    """A running community. Raises CannotBindError when its address is taken, EngineMissingError."""
    raise_descriptor_limit()
    ask_no_name_server()
    counters: Counter[str] = Counter()
    endpoint = await _open_endpoint(config, counters)
    key = default_eccrypto.key_from_private_bin(config.member_key)
    network = Network()
    network.blacklist_mids += [Peer(sibling).mid for sibling in config.siblings]
    settings = PoolTunnelSettings(
        my_peer=Peer(key, UDPv4Address(*endpoint.get_address())), endpoint=endpoint, network=network
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
    Discovery(community, config).start()
    return community


def ask_no_name_server() -> None:
    """Keep py-ipv8 from looking up this machine's own name, every ten seconds, to learn its addresses.

    Of its ways to find them (messaging/interfaces/lan_addresses), that one alone sends packets.
    """
    providers = get_providers()  # one list for all overlays of the process
    providers[:] = [provider for provider in providers if not isinstance(provider, SocketGetAddrInfo)]


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
    """A node bound to one address is there and nowhere else; others find theirs as py-ipv8 does, but less often."""
    host, port = endpoint.get_address()
    community.cancel_pending_task("discover_lan_addresses")
    if not ipaddress.ip_address(host).is_unspecified:
        community.my_estimated_lan = community.my_estimated_wan = UDPv4Address(host, port)
    else:
        look = community.discover_lan_addresses
        community.register_task("find our addresses", look, interval=LAN_ADDRESSES_INTERVAL_S, delay=0)


def socket_warning(community: PoolTunnelCommunity) -> str | None:
    """What the operator can do when the kernel gave less buffer than asked, None when it did not."""
    got = receive_buffer_bytes(community.endpoint.sock)
    if got >= BUFFER_BYTES:
        return None
    return (
        f"the kernel gave {got >> 10} KiB of receive buffer, {BUFFER_BYTES >> 10} were asked for: "
        f"sysctl -w net.core.rmem_max={BUFFER_BYTES} net.core.wmem_max={BUFFER_BYTES}"
    )
