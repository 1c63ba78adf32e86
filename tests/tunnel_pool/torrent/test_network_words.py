"""Tests the messages that tell users whether exits are reachable, and how."""

import pytest
from ipv8.messaging.anonymization.tunnel import CIRCUIT_TYPE_IP_SEEDER, PEER_FLAG_EXIT_BT, Circuit

from tunnel_pool.overlay.ground.lanes import Lane, set_detour
from tunnel_pool.torrent.network_words import NOBODY, way_out_in_words


class Tunnels:
    """The part of the tunnels that the messages use: counts of nodes and exits, and ready circuits with detours."""

    def __init__(self, nodes=0, exits=0, detours=(), wanted=8):
        self.candidates = range(nodes)
        self._exits, self._wanted = exits, wanted
        self.circuits = {}
        for number, hops in enumerate(detours):
            self.circuits[number] = circuit = Circuit(number, goal_hops=0)
            set_detour(circuit, hops)
        self.circuits[99] = Circuit(99, goal_hops=0, ctype=CIRCUIT_TYPE_IP_SEEDER)

    def get_candidates(self, *flags):
        assert flags == (PEER_FLAG_EXIT_BT,)
        return range(self._exits)

    def wanted_circuits(self):
        return {Lane(1): self._wanted}


CASES = [
    (Tunnels(wanted=0), ""),
    (Tunnels(), NOBODY),
    (Tunnels(1), "1 node answered, and no exit: relays are asked for those that they know"),
    (Tunnels(12, 1), "12 nodes and 1 exit are known, but no circuit is ready yet"),
    (Tunnels(12, 3, [0, 0]), ""),
    (
        Tunnels(12, 3, [1, 1, 0]),
        "12 nodes and 3 exits are known, and no exit answers from here: 2 circuits of 3 lead through a relay more",
    ),
]


@pytest.mark.parametrize(("tunnels", "said"), CASES)
def test_what_is_said(tunnels, said):
    assert way_out_in_words(tunnels) == said
