"""Opening the tunnels a command asked for: in this process, or over a pool of children."""

import contextlib
import logging
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import psutil
from ipv8.keyvault.crypto import default_eccrypto
from ipv8.messaging.anonymization.tunnel import (
    PEER_FLAG_EXIT_BT,
    PEER_FLAG_EXIT_IPV8,
    PEER_FLAG_RELAY,
    PEER_FLAG_SPEED_TEST,
)

from tunnel_pool.contract import Tunnels
from tunnel_pool.exit_cache import read_exits, remember_exits
from tunnel_pool.guard_file import keep_guards, read_guards
from tunnel_pool.kept_file import keep_file, restore_file
from tunnel_pool.overlay.community import LocalTunnelCommunity
from tunnel_pool.overlay.ground.admission import NO_MORE_THAN_USUAL, Admission
from tunnel_pool.overlay.ground.config import (
    ANY_SOURCE,
    MAX_SLOTS,
    TRIBLER_COMMUNITY_ID,
    ExitFrom,
    HostPort,
    OverlayConfig,
)
from tunnel_pool.overlay.ground.endless import register_endless
from tunnel_pool.overlay.ground.exit_rules import (
    BITTORRENT_FLAG_PROTOCOLS,
    NO_RULES,
    STREAM_PROTOCOLS,
    ExitRules,
    Protocol,
)
from tunnel_pool.overlay.ground.networks import use_as_numbers
from tunnel_pool.overlay.ground.offers import MOST_TOGETHER
from tunnel_pool.overlay.ground.streams import PEER_FLAG_EXIT_IPV6, PEER_FLAG_EXIT_STREAMS
from tunnel_pool.overlay.node import open_overlay, socket_warning
from tunnel_pool.overlay.node_community import PEER_FLAG_EXIT_BACKUP
from tunnel_pool.overlay.paths.as_numbers import AsDatabaseError, open_as_numbers
from tunnel_pool.overlay.paths.exit_scores import ExitScores
from tunnel_pool.overlay.paths.guards import Guards
from tunnel_pool.overlay.requests.http import PEER_FLAG_EXIT_HTTP
from tunnel_pool.overlay.serving.exit_source import ExitSource
from tunnel_pool.overlay.serving.limits import LimitsMemory
from tunnel_pool.overlay.wire.udp import CannotBindError
from tunnel_pool.packet_engine import SLOW, EngineChoice, EngineMissingError, choose, is_built
from tunnel_pool.pool.command import StartMethod
from tunnel_pool.pool.scaling import WorkerRange
from tunnel_pool.pooled.community import PooledTunnelCommunity
from tunnel_pool.pooled.scaler import PoolScaling, circuits_for
from tunnel_pool.steering.group import can_steer
from tunnel_pool.system.errors import UserError
from tunnel_pool.system.files import write_atomically
from tunnel_pool.system.state import cannot_keep_state

MAX_WORKERS = MAX_SLOTS
ANYWHERE = HostPort("0.0.0.0", 0)  # noqa: S104
EXIT_FLAGS = frozenset({PEER_FLAG_EXIT_BT, PEER_FLAG_EXIT_IPV8, PEER_FLAG_EXIT_HTTP})
# What others look for an exit by; one that lets only a part of BitTorrent out does not call itself an exit for it.
FLAGS_OF_PROTOCOLS = {
    BITTORRENT_FLAG_PROTOCOLS: PEER_FLAG_EXIT_BT,
    Protocol.IPV8: PEER_FLAG_EXIT_IPV8,
    Protocol.HTTP: PEER_FLAG_EXIT_HTTP,
}
EXITS_FILE = "exits-{}.dat"
GUARDS_FILE = "guards-{}.json"
EXIT_SCORES_FILE = "exit-scores-{}.json"
KEY_FILE = "member_key{}.bin"
NO_PROTOCOL = Protocol(0)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """Holds what every command that joins the network is told."""

    workers: WorkerRange
    state_dir: Path
    listen: HostPort = ANYWHERE
    bootstrap_default: bool = False
    bootstrap: tuple[HostPort, ...] = ()
    community_id: bytes = TRIBLER_COMMUNITY_ID
    allow_private: bool = False
    exit_protocols: Protocol = NO_PROTOCOL
    is_backup_exit: bool = False  # whether others are to take this exit only when no other answers
    exit_rules: ExitRules = NO_RULES
    admission: Admission = NO_MORE_THAN_USUAL
    engine: EngineChoice = EngineChoice.AUTO
    steering: bool = True  # the kernel gives each child its datagrams, clients' and cells, where it can
    circuits: int = 0  # per hop count; 0: enough for the workers
    serves: bool = False  # whether it serves others: a node does, a download does not
    start_method: StartMethod = StartMethod.SPAWN
    nice: int = 0  # how much nicer children are than the main process
    limits: LimitsMemory | None = None
    guards: int = 0  # first hops that circuits of several hops use at a time; 0: any, chosen anew for each circuit
    requires_diversity: bool = False  # whether the hops of a circuit must be in different networks
    offered_together: int = MOST_TOGETHER  # the most hidden torrents that are offered over one circuit
    as_database: Path | None = None  # a database of AS numbers, in the MaxMind DB format
    keeps_key: bool = True  # whether restarts keep the key, by which others recognize a client wherever it is
    relays: bool = True  # whether it relays for others, where that can be
    device: str = ""
    exit_from: ExitFrom = ANY_SOURCE


def physical_cores() -> int:
    return psutil.cpu_count(logical=False) or os.cpu_count() or 1


def new_member_key() -> bytes:
    return bytes(default_eccrypto.generate_key("curve25519").key_to_bin())


def load_member_key(state_dir: Path, slot: int = 0) -> bytes:
    """Return a private key, made at the first start; only its owner may read it. Raises UserError."""
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
        raise cannot_keep_state(state_dir, error) from None
    except ValueError:
        raise UserError(f"{path} is not a member key; move it away to get a new one") from None
    return key


def _member_key(options: NodeOptions, slot: int = 0) -> bytes:
    """Raises UserError."""
    return load_member_key(options.state_dir, slot) if options.keeps_key else new_member_key()


def shares_port(workers: WorkerRange, steering: bool) -> bool:
    """Return whether the children are one node to others, at one port."""
    return workers.most > 0 and steering and can_steer()


def peer_flags(options: NodeOptions) -> frozenset[int]:
    """Return the peer flags of what the node offers to others.

    The children of a download that have a port each are several nodes to others,
    which come and go; they relay for nobody.
    """
    if not options.relays:
        return frozenset()
    flags = {PEER_FLAG_SPEED_TEST}
    if options.serves or options.workers.most < 2 or shares_port(options.workers, options.steering):
        flags.add(PEER_FLAG_RELAY)
    for protocol, flag in FLAGS_OF_PROTOCOLS.items():
        if protocol in options.exit_protocols:
            flags.add(flag)
    if options.exit_protocols & STREAM_PROTOCOLS and choose(options.engine) is EngineChoice.NATIVE:
        flags.add(PEER_FLAG_EXIT_STREAMS)
    source = ExitSource(options.exit_from.host or options.listen.host, options.exit_from.ports, options.device)
    if options.exit_protocols and source.reaches_ipv6():
        flags.add(PEER_FLAG_EXIT_IPV6)
    if options.exit_protocols and options.is_backup_exit:
        flags.add(PEER_FLAG_EXIT_BACKUP)
    return frozenset(flags)


async def open_tunnels(options: NodeOptions) -> Tunnels:
    """Return running tunnels that keep tunnel_pool.contract: over a pool where children are asked for.

    Raises UserError.
    """
    if options.engine is EngineChoice.AUTO and not is_built():
        logger.warning("%s", SLOW)
    return await (open_pool(options) if options.workers.most > 0 else open_local(options))


async def open_local(options: NodeOptions) -> LocalTunnelCommunity:
    """Return running tunnels in this process. Raises UserError."""
    guards = _read_guards(options)
    config = _overlay_config(options, guards)
    if (database := _open_as_database(options.as_database)) is not None:
        database.close()
    try:
        local = await open_overlay(config)
    except CannotBindError as error:
        raise UserError(str(error)) from None
    if guards is not None:
        local.use_guards(guards)
    _restore_scores(local.exit_scores, options)
    local.settings.max_circuits = options.circuits or circuits_for(1)
    if options.serves and (warning := socket_warning(local)):
        logger.warning("%s", warning)
    _keep(local, options, guards)
    return local


async def open_pool(options: NodeOptions) -> PooledTunnelCommunity:
    """Return running tunnels over children. Raises UserError."""
    guards = _read_guards(options)
    config = _overlay_config(options, guards)
    least, most = options.workers
    shared = shares_port(options.workers, options.steering)
    own_keys = None
    if not shared:  # peers know a key at one address
        others = {slot: _member_key(options, slot) for slot in range(1, most)}
        own_keys = {0: config.member_key, **others}
    pooled = PooledTunnelCommunity(
        config,
        range(least),
        options.circuits or circuits_for(least),
        own_keys=own_keys,
        start_method=options.start_method,
        nice=options.nice,
        shares_port=shared,
        limits=options.limits,
        guards=guards,
        as_database=_open_as_database(options.as_database),
    )
    _restore_scores(pooled.exit_scores, options)
    try:
        await pooled.start()
        PoolScaling(pooled, options.workers, circuits_follow=not options.circuits)
    except BaseException:
        await pooled.unload()
        raise
    _keep(pooled, options, guards)
    return pooled


def _overlay_config(options: NodeOptions, guards: Guards | None) -> OverlayConfig:
    """Return what the overlay is told of these options. Raises UserError."""
    try:
        engine = choose(options.engine)
    except EngineMissingError as error:
        raise UserError(str(error)) from None
    guard_places = [HostPort(*place) for place in guards.places()] if guards is not None else []
    return OverlayConfig(
        slot=0,
        member_key=_member_key(options),
        listen=options.listen,
        peer_flags=peer_flags(options),
        community_id=options.community_id,
        bootstrap_default=options.bootstrap_default,
        bootstrap=options.bootstrap,
        allow_private=options.allow_private,
        exit_rules=options.exit_rules,
        device=options.device,
        exit_from=options.exit_from,
        admission=options.admission,
        requires_diversity=options.requires_diversity,
        offered_together=options.offered_together,
        engine=engine,
        known_peers=tuple(dict.fromkeys([*guard_places, *read_exits(_state_file(options, EXITS_FILE))])),
        limits=options.limits.fileno() if options.limits is not None else None,
    )


def _state_file(options: NodeOptions, name: str) -> Path:
    """Return the file of this name, one for each network."""
    return options.state_dir / name.format(options.community_id.hex()[:8])


def _read_guards(options: NodeOptions) -> Guards | None:
    return read_guards(_state_file(options, GUARDS_FILE), options.guards) if options.guards else None


def _restore_scores(scores: ExitScores, options: NodeOptions) -> None:
    """Take how well exits served in the last run; nothing is lost but time where that can't be read."""
    lost = "How well exits served in the last run can't be read"
    restore_file(_state_file(options, EXIT_SCORES_FILE), lambda kept: scores.restore(kept, time.time()), lost)


def _keep(tunnels: LocalTunnelCommunity | PooledTunnelCommunity, options: NodeOptions, guards: Guards | None) -> None:
    """Write down guards and exits as they change, for the next start."""
    if guards is not None:
        register_endless(tunnels, "keep guards", keep_guards, guards, _state_file(options, GUARDS_FILE))
    register_endless(tunnels, "remember exits", remember_exits, tunnels, _state_file(options, EXITS_FILE))
    scores, path = tunnels.exit_scores, _state_file(options, EXIT_SCORES_FILE)
    lost = "How well exits served is not kept over a restart"
    register_endless(tunnels, "keep scores", keep_file, path, lambda: scores.changes, scores.encode, lost)


def _open_as_database(path: Path | None) -> BinaryIO | None:
    """Tell networks of addresses by it in this process; children get the file. Raises UserError."""
    if path is None:
        return None
    try:
        database = path.open("rb")
        use_as_numbers(open_as_numbers(database.fileno()))
    except OSError as error:
        raise UserError(f"--asn-db {path}: {error.strerror}") from None
    except AsDatabaseError as error:
        raise UserError(f"--asn-db {path}: {error}") from None
    return database
