"""Says how PooledTunnelCommunity offers each name of py-ipv8's HiddenTunnelCommunity, or why it does not.

docs/SURFACE.md is this table (`python -m tunnel_pool.pooled.surface`); tests/whole/test_surface.py
reads the class and fails when a name is missing here, or is not as it says.
"""

import sys
from enum import Enum
from pathlib import Path
from typing import NamedTuple


class Kind(Enum):
    SAME = "same"
    POOLED = "pooled"
    CHILDREN = "children"


class Entry(NamedTuple):
    kind: Kind
    how: str


class LivesInChildrenError(AttributeError, NotImplementedError):
    """Says that the pool was asked for what only a child has."""


SURFACE: dict[str, Entry] = {}


def _add(kind: Kind, how: str, names: str) -> None:
    for name in names.split():
        SURFACE[name] = Entry(kind, how)


_MIRRORED = "py-ipv8's own code, on the tables that RPC_SYNC keeps here"
_add(
    Kind.SAME,
    _MIRRORED,
    """get_candidates select_exit select_circuit
    select_circuit_for_infohash create_circuit_for_infohash get_max_time
    get_prefix version""",
)
_add(
    Kind.POOLED,
    "of our circuits alone: the address is drawn at random, as libtorrent tells it to peers",
    "circuit_id_to_ip ip_to_circuit_id",
)
_add(
    Kind.SAME,
    "py-ipv8's TaskManager, ended by `unload`",
    """cancel_all_pending_tasks cancel_pending_task get_anonymous_tasks get_task get_tasks is_pending_task_active
    register_anonymous_task register_executor_task register_shutdown_task register_task replace_task
    shutdown_task_manager wait_for_tasks""",
)

_add(Kind.POOLED, "the circuit's child does it (RPC_CIRCUIT, remove_circuit)", "create_circuit remove_circuit")
_add(Kind.POOLED, "the child that has the route does it (remove_route)", "remove_relay remove_exit_socket")
_add(
    Kind.POOLED,
    "as in py-ipv8, and by isolation group: of group 0 when none is named",
    "build_tunnels find_circuits tunnels_ready",
)
_add(Kind.POOLED, "what is wanted is shared out among the children", "do_circuits")
_add(Kind.POOLED, "by the child of the circuit's slot, over the data stream", "send_data")
_add(Kind.POOLED, "replace it, as ever: called with each datagram that comes back", "on_raw_data")
_add(Kind.POOLED, "the swarm's child does it (RPC_MONITOR), another when that one dies", "join_swarm leave_swarm")
_add(Kind.POOLED, "the swarm's child does it (introduce); it makes the first unasked", "create_introduction_point")
_add(Kind.POOLED, "the least loaded child asks (estimate_swarm)", "estimate_swarm_size")
_add(Kind.POOLED, "ends the children and everything here", "unload")
_add(Kind.POOLED, "those of all children", "get_peers candidates")
_add(Kind.POOLED, "mirrors of all children's, kept by RPC_SYNC", "circuits swarms")
_add(
    Kind.POOLED,
    "mirrors of all children's, made when asked for",
    "relay_from_to exit_sockets intro_point_for rendezvous_point_for",
)
_add(Kind.POOLED, "as in py-ipv8: here", "circuits_needed e2e_callbacks logger my_peer crypto community_id")
_add(Kind.POOLED, "as in py-ipv8; children take `peer_flags` at their start", "settings settings_class")
_add(
    Kind.POOLED,
    "has `run_speedtest`, as ipv8-rust-tunnels' endpoint does; the circuit's child does it",
    "crypto_endpoint",
)
_add(Kind.POOLED, "empty: PEX is between introduction points, which children are", "pex")
_add(Kind.POOLED, "None: each child that relays has its own DHT", "dht_provider")
_add(Kind.POOLED, "None: the main process is on no network", "ipv8 endpoint")
_add(Kind.POOLED, "holds the children's candidates", "network")
_add(Kind.POOLED, "those of every child's community together", "max_peers")
_add(Kind.POOLED, "where the first child listens", "my_estimated_lan my_estimated_wan")
_add(
    Kind.POOLED,
    "by the port that the children share; with ports of their own they find nodes",
    "walk_to",
)
_add(Kind.POOLED, "0 and empty: no message of the overlay reaches the main process", "global_time decode_map")
_add(Kind.POOLED, "False, as in py-ipv8", "anonymize")

_add(
    Kind.CHILDREN,
    "a message handler: cells and overlay messages reach the children alone",
    """on_cell on_create on_create_e2e on_created on_created_e2e on_data on_destroy on_establish_intro
    on_establish_rendezvous on_extend on_extended on_intro_established on_link_e2e on_linked_e2e on_packet
    on_packet_from_circuit on_peers_request on_peers_response on_ping on_pong on_rendezvous_established
    on_test_request on_test_response on_deprecated_message on_introduction_request on_introduction_response
    on_new_introduction_request on_new_introduction_response on_new_puncture on_new_puncture_request
    on_old_introduction_request on_old_introduction_response on_old_puncture_request on_puncture
    on_puncture_request introduction_request_callback introduction_response_callback add_cell_handler
    add_message_handler decode_map_private deprecated_message_names""",
)
_add(
    Kind.CHILDREN,
    "sends or packs a message of the overlay: the children do, over their sockets",
    """send_cell send_destroy send_extend send_initial_create send_packet send_peers_request send_peers_response
    send_test_request tunnel_data exit_data ez_send ezr_pack get_serializer serializer request_cache
    create_puncture create_puncture_request create_introduction_request create_introduction_response
    send_introduction_request""",
)
_add(
    Kind.CHILDREN,
    "a step of building, joining or linking a circuit, which its child takes",
    """create_e2e create_created_e2e create_rendezvous_point join_circuit should_join_circuit do_peer_discovery""",
)
_add(Kind.CHILDREN, "housekeeping of circuits, which their children do", "do_ping do_remove")
_add(
    Kind.CHILDREN,
    "use remove_circuit, remove_relay or remove_exit_socket with `destroy`",
    "destroy_circuit destroy_relay destroy_exit_socket",
)
_add(Kind.CHILDREN, "each child that relays has its own DHT", "dht_announce dht_lookup dht_peer_lookup")
_add(Kind.CHILDREN, "read from messages, which reach the children alone", "extract_peer_flags")
_add(
    Kind.CHILDREN,
    "discovery is the children's: their sockets, their addresses",
    """bootstrap bootstrappers get_new_introduction get_peer_for_introduction get_walkable_addresses
    get_available_strategies ensure_blacklisted guess_address address_in_lan_subnets address_is_lan
    discover_lan_addresses get_ipv6_address is_ipv6_listener my_preferred_address claim_global_time
    update_global_time use_main_thread""",
)


def refuse_the_rest(owner: type) -> type:
    """Decorate a class so that names that only children have say so when they are used."""
    for name, entry in SURFACE.items():
        if entry.kind is Kind.CHILDREN:
            setattr(owner, name, _Refusal(name, entry.how))
    return owner


class _Refusal:
    """An attribute that says why it is not there; a caller may set it all the same, as tests of Tribler's do."""

    def __init__(self, name: str, how: str) -> None:
        self._name = name
        self._how = how

    def __get__(self, instance: object, owner: type) -> "_Refusal":
        if instance is None:
            return self
        raise LivesInChildrenError(f"PooledTunnelCommunity has no {self._name}: {self._how}")


def markdown() -> str:
    """Return the text of docs/SURFACE.md."""
    lines = [
        "# PooledTunnelCommunity beside py-ipv8's HiddenTunnelCommunity",
        "",
        "Every public name of py-ipv8's class, and what it is over a pool.",
        "",
        "Made by `python -m tunnel_pool.pooled.surface`.",
        "",
        "- **same**: py-ipv8's own code",
        "- **pooled**: ours, to the same effect",
        "- **children**: not in the main process; asking for it says why",
        "",
        "| name | | how, or why not |",
        "| --- | --- | --- |",
    ]
    for kind in Kind:
        names = sorted(name for name, entry in SURFACE.items() if entry.kind is kind)
        lines += [f"| `{name}` | {kind.value} | {SURFACE[name].how} |" for name in names]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1] if len(sys.argv) > 1 else "docs/SURFACE.md").write_text(markdown())
