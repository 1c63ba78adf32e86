"""Tribler's tunnel community over a pool.

Nothing of TriblerTunnelCommunity (Tribler 8, src/tribler/core/tunnel/community.py) is copied: a
class is made of it, whose `super()` is PooledTunnelCommunity instead of py-ipv8's. So what
downloads and seeds need (monitor_downloads and what follows from it) is Tribler's own code.
"""

import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from overlay.config import HostPort, OverlayConfig
from overlay.lanes import Lane
from packet_engine import EngineChoice
from socks5.server import Socks5Server
from tunnel_pool.circuits import PooledCircuits
from tunnel_pool.community import PooledTunnelCommunity
from tunnel_pool.contract import Address
from tunnel_pool.dispatch import Dispatcher, connect, serve_session
from tunnel_pool.errors import UserError
from tunnel_pool.exit_cache import read_exits
from tunnel_pool.hidden import PooledHiddenServices
from tunnel_pool.lost_peers import drop_and_reconnect
from tunnel_pool.pool.command import StartMethod
from tunnel_pool.pool.scaling import WorkerRange
from tunnel_pool.scaler import keep_scaled
from tunnel_pool.speed_test import PooledEndpoint
from tunnel_pool.tunnels import ANYWHERE, EXIT_FLAGS, load_member_key, new_member_key, shares_port

KEYS = "tunnel-pool"  # a folder beside Tribler's exit cache

logger = logging.getLogger(__name__)


OnLostOfHops = Callable[[int, Callable[[Address], bool]], None]
"""Hears of which hop count peers lost their circuit, and which, as a predicate."""


@dataclass(frozen=True, slots=True)
class AdoptionOptions:
    """What Tribler's configuration does not say."""

    workers: WorkerRange
    start_method: StartMethod = StartMethod.SPAWN
    engine: EngineChoice = EngineChoice.AUTO
    listen: HostPort = ANYWHERE
    bootstrap_default: bool = True
    bootstrap: tuple[HostPort, ...] = ()
    allow_private: bool = False
    steering: bool = True


class Socks5Endpoint(PooledEndpoint):
    """What Tribler asks of ipv8-rust-tunnels' endpoint about SOCKS5, by hop count."""

    def __init__(self, community: PooledTunnelCommunity, on_lost: OnLostOfHops, steering: bool) -> None:
        super().__init__(community)
        self._on_lost = on_lost
        self._steering = steering
        self._dispatchers: dict[int, Dispatcher] = {}
        self._servers: dict[int, Socks5Server] = {}
        self._ports: dict[int, int] = {}

    def create_socks5_server(self, port: int, hops: int) -> int:
        """Listen on loopback for the libtorrent session of this hop count; returns the port."""
        on_lost = partial(self._on_lost, hops)
        dispatcher, server = serve_session(self._community, Lane(hops), on_lost, self._steering)
        self._ports[hops] = server.listen(port)
        self._dispatchers[hops] = dispatcher
        self._servers[hops] = server
        connect(self._community, self._dispatchers.values())
        return self._ports[hops]

    def get_socks5_statistics(self) -> list[dict[str, int]]:
        return [
            {"port": self._ports[hops], "hops": hops, "associates": len(server.connections)}
            for hops, server in self._servers.items()
        ]

    def set_udp_associate_default_remote(self, addr: Address, hops: int) -> None:
        """Where the libtorrent session of this hop count listens: it does not say so itself."""
        if hops in self._servers and addr[1]:
            self._servers[hops].set_usual_client(addr[1])

    async def close(self) -> None:
        for server in self._servers.values():
            await server.close()


class PooledFromSettings(PooledTunnelCommunity):
    """PooledTunnelCommunity, made of what Tribler's component launcher gives; its children start with the loop."""

    options: AdoptionOptions
    circuit_removed: object
    readd_bittorrent_peers: Callable[[], None]

    def __init__(self, settings: Any) -> None:
        options = self.options
        keys = _own_keys(settings, options.workers.most)
        super().__init__(
            self._config_of(settings, keys[0]),
            range(options.workers.least),
            settings.max_circuits,
            own_keys=keys,
            start_method=options.start_method,
            shares_port=shares_port(options.workers, options.steering),
        )
        self.settings = settings
        self.crypto_endpoint = self._socks5 = Socks5Endpoint(self, self._on_lost, options.steering)
        self.register_task("start the pool", self._start_pool)
        self.watchers.append(self._readd_peers)

    def _config_of(self, settings: Any, member_key: bytes) -> OverlayConfig:
        flags = set(settings.peer_flags)
        if settings.exitnode_enabled:
            flags |= EXIT_FLAGS
        return OverlayConfig(
            slot=0,
            member_key=member_key,
            listen=self.options.listen,
            peer_flags=frozenset(flags),
            community_id=self.community_id,
            bootstrap_default=self.options.bootstrap_default,
            bootstrap=self.options.bootstrap,
            known_peers=read_exits(Path(settings.exitnode_cache)) if settings.exitnode_cache else (),
            allow_private=self.options.allow_private,
            engine=self.options.engine,
        )

    async def _start_pool(self) -> None:
        try:
            await self.start()
        except UserError as error:
            logger.error("There are no tunnels, and nothing leaves for what wants them: %s", error)
            return
        keep_scaled(self, self.options.workers)

    async def unload(self) -> None:
        await self._socks5.close()
        await super().unload()

    def _forget_circuit(self, circuit_id: int, reason: str) -> None:
        circuit = self.circuits.get(circuit_id)
        super()._forget_circuit(circuit_id, reason)
        if circuit is not None:
            self.settings.notifier.notify(self.circuit_removed, circuit=circuit, additional_info=reason)

    def _on_lost(self, hops: int, is_lost: Callable[[Address], bool]) -> None:
        """Peers have lost their circuit: the libtorrent session of this hop count drops them and asks again."""
        manager = self.settings.download_manager
        if not manager.has_session(hops):
            return
        opened = manager.get_session(hops)
        if opened.done() and not opened.cancelled() and opened.exception() is None:
            ours = [download for download in manager.get_downloads() if download.config.get_hops() == hops]
            handles = [download.handle for download in ours if download.handle and download.handle.is_valid()]
            # libtorrent may let go of a torrent meanwhile.
            with contextlib.suppress(RuntimeError):
                drop_and_reconnect(opened.result(), handles, is_lost)

    def _readd_peers(self) -> None:
        if self.find_circuits():
            self.readd_bittorrent_peers()


def adopt(tribler_class: type, options: AdoptionOptions, circuit_removed: object) -> type:
    """Tribler's class over a pool; `circuit_removed` is the topic of its notifications."""
    return type(
        tribler_class.__name__,
        (tribler_class, PooledFromSettings),
        {
            "__module__": tribler_class.__module__,
            "options": options,
            "circuit_removed": circuit_removed,
            # A circuit goes in one way, whoever wants it to: the one that ends in _forget_circuit.
            "remove_circuit": PooledCircuits.remove_circuit,
            "remove_relay": PooledHiddenServices.remove_relay,
            "remove_exit_socket": PooledHiddenServices.remove_exit_socket,
            # The children start with these addresses.
            "restore_exitnodes_from_disk": lambda self: None,
        },
    )


def _own_keys(settings: Any, workers: int) -> dict[int, bytes]:
    """Others know a key at one port: Tribler's is its other overlays', the first of these is that of a shared port."""
    folder = Path(settings.exitnode_cache).parent if settings.exitnode_cache else None
    return {slot: load_member_key(folder / KEYS, slot) if folder else new_member_key() for slot in range(workers)}
