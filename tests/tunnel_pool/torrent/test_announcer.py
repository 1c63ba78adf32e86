"""Tests which circuit a session's questions take, and how the datagrams that arrive over the circuit are handled."""

import time

import pytest
from ipv8.keyvault.crypto import default_eccrypto
from ipv8.messaging.anonymization.tunnel import CIRCUIT_STATE_READY, Circuit, Hop
from ipv8.peer import Peer

from tests.tunnel_pool.torrent.test_announces import CONNECT_START, announce, answer_to, node
from tunnel_pool.overlay.ground.lanes import Lane
from tunnel_pool.overlay.requests.dht_pings import ping
from tunnel_pool.overlay.requests.http import PEER_FLAG_EXIT_HTTP
from tunnel_pool.socks5.address import encode_address
from tunnel_pool.torrent.announces.announcer import (
    ANNOUNCE_S,
    ANSWER_S,
    ASK_S,
    DHT_AGAIN_S,
    Announcer,
    Came,
    NoCircuitError,
)
from tunnel_pool.torrent.announces.choice import Life
from tunnel_pool.torrent.announces.udp_trackers import AGAIN_S

LIFE = Life(max_s=1000, max_bytes=1 << 30)
TRACKER, PEER = encode_address("tracker.example", 80), encode_address("9.9.9.9", 6881)
CONNECT = CONNECT_START + b"tran"
NODES = [node(number) for number in range(1, 5)]
SYN, DATA = b"\x41\0" + bytes(18), b"\x01\0" + bytes(18)
HTTP = b"GET /announce?info_hash=ab&port=1&uploaded=0&downloaded=0&key=1 HTTP/1.1\r\n\r\n"


class Tunnels:
    """The part of the contract that an announcer uses; DHT nodes answer over circuits that are `heard`."""

    def __init__(self):
        self.circuits, self.sent, self.announced, self.created = {}, [], [], []
        self.exits_for_http = []
        self.announces_at_once = True

    def add(self, circuit_id, age_s=0.0, by_http=False):
        peer = Peer(default_eccrypto.generate_key("curve25519").pub(), ("1.1.1.1", 1))
        circuit = self.circuits[circuit_id] = Circuit(circuit_id, goal_hops=1)
        circuit.add_hop(Hop(peer, flags=[]))
        circuit.creation_time = time.time() - age_s
        assert circuit.state == CIRCUIT_STATE_READY
        if by_http:
            self.exits_for_http.append(peer)

    def circuits_for_new_peers(self, hops, group=0):
        return list(self.circuits.values())

    def announce_over(self, circuit_id, then):
        self.announced.append(circuit_id)
        self.then = then
        if self.announces_at_once:
            then()

    def send_datagram(self, circuit_id, address, payload):
        self.sent.append((circuit_id, address, payload))

    def get_candidates(self, *flags):
        assert flags == (PEER_FLAG_EXIT_HTTP,)
        return self.exits_for_http

    def create_circuit(self, hops, ctype, exit_flags, group):
        self.created.append(exit_flags)


class Session:
    def __init__(self):
        self.announces = []
        self.connected = set()

    def announce_anew(self, *, to_trackers):
        self.announces.append(to_trackers)

    def account_of(self, infohash):
        return None

    def is_udp_tracker(self, host, port):
        return False

    def is_connected(self, peer):
        return peer in self.connected


class World:
    def __init__(self):
        self.tunnels, self.session, self.now_s = Tunnels(), Session(), 1000.0
        self.announcer = Announcer(self.tunnels, Lane(1), self.session, LIFE, clock=lambda: self.now_s)

    def meet_nodes(self):
        """Have libtorrent ask DHT nodes, which answer."""
        for address in NODES:
            asked = self.announcer.ask(address, ping(b"lt", bytes(20)))
            assert self.announcer.came(asked.circuit_id, address, b"d1:rde1:t2:lt1:y1:re") != Came.TAKEN

    def look(self, later_s=1.0, seen=None):
        """Look after a while; nodes that are asked say then that a circuit is `seen` at a port, by its id."""
        self.now_s += later_s
        self.tunnels.sent.clear()
        self.announcer.look()
        for circuit_id, address, question in self.tunnels.sent:
            if circuit_id in (seen or {}):
                answer = answer_to(question, ("5.6.7.8", seen[circuit_id]))
                assert self.announcer.came(circuit_id, address, answer) is Came.TAKEN
        self.announcer.look()


@pytest.fixture
def world():
    return World()


def found(world, seen):
    """Return the world once its circuits are seen at these ports."""
    world.look()
    world.meet_nodes()
    world.look(seen=seen)
    return world


def test_nothing_is_asked_over_a_circuit_whose_answers_would_go_to_libtorrent(world):
    world.tunnels.announces_at_once = False
    world.tunnels.add(1)
    with pytest.raises(NoCircuitError):
        world.announcer.ask(TRACKER, CONNECT)
    assert world.announcer.circuit_id == 1
    assert not world.announcer.may_ask
    world.look(later_s=ASK_S / 2)
    assert world.tunnels.announced == [1]
    world.look(later_s=ASK_S)
    assert world.tunnels.announced == [1, 1], "a child that stood still may not have answered"
    world.tunnels.then()
    assert world.announcer.may_ask
    assert world.announcer.ask(TRACKER, CONNECT).circuit_id == 1


def test_a_tracker_that_did_not_answer_is_asked_again(world):
    world.tunnels.add(1)
    asked = world.announcer.ask(TRACKER, announce())
    world.look()
    world.look(later_s=AGAIN_S[0])
    assert (1, *asked.datagram) in world.tunnels.sent


def test_the_youngest_circuit_is_announced_once_it_is_known_where_it_is_seen(world):
    world.tunnels.add(1, age_s=60)
    world.tunnels.add(2, age_s=30)
    world.look()
    assert (world.announcer.circuit_id, world.announcer.outside, world.session.announces) == (2, None, [])
    world.meet_nodes()
    world.look(seen={2: 4000})
    assert world.announcer.outside == ("5.6.7.8", 4000)
    world.look()
    assert (world.tunnels.announced, world.session.announces) == ([2], [True])
    for _ in range(100):
        world.look()
    assert world.session.announces == [True] + [False] * len(DHT_AGAIN_S)


def test_all_questions_take_it_and_announces_have_its_port(world):
    world.tunnels.add(2)
    found(world, {2: 4000})
    asked = world.announcer.ask(TRACKER, CONNECT)
    assert (asked.circuit_id, asked.datagram) == (2, (TRACKER, CONNECT))
    known = world.announcer.came(2, encode_address("4.4.4.4", 80), bytes(4) + b"tran" + b"real id!")[0][8:]
    asked = world.announcer.ask(TRACKER, announce(known))
    assert asked == (2, (TRACKER, announce(b"real id!", port=4000)))
    assert world.announcer.ask(PEER, announce()) is None  # a uTP packet that looks like a question
    assert world.announcer.ask(PEER, DATA) is None


@pytest.mark.parametrize("question", [CONNECT, announce(), ping(b"t", bytes(20))])
def test_without_a_circuit_no_question_goes_another_way(world, question):
    with pytest.raises(NoCircuitError):
        world.announcer.ask(TRACKER, question)


def test_a_worn_circuit_is_replaced_once_it_is_known_where_the_next_one_is_seen(world):
    world.tunnels.add(1)
    found(world, {1: 4000})
    world.tunnels.circuits[1].creation_time -= 900
    world.look()
    assert world.tunnels.created  # none is fresh
    world.tunnels.add(2)
    world.look()
    assert world.announcer.circuit_id == 1
    world.look(seen={2: 5000}, later_s=ANNOUNCE_S)
    assert (world.announcer.circuit_id, world.announcer.outside) == (2, ("5.6.7.8", 5000))
    assert world.session.announces.count(True) == 2
    # Nobody sees that both circuits are ours.
    query = ping(b"t", bytes(20))
    assert world.announcer.came(1, PEER, query) is Came.TAKEN
    assert world.announcer.came(2, PEER, query) == (query,)


def test_when_the_circuit_is_lost_another_is_taken_at_once(world):
    world.tunnels.add(1)
    found(world, {1: 4000})
    world.tunnels.add(2)
    del world.tunnels.circuits[1]
    world.announcer.circuit_removed(1)
    assert world.announcer.circuit_id == 2
    world.look(seen={2: 5000}, later_s=ANNOUNCE_S)
    assert world.session.announces.count(True) == 2


def test_where_no_node_answers_another_circuit_is_tried_and_none_is_built(world):
    world.tunnels.add(1)
    world.tunnels.add(2, age_s=10)
    world.look()
    world.meet_nodes()
    for _ in range(20):
        world.look(seen={2: 5000})
        if world.announcer.circuit_id == 2:
            break
    assert world.announcer.outside == ("5.6.7.8", 5000)
    assert world.now_s < 1000 + 4 * ANSWER_S
    assert not world.tunnels.created


def test_where_no_circuit_is_answered_over_nothing_changes_for_ever(world):
    world.tunnels.add(1)
    world.tunnels.add(2)
    world.look()
    world.meet_nodes()
    taken = []
    for _ in range(60):
        world.look()
        taken.append(world.announcer.circuit_id)
    assert len(set(taken[30:])) == 1
    assert not world.tunnels.created


def test_while_a_lane_has_no_circuit_yet_none_is_built_for_this(world):
    for _ in range(30):
        world.look()
    assert not world.tunnels.created


def test_an_old_circuit_is_better_than_none(world):
    world.tunnels.add(1, age_s=700)
    world.look()
    assert world.announcer.circuit_id == 1
    assert not world.tunnels.created


def test_where_no_exit_makes_requests_circuits_are_built_less_and_less_often(world):
    world.tunnels.add(1)
    world.tunnels.add(2, by_http=True)
    world.look()
    world.announcer.http_request(HTTP)
    world.announcer.request_failed(2)
    for _ in range(3600):
        world.look()
    assert 3 < len(world.tunnels.created) < 12


def test_http_trackers_are_asked_by_an_exit_that_asks_them(world):
    world.tunnels.add(1)
    world.tunnels.add(2, age_s=30, by_http=True)
    world.tunnels.add(3, age_s=60, by_http=True)
    found(world, {1: 4000, 2: 5000, 3: 6000})
    assert world.announcer.http_request(HTTP) == (HTTP, None)
    for _ in range(3):
        world.look(seen={2: 5000, 3: 6000}, later_s=ANNOUNCE_S)
    assert world.announcer.http_request(HTTP) == (HTTP.replace(b"port=1", b"port=5000"), 2)
    world.announcer.request_failed(2)
    for _ in range(3):
        world.look(seen={3: 6000}, later_s=ANNOUNCE_S)
    assert world.announcer.http_request(HTTP) == (HTTP.replace(b"port=1", b"port=6000"), 3)
    assert world.announcer.http_request(b"GET /scrape HTTP/1.1\r\n\r\n")[1] is None


def test_who_begins_a_connection_is_a_stranger_unless_it_is_connected(world):
    world.tunnels.add(1)
    world.look()
    assert world.announcer.came(1, PEER, SYN) is Came.STRANGER
    assert world.announcer.came(1, encode_address("2001:db8::1", 1), SYN) is Came.TAKEN
    assert world.announcer.came(1, PEER, DATA) is Came.TAKEN
    world.session.connected.add(("9.9.9.9", 6881))
    assert world.announcer.came(1, PEER, SYN) is Came.TAKEN
