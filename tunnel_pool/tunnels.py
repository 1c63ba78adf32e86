"""Opening the tunnels a command asked for: in this process, or over a pool of children."""

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

import psutil
from ipv8.keyvault.crypto import default_eccrypto
from ipv8.messaging.anonymization.tunnel import (
    PEER_FLAG_EXIT_BT,
    PEER_FLAG_EXIT_IPV8,
    PEER_FLAG_RELAY,
    PEER_FLAG_SPEED_TEST,
)

from overlay.community import PoolTunnelCommunity
from overlay.config import MAX_SLOTS, TRIBLER_COMMUNITY_ID, HostPort, OverlayConfig
from overlay.http import PEER_FLAG_EXIT_HTTP
from overlay.node import open_overlay
from overlay.udp import CannotBindError
from packet_engine import EngineChoice, EngineMissingError, choose
from tunnel_pool.community import PooledTunnelCommunity
from tunnel_pool.contract import Tunnels
from tunnel_pool.errors import UserError
from tunnel_pool.exit_cache import read_exits, remember_exits
from tunnel_pool.files import write_atomically
from tunnel_pool.pool.command import StartMethod
from tunnel_pool.pool.pool import ProcessPool
from tunnel_pool.pool.scaling import WorkerRange
from tunnel_pool.scaler import circuits_for, keep_scaled

MAX_WORKERS = MAX_SLOTS
ANYWHERE = HostPort("0.0.0.0", 0)  # noqa: S104
EXIT_FLAGS = frozenset({PEER_FLAG_EXIT_BT, PEER_FLAG_EXIT_IPV8, PEER_FLAG_EXIT_HTTP})
EXITS_FILE = "exits-{}.dat"
KEY_FILE = "member_key{}.bin"


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """What every command that joins the network is told."""

    workers: WorkerRange
    state_dir: Path
    listen: HostPort = ANYWHERE
    bootstrap_default: bool = False
    bootstrap: tuple[HostPort, ...] = ()
    community_id: bytes = TRIBLER_COMMUNITY_ID
    allow_private: bool = False
    exit: bool = False
    engine: EngineChoice = EngineChoice.AUTO
    steering: bool = True  # clients' datagrams past the main process, where the system can do that
    circuits: int = 0  # per hop count; 0: enough for the workers
    serves: bool = False  # whether it is there for others: a node, not a download
    start_method: StartMethod = StartMethod.SPAWN


def physical_cores() -> int:
    return psutil.cpu_count(logical=False) or os.cpu_count() or 1


def new_member_key() -> bytes:
    return bytes(default_eccrypto.generate_key("curve25519").key_to_bin())


def load_member_key(state_dir: Path, slot: int = 0) -> bytes:
    """A private key, made at the first start; only its owner may read it. Raises UserError."""
    path = state_dir / KEY_FILE.format(f"-{slot}" if slot else "")
    try:
        state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        with contextlib.suppress(FileNotFoundError):
            key: bytes = path.read_bytes()
            default_eccrypto.key_from_private_bin(key)
            return key
        key = new_member_key()
        write_atomically(path, key)
    except OSError as error:
        raise UserError(f"cannot keep state in {state_dir}: {error.strerror}; choose another with --state") from None
    except ValueError:
        raise UserError(f"{path} is not a member key; move it away to get a new one") from None
    return key


def pool_of(tunnels: Tunnels) -> ProcessPool | None:
    """The children behind the tunnels, None in one process."""
    return tunnels.pool if isinstance(tunnels, PooledTunnelCommunity) else None


def peer_flags(options: NodeOptions) -> frozenset[int]:
    """What the node offers to others.

    Peers of this network know a key at one address, the last that it spoke
    from. The children of a download share a key, so that none takes another
    as a hop, and speak from several ports: circuits through them would break.
    """
    flags = {PEER_FLAG_SPEED_TEST}
    if options.serves or options.workers.most < 2:
        flags.add(PEER_FLAG_RELAY)
    if options.exit:
        flags |= EXIT_FLAGS
    return frozenset(flags)


async def open_tunnels(options: NodeOptions) -> Tunnels:
    """Running tunnels that keep tunnel_pool.contract. Raises UserError."""
    try:
        engine = choose(options.engine)
    except EngineMissingError as error:
        raise UserError(str(error)) from None
    exits_path = options.state_dir / EXITS_FILE.format(options.community_id.hex()[:8])
    config = OverlayConfig(
        slot=0,
        member_key=load_member_key(options.state_dir),
        listen=options.listen,
        peer_flags=peer_flags(options),
        community_id=options.community_id,
        bootstrap_default=options.bootstrap_default,
        bootstrap=options.bootstrap,
        allow_private=options.allow_private,
        engine=engine,
        known_peers=read_exits(exits_path),
    )
    tunnels = await (_open_pool if options.workers.most > 0 else _open_plain)(options, config)
    tunnels.register_task("remember exits", remember_exits, tunnels, exits_path)
    return tunnels


async def _open_plain(options: NodeOptions, config: OverlayConfig) -> PoolTunnelCommunity:
    try:
        plain = await open_overlay(config)
    except CannotBindError as error:
        raise UserError(str(error)) from None
    plain.settings.max_circuits = options.circuits or circuits_for(1)
    return plain


async def _open_pool(options: NodeOptions, config: OverlayConfig) -> PooledTunnelCommunity:
    least, most = options.workers
    own_keys = {slot: load_member_key(options.state_dir, slot) for slot in range(most)} if options.serves else None
    max_circuits = options.circuits or circuits_for(least)
    pooled = PooledTunnelCommunity(
        config, range(least), max_circuits, own_keys=own_keys, start_method=options.start_method
    )
    try:
        await pooled.start()
    except BaseException:
        await pooled.unload()
        raise
    keep_scaled(pooled, options.workers, circuits_follow=not options.circuits)
    return pooled
