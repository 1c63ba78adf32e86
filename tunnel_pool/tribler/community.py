"""Tribler's tunnel community over a pool.

Nothing of TriblerTunnelCommunity (Tribler 8, src/tribler/core/tunnel/community.py) is copied: a
class is made of it, whose `super()` is PooledTunnelCommunity instead of py-ipv8's. So what
downloads and seeds need (monitor_downloads and what follows from it) is Tribler's own code.
"""

import asyncio
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tunnel_pool.contract import Address
from tunnel_pool.exit_cache import read_exits
from tunnel_pool.overlay.ground.config import HostPort, OverlayConfig
from tunnel_pool.packet_engine import EngineChoice
from tunnel_pool.pool.command import StartMethod
from tunnel_pool.pool.scaling import WorkerRange
from tunnel_pool.pooled.circuits import PooledCircuits
from tunnel_pool.pooled.community import PooledTunnelCommunity
from tunnel_pool.pooled.hidden_services import OnPeer, PooledHiddenServices
from tunnel_pool.pooled.scaler import PoolScaling
from tunnel_pool.system.errors import UserError
from tunnel_pool.tribler.neighbours import Neighbours
from tunnel_pool.tribler.socks5 import Socks5Endpoint
from tunnel_pool.tunnels import ANYWHERE, EXIT_FLAGS, load_member_key, new_member_key, shares_port

ENDPOINT_LOOK_S = 0.05
TUNE_INTERVAL_S = 1.0
KEYS = "tunnel-pool"  # a folder beside Tribler's exit cache

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AdoptionOptions:
    """The options that Tribler's configuration does not have."""

    workers: WorkerRange
    start_method: StartMethod = StartMethod.SPAWN
    engine: EngineChoice = EngineChoice.AUTO
    listen: HostPort = ANYWHERE
    bootstrap_default: bool = True
    bootstrap: tuple[HostPort, ...] = ()
    allow_private: bool = False
    steering: bool = True


class PooledFromSettings(PooledTunnelCommunity):
    """Makes a PooledTunnelCommunity of what Tribler's launcher gives; its children start with the loop."""

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
        self.crypto_endpoint = self._socks5 = Socks5Endpoint(self, settings.download_manager, options.steering)
        self._neighbours = Neighbours(settings.network, self.community_id, settings.my_peer)
        self.register_task("start the pool", self._start_pool)
        self.register_task("tune libtorrent sessions", self._socks5.tune_sessions, interval=TUNE_INTERVAL_S)
        # Tribler's own class puts another in its place in the settings.
        self.register_task("let other overlays hear", self._let_others_hear, settings.endpoint)
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
            known_peers=_cached_exits(settings),
            allow_private=self.options.allow_private,
            engine=self.options.engine,
        )

    async def _start_pool(self) -> None:
        try:
            await self.start()
        except UserError as error:
            logger.error("There are no tunnels, and nothing leaves for what wants them: %s", error)
            return
        PoolScaling(self, self.options.workers).start()

    async def _let_others_hear(self, endpoint: Any) -> None:
        """Let Tribler's endpoint hand out packets of the other overlays.

        ipv8-rust-tunnels forgets which overlays there are when it is opened, until it is set up for tunnels or one
        of its listeners changes. In Tribler the tunnels set it up; over a pool they don't.
        """
        while not endpoint.is_open():  # noqa: ASYNC110 - py-ipv8 tells nobody
            await asyncio.sleep(ENDPOINT_LOOK_S)
        endpoint.remove_listener(self)

    async def unload(self) -> None:
        await self._socks5.close()
        await super().unload()

    def restore_exits(self) -> None:
        """Let Tribler's other overlays meet the exits of the last run; the children start with their addresses."""
        self._neighbours.let_walk_to(_cached_exits(self.settings))

    def candidates_changed(self) -> None:
        super().candidates_changed()
        self._neighbours.show(self.candidates)

    def _forget_circuit(self, circuit_id: int, reason: str) -> None:
        circuit = self.circuits.get(circuit_id)
        super()._forget_circuit(circuit_id, reason)
        if circuit is not None:
            self.settings.notifier.notify(self.circuit_removed, circuit=circuit, additional_info=reason)

    def join_swarm(
        self, info_hash: bytes, hops: int, callback: OnPeer | None = None, seeding: bool = True, group: int = 0
    ) -> None:
        """Join, and let Tribler have the other ends of circuits once it is known how to meet them."""

        def told(peer: Address) -> None:
            if callback is not None:
                self._socks5.add_end(hops, peer, callback)

        super().join_swarm(info_hash, hops, told, seeding, group)

    def _readd_peers(self) -> None:
        if self.find_circuits():
            self.readd_bittorrent_peers()


def adopt(tribler_class: type, options: AdoptionOptions, circuit_removed: object) -> type:
    """Return Tribler's class over a pool; `circuit_removed` is the topic of its notifications."""
    return type(
        tribler_class.__name__,
        (tribler_class, PooledFromSettings),
        {
            "__module__": tribler_class.__module__,
            "options": options,
            "circuit_removed": circuit_removed,
            # This replaces Tribler's own method, so that every removal of a circuit ends in _forget_circuit.
            "remove_circuit": PooledCircuits.remove_circuit,
            "remove_relay": PooledHiddenServices.remove_relay,
            "remove_exit_socket": PooledHiddenServices.remove_exit_socket,
            "restore_exitnodes_from_disk": PooledFromSettings.restore_exits,
        },
    )


def _own_keys(settings: Any, workers: int) -> dict[int, bytes]:
    """Return a key for each slot: others know a key at one port, and Tribler's own key is at its other overlays' port.

    Children that share a port all use the first key.
    """
    cache = _exit_cache(settings)
    if cache is None:
        return {slot: new_member_key() for slot in range(workers)}
    return {slot: load_member_key(cache.parent / KEYS, slot) for slot in range(workers)}


def _cached_exits(settings: Any) -> tuple[HostPort, ...]:
    cache = _exit_cache(settings)
    return read_exits(cache) if cache is not None else ()


def _exit_cache(settings: Any) -> Path | None:
    """Return the file that Tribler keeps exits in; None where there is none, as in Tribler's own tests."""
    return Path(settings.exitnode_cache) if isinstance(settings.exitnode_cache, str | os.PathLike) else None
