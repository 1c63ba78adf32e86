"""Says what keeps circuits from exits, in words that a user can act on."""

from ipv8.messaging.anonymization.tunnel import CIRCUIT_STATE_READY, CIRCUIT_TYPE_DATA, PEER_FLAG_EXIT_BT

from tunnel_pool.contract import Tunnels
from tunnel_pool.overlay.ground.lanes import detour_of

NOBODY = (
    "No node of the network has answered: look whether this machine is online, whether a firewall lets UDP out, and "
    "whether --bootstrap and --community-id are right"
)


def way_out_in_words(tunnels: Tunnels) -> str:
    """Return why there are no circuits to exits, or longer ones than were asked for; "" where all is well."""
    if not any(tunnels.wanted_circuits().values()):
        return ""
    nodes, exits = len(tunnels.candidates), len(tunnels.get_candidates(PEER_FLAG_EXIT_BT))
    out = [circuit for circuit in tunnels.circuits.values() if circuit.ctype == CIRCUIT_TYPE_DATA]
    ready = [circuit for circuit in out if circuit.state == CIRCUIT_STATE_READY]
    detours = sum(detour_of(circuit) > 0 for circuit in ready)
    if detours:
        return (
            f"{_count(nodes, 'node')} and {_count(exits, 'exit')} are known, and no exit answers from here: "
            f"{_count(detours, 'circuit')} of {len(ready)} lead through a relay more"
        )
    if ready:
        return ""
    if not nodes:
        return NOBODY
    if not exits:
        return f"{_count(nodes, 'node')} answered, and no exit: relays are asked for those that they know"
    return f"{_count(nodes, 'node')} and {_count(exits, 'exit')} are known, but no circuit is ready yet"


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"
