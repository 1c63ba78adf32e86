"""A node's configuration in control messages: each written by the main process, and read by a child, here.

tests/overlay/test_config_messages.py holds that what is read is what was written.
"""

from collections.abc import Iterable
from dataclasses import asdict

from tunnel_pool.overlay.ground.admission import Admission
from tunnel_pool.overlay.ground.config import ExitFrom, HostPort, OverlayConfig
from tunnel_pool.overlay.ground.exit_rules import NO_RULES, ExitRules
from tunnel_pool.overlay.ground.messages import address_message
from tunnel_pool.packet_engine import EngineChoice
from tunnel_pool.rpc import control_pb2 as pb


def config_message(config: OverlayConfig) -> pb.Create:
    """Return RPC_CREATE with all of the configuration but descriptors, which go to a child by themselves."""
    return pb.Create(
        slot=config.slot,
        member_key=config.member_key,
        sibling_keys=config.siblings,
        listen=address_message(config.listen),
        community_id=config.community_id,
        peer_flags=config.peer_flags,
        bootstrap_default=config.bootstrap_default,
        bootstrap=map(address_message, config.bootstrap),
        allow_private=config.allow_private,
        known_peers=map(address_message, config.known_peers),
        admission=admission_message(config.admission),
        requires_diversity=config.requires_diversity,
        offered_together=config.offered_together,
        engine=config.engine.value,
        exit_rules=config.exit_rules.pack(),
        device=config.device,
        exit_host=config.exit_from.host,
        exit_first_port=config.exit_from.ports[0],
        exit_last_port=config.exit_from.ports[1],
    )


def config_of(message: pb.Create) -> OverlayConfig:
    """Return the configuration that `config_message` wrote."""
    return OverlayConfig(
        slot=message.slot,
        member_key=message.member_key,
        listen=HostPort(message.listen.host, message.listen.port),
        peer_flags=frozenset(message.peer_flags),
        community_id=message.community_id,
        bootstrap_default=message.bootstrap_default,
        bootstrap=_places(message.bootstrap),
        siblings=frozenset(message.sibling_keys),
        known_peers=_places(message.known_peers),
        allow_private=message.allow_private,
        exit_rules=ExitRules.unpack(message.exit_rules) if message.exit_rules else NO_RULES,
        device=message.device,
        exit_from=ExitFrom(message.exit_host, (message.exit_first_port, message.exit_last_port)),
        admission=admission_of(message.admission),
        requires_diversity=message.requires_diversity,
        offered_together=message.offered_together,
        engine=EngineChoice(message.engine or EngineChoice.AUTO.value),
    )


def _places(addresses: Iterable[pb.Address]) -> tuple[HostPort, ...]:
    return tuple(HostPort(address.host, address.port) for address in addresses)


def admission_message(admission: Admission) -> pb.Admission:
    return pb.Admission(**asdict(admission))


def admission_of(message: pb.Admission) -> Admission:
    return Admission(
        message.circuits,
        message.per_neighbour,
        message.per_minute,
        message.handshakes_per_s,
        message.handshakes_per_source_per_s,
        message.closed,
    )
