from collections import Counter

from ipv8.keyvault.crypto import default_eccrypto
from ipv8.messaging.anonymization.tunnel import CIRCUIT_STATE_READY, Circuit, Hop
from ipv8.peer import Peer

from tunnel_pool.overlay.clients.sticky import StickyMap
from tunnel_pool.overlay.ground.config import SLOT_SHIFT, slot_of
from tunnel_pool.overlay.ground.lanes import Lane
from tunnel_pool.socks5.address import encode_address
from tunnel_pool.torrent.sessions.dispatch import Dispatcher, connect

A, B, C = (encode_address("1.2.3.4", port) for port in (1, 2, 3))


def test_a_destination_keeps_its_circuit():
    sticky = StickyMap()
    assert sticky.assign(A, [1, 2]) == 1
    assert sticky.get(A) == 1
    assert sticky.get(B) is None


def test_new_destinations_go_to_the_child_then_the_circuit_with_the_fewest():
    sticky = StickyMap(group_of=lambda circuit_id: circuit_id // 10)
    assert [sticky.assign(bytes([i]), [10, 11, 20]) for i in range(4)] == [10, 20, 11, 20]


def test_without_a_ready_circuit_nothing_is_assigned():
    sticky = StickyMap()
    assert sticky.assign(A, []) is None
    assert sticky.get(A) is None


def test_forgetting_a_circuit_tells_whom_it_carried():
    sticky = StickyMap()
    for destination in (A, B):
        sticky.assign(destination, [1])
    sticky.assign(C, [2])
    assert sticky.forget_circuit(1) == [A, B]
    assert sticky.forget_circuit(1) == []
    assert sticky.get(A) is None
    assert sticky.get(C) == 2


def test_the_map_is_bounded_and_drops_the_oldest():
    sticky = StickyMap(max_destinations=2)
    for destination in (A, B, C):
        sticky.assign(destination, [1])
    assert [sticky.get(destination) for destination in (A, B, C)] == [None, 1, 1]


class Tunnels:
    """The part of the contract that a dispatcher uses, with ready circuits in two children."""

    def __init__(self):
        peer = Peer(default_eccrypto.generate_key("curve25519").pub(), ("1.1.1.1", 1))
        self.circuits = {}
        for circuit_id in (5, 1 << SLOT_SHIFT | 5):
            circuit = Circuit(circuit_id, goal_hops=1)
            circuit.add_hop(Hop(peer, flags=[]))
            self.circuits[circuit_id] = circuit
        self.sent = []
        self.refused = []

    def refuse_guest(self, known_as):
        self.refused.append(known_as)

    def circuits_for_new_peers(self, hops, group=0):
        return [c for c in self.circuits.values() if c.goal_hops == hops and c.state == CIRCUIT_STATE_READY]

    def send_datagram(self, circuit_id, address, data):
        self.sent.append((circuit_id, address, data))


class Client:
    def __init__(self, number=1):
        self.id = number
        self.sent = []

    def send(self, address, payload):
        self.sent.append((address, payload))


def make(hops=1):
    tunnels, orphans, client = Tunnels(), [], Client()
    dispatcher = Dispatcher(tunnels, Lane(hops), orphans.append)
    connect(tunnels, [dispatcher])
    dispatcher.association_opened(client)
    return tunnels, dispatcher, client, orphans


async def test_datagrams_of_a_peer_take_one_circuit_and_two_peers_two_children():
    tunnels, dispatcher, client, _ = make()
    for _ in range(3):
        for address in (A, B):
            dispatcher.datagram_received(client, address, b"x")
    by_peer = {destination: set() for _, destination, _ in tunnels.sent}
    for circuit_id, destination, _ in tunnels.sent:
        by_peer[destination].add(slot_of(circuit_id))
    assert by_peer == {A: {0}, B: {1}}


async def test_a_dead_circuit_is_replaced_and_its_peers_are_told():
    tunnels, dispatcher, client, orphans = make()
    dispatcher.datagram_received(client, A, b"x")
    dead = tunnels.circuits.pop(tunnels.sent[-1][0])
    dead.close()
    tunnels.on_circuit_removed(dead, "gone")
    (is_lost,) = orphans
    assert is_lost(("1.2.3.4", 1))
    assert not is_lost(("1.2.3.4", 2))
    dispatcher.datagram_received(client, A, b"y")
    assert tunnels.sent[-1][0] != dead.circuit_id


async def test_a_closing_circuit_is_not_used():
    tunnels, dispatcher, client, _ = make()
    dispatcher.datagram_received(client, A, b"x")
    first = tunnels.sent[-1][0]
    tunnels.circuits[first].close()
    dispatcher.datagram_received(client, A, b"y")
    assert tunnels.sent[-1][0] != first


async def test_without_a_circuit_datagrams_are_dropped_never_sent():
    tunnels, dispatcher, client, _ = make(hops=2)
    dispatcher.datagram_received(client, A, b"x")
    assert tunnels.sent == []
    assert dispatcher.drops == Counter(no_circuit=1)


async def test_incoming_datagrams_reach_the_newest_client_of_their_hop_count():
    tunnels, dispatcher, client, _ = make()
    newer = Client(2)
    dispatcher.association_opened(newer)
    circuit = tunnels.circuits[5]
    tunnels.on_datagram(circuit, A, b"data")
    assert (client.sent, newer.sent) == ([], [(A, b"data")])
    dispatcher.association_closed(newer)
    tunnels.on_datagram(circuit, encode_address("2001:db8::1", 9), b"six")
    assert client.sent == [(encode_address("2001:db8::1", 9), b"six")]
    other = Circuit(9, goal_hops=3)
    tunnels.on_datagram(other, A, b"not ours")
    assert len(client.sent) == 1


async def test_each_client_gets_the_answers_to_what_it_asked_and_the_usual_one_what_nobody_did():
    tunnels, dispatcher, client, _ = make()
    newer = Client(2)
    dispatcher.association_opened(newer)
    for asker, address in ((client, A), (newer, B)):
        dispatcher.datagram_received(asker, address, b"asked")
    (first, _, _), (second, _, _) = tunnels.sent
    tunnels.on_datagram(tunnels.circuits[first], A, b"answer")
    tunnels.on_datagram(tunnels.circuits[second], B, b"answer")
    assert (client.sent, newer.sent) == ([(A, b"answer")], [(B, b"answer")])
    dispatcher.usual_known(client)
    tunnels.on_datagram(tunnels.circuits[first], C, b"unasked")
    assert client.sent[1:] == [(C, b"unasked")]
    # A name answers by an address that nobody sent to.
    dispatcher.datagram_received(newer, encode_address("tracker.example", 80), b"asked")
    over = tunnels.circuits[tunnels.sent[-1][0]]
    tunnels.on_datagram(over, encode_address("1.2.3.5", 80), b"answer")
    assert newer.sent[1:] == [(encode_address("1.2.3.5", 80), b"answer")]
