"""Tests which circuit a session's questions take, and how the datagrams that arrive over the circuit are handled."""

import asyncio
import time

import libtorrent as lt
import pytest
from ipv8.keyvault.crypto import default_eccrypto
from ipv8.messaging.anonymization.tunnel import CIRCUIT_STATE_READY, Circuit, Hop
from ipv8.peer import Peer

from tests.tunnel_pool.torrent.test_announces import CONNECT_START, announce, answer_to, node
from tests.worlds.network import until
from tunnel_pool.overlay.ground.lanes import Lane
from tunnel_pool.overlay.requests.dht_pings import ping
from tunnel_pool.overlay.requests.http import PEER_FLAG_EXIT_HTTP
from tunnel_pool.socks5.address import encode_address
from tunnel_pool.torrent.announces.announcer import (
    ANNOUNCE_S,
    ANSWER_S,
    ASK_S,
    DHT_AGAIN_S,
    HELD_S,
    Announcer,
    Came,
    NoCircuitError,
)
from tunnel_pool.torrent.announces.choice import Life
from tunnel_pool.torrent.announces.pace import Event
from tunnel_pool.torrent.announces.tracker_answers import MAX_REMEMBERED, MOST_S
from tunnel_pool.torrent.announces.tracker_questions import TAKEN_BACK_S
from tunnel_pool.torrent.announces.udp_trackers import AGAIN_S, event_of, infohash_of, with_event

LIFE = Life(max_s=1000, max_bytes=1 << 30)
TRACKER, PEER = encode_address("tracker.example", 80), encode_address("9.9.9.9", 6881)
CONNECT = CONNECT_START + b"tran"
NODES = [node(number) for number in range(1, 5)]
SYN, DATA = b"\x41\0" + bytes(18), b"\x01\0" + bytes(18)
HTTP_TRACKER = ("tracker.example", 6969)
HTTP = b"GET /announce?info_hash=ab&port=1&uploaded=0&downloaded=0&key=1 HTTP/1.1\r\n\r\n"


def with_http_event(event):
    return HTTP.replace(b" HTTP/", b"&event=%s HTTP/" % event.encode())


class Tunnels:
    """The part of the contract that an announcer uses; DHT nodes answer over circuits that are `heard`."""

    def __init__(self):
        self.circuits, self.sent, self.announced, self.created = {}, [], [], []
        self.exits_for_http = []
        self.announces_at_once = True
        self.exit_ports = {}  # what exits say, by circuit

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

    async def find_exit_port(self, circuit_id):
        return self.exit_ports.get(circuit_id)

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
        self.is_told = None

    def announce_anew(self, *, to_trackers, is_told=None):
        self.is_told = is_told or self.is_told
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


async def test_nothing_is_asked_over_a_circuit_whose_answers_would_go_to_libtorrent(world):
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


async def test_a_tracker_that_did_not_answer_is_asked_again(world):
    world.tunnels.add(1)
    found(world, {1: 4000})
    asked = world.announcer.ask(TRACKER, announce())
    world.look()
    world.look(later_s=AGAIN_S[0])
    ((circuit_id, question),) = asked.sent
    assert (circuit_id, *question) in world.tunnels.sent


async def test_trackers_are_asked_once_it_is_known_where_torrents_are_found(world):
    world.tunnels.add(1)
    assert world.announcer.ask(TRACKER, CONNECT).sent == []
    for _ in range(3):
        world.look()
        assert TRACKER not in [address for _, address, _ in world.tunnels.sent]
    world.meet_nodes()
    world.look(seen={1: 4000})
    assert (1, TRACKER, CONNECT) in world.tunnels.sent


async def test_a_port_that_nobody_says_is_not_waited_for_for_ever(world):
    world.tunnels.add(1)
    assert world.announcer.ask(TRACKER, CONNECT).sent == []
    world.look()
    world.look(later_s=HELD_S)
    assert (1, TRACKER, CONNECT) in world.tunnels.sent


async def test_where_neither_exits_nor_a_dht_say_the_port_nobody_waits_for_it(world):
    world.announcer.has_dht = False
    world.tunnels.add(1)
    assert world.announcer.ask(TRACKER, CONNECT).sent == []
    await until(lambda: (1, TRACKER, CONNECT) in world.tunnels.sent)


async def test_what_an_exit_says_of_its_port_is_told_until_nodes_see_another(world):
    world.tunnels.exit_ports[1] = 7000
    world.tunnels.add(1)
    world.look()
    await until(lambda: world.announcer.port == 7000)
    assert world.announcer.ask(TRACKER, CONNECT).sent == [(1, (TRACKER, CONNECT))]
    world.meet_nodes()
    world.look(seen={1: 4000})
    assert world.announcer.port == 4000


def told(world):
    announces = (
        (over, sent) for over, _, sent in world.tunnels.sent if len(sent) >= 98
    )  # fmt: skip
    return [(over, event_of(sent), sent[:8], sent[96:98]) for over, sent in announces]


@pytest.mark.parametrize("heard", ["answered", "gone", "silent"])
async def test_what_a_tracker_was_told_before_is_taken_back_first(heard, world):
    world.tunnels.add(1)
    found(world, {1: 4000})
    (first,) = connected(world, 1, announce(b"given 1."))
    assert first == (1, (TRACKER, announce(b"given 1.", port=4000)))
    world.tunnels.add(2)
    world.tunnels.circuits[1].creation_time -= 900
    world.look()
    world.look(seen={2: 5000}, later_s=ANNOUNCE_S)
    assert not world.session.is_told([b"h" * 20], "udp://tracker.example:80/announce")
    ((circuit_id, (_, asked)),) = connected(world, 2, announce(b"given 2."))
    assert (circuit_id, asked[:-4]) == (1, CONNECT_START), "the id that was given for the first circuit is old"
    world.tunnels.sent.clear()
    world.announcer.came(1, encode_address("4.4.4.4", 80), bytes(4) + asked[-4:] + b"given 3.")
    ((_, _, taken_back),) = world.tunnels.sent
    assert told(world) == [(1, Event.STOPPED, b"given 3.", b"\x0f\xa0")]
    if heard == "answered":
        world.announcer.came(1, encode_address("4.4.4.4", 80), bytes((0, 0, 0, 1)) + taken_back[12:16] + bytes(12))
    elif heard == "gone":
        world.announcer.circuit_removed(1)
    else:
        world.announcer.look()
        assert len(world.tunnels.sent) == 1
        world.now_s += TAKEN_BACK_S
        world.announcer.look()
    assert told(world)[1:2] == [(2, Event.STARTED, b"given 2.", b"\x13\x88")]
    assert world.session.is_told([infohash_of(world.tunnels.sent[1][2])], "udp://tracker.example:80/announce")
    stopped = world.announcer.ask(TRACKER, with_event(announce(b"given 2."), Event.STOPPED))
    assert (stopped.circuit_id, [each.circuit_id for each in stopped.sent]) == (2, [2])


async def test_what_comes_sooner_than_an_http_tracker_allows_gets_its_last_answer(world):
    world.tunnels.add(1, by_http=True)
    found(world, {1: 4000})
    begun = with_http_event("started")
    assert (await asked_at_last(world, begun)).asked == (begun.replace(b"port=1", b"port=4000"), 1)
    answer = http_answer({b"interval": 1800, b"min interval": 900, b"peers": b"abcdef"})
    world.announcer.request_answered(HTTP_TRACKER, begun, b"HTTP/1.1 302 Found\r\nLocation: http://a/\r\n\r\n")
    world.announcer.request_answered(HTTP_TRACKER, begun, http_answer({b"failure reason": b"no"}))
    assert b"event=started" in (await world.announcer.http_request(HTTP_TRACKER, begun)).asked.request, "not heard yet"
    world.announcer.request_answered(HTTP_TRACKER, begun, answer)
    world.now_s += 100.5
    for request in (HTTP, begun):
        assert await world.announcer.http_request(HTTP_TRACKER, request) == http_answer(
            {b"interval": 800, b"min interval": 800, b"peers": b"abcdef"}
        )
    other = begun.replace(b"/announce?", b"/announce?passkey=b&")
    assert b"event=started" in (await world.announcer.http_request(HTTP_TRACKER, other)).asked.request, "another's"
    done = with_http_event("completed")
    assert (await world.announcer.http_request(HTTP_TRACKER, done)).asked.circuit_id == 1
    world.now_s += 800
    usual = (await world.announcer.http_request(HTTP_TRACKER, begun)).asked.request
    assert usual == HTTP.replace(b"port=1", b"port=4000"), "it has begun long ago"


@pytest.mark.parametrize("least_s", [1 << 62, (1 << 63) - 1, 3600])
async def test_no_tracker_and_no_exit_that_forges_its_answer_shuts_it_off(least_s, world):
    world.tunnels.add(1, by_http=True)
    found(world, {1: 4000})
    await asked_at_last(world, HTTP)
    answer = {b"interval": 1800, b"min interval": least_s, b"peers": bytes(6 * 1000), b"files": {b"h" * 20: {}}}
    world.announcer.request_answered(HTTP_TRACKER, HTTP, http_answer(answer))
    again = await world.announcer.http_request(HTTP_TRACKER, HTTP)
    left = {b"interval": MOST_S, b"min interval": MOST_S, b"peers": bytes(6 * MAX_REMEMBERED)}
    assert again == http_answer(left)
    world.now_s += MOST_S
    assert (await world.announcer.http_request(HTTP_TRACKER, HTTP)).asked.circuit_id == 1


async def test_a_tracker_hears_nothing_of_a_torrent_that_has_lost_its_circuit_and_goes_on(world):
    world.tunnels.add(1, by_http=True)
    found(world, {1: 4000})
    await asked_at_last(world, HTTP)
    del world.tunnels.circuits[1]
    world.announcer.circuit_removed(1)
    stopped = with_http_event("stopped")
    world.announcer.is_steady = lambda: False
    assert isinstance(await world.announcer.http_request(HTTP_TRACKER, stopped), bytes)
    world.announcer.is_steady = lambda: True
    world.tunnels.add(2, by_http=True)
    world.look()
    assert (await world.announcer.http_request(HTTP_TRACKER, stopped)).asked.circuit_id == 2


async def test_what_comes_sooner_than_a_udp_tracker_is_asked_gets_its_last_answer(world):
    world.tunnels.add(1)
    found(world, {1: 4000})
    ((_, (_, sent)),) = connected(world, 1, announce(b"given 1."))
    answer = bytes((0, 0, 0, 1)) + sent[12:16] + (1800).to_bytes(4, "big") + bytes(8) + b"abcdef"
    origin = encode_address("4.4.4.4", 80)
    assert world.announcer.came(1, origin, answer) == (answer,)
    world.now_s += 20
    again = with_event(announce(b"given 2."), Event.NONE, b"newt")
    turn = world.announcer.ask(TRACKER, again)
    assert turn == (1, [], (origin, bytes((0, 0, 0, 1)) + b"newt" + bytes((0, 0, 0, 40)) + bytes(8) + b"abcdef"))
    world.now_s += 40
    assert world.announcer.ask(TRACKER, again).sent


async def asked_at_last(world, request):
    """Return what becomes of the first HTTP request, which waits until the announcer has looked."""
    waits = asyncio.create_task(world.announcer.http_request(HTTP_TRACKER, request))
    await asyncio.sleep(0)
    world.look()
    return await waits


def http_answer(body):
    encoded = lt.bencode(body)
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(encoded) + encoded


def connected(world, circuit_id, announced):
    """Have a tracker give a connection id over a circuit, and return what an announce by it becomes."""
    world.announcer.ask(TRACKER, CONNECT)
    answer = world.announcer.came(circuit_id, encode_address("4.4.4.4", 80), bytes(4) + b"tran" + announced[:8])
    return world.announcer.ask(TRACKER, answer[0][8:] + announced[8:]).sent


async def test_the_youngest_circuit_is_announced_once_it_is_known_where_it_is_seen(world):
    world.tunnels.add(1, age_s=60)
    world.tunnels.add(2, age_s=30)
    world.look()
    assert (world.announcer.circuit_id, world.announcer.port, world.session.announces) == (2, None, [])
    world.meet_nodes()
    world.look(seen={2: 4000})
    assert world.announcer.outside == ("5.6.7.8", 4000)
    world.look()
    assert (world.tunnels.announced, world.session.announces) == ([2], [True])
    for _ in range(100):
        world.look()
    assert world.session.announces == [True] + [False] * len(DHT_AGAIN_S)


async def test_all_questions_take_it_and_announces_have_its_port(world):
    world.tunnels.add(2)
    found(world, {2: 4000})
    asked = world.announcer.ask(TRACKER, CONNECT)
    assert asked == (2, [(2, (TRACKER, CONNECT))], None)
    known = world.announcer.came(2, encode_address("4.4.4.4", 80), bytes(4) + b"tran" + b"real id!")[0][8:]
    asked = world.announcer.ask(TRACKER, announce(known))
    assert asked == (2, [(2, (TRACKER, announce(b"real id!", port=4000)))], None)
    assert world.announcer.ask(PEER, announce()) is None  # a uTP packet that looks like a question
    assert world.announcer.ask(PEER, DATA) is None


@pytest.mark.parametrize("question", [CONNECT, announce(), ping(b"t", bytes(20))])
async def test_without_a_circuit_no_question_goes_another_way(world, question):
    with pytest.raises(NoCircuitError):
        world.announcer.ask(TRACKER, question)


async def test_a_worn_circuit_is_replaced_once_it_is_known_where_the_next_one_is_seen(world):
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
    leading_zero = query.replace(b"1:y1:q", b"1:y01:q")  # which libtorrent takes, too
    (origin,) = world.announcer._dht_asked.keys() & {NODES[0]}
    assert world.announcer.came(1, origin, leading_zero) is Came.TAKEN
    answer = b"d1:rde1:t2:lt1:y1:re"
    assert world.announcer.came(1, origin, answer) == (answer,)
    assert world.announcer.came(1, PEER, answer) is Came.TAKEN


async def test_when_the_circuit_is_lost_another_is_taken_at_once(world):
    world.tunnels.add(1)
    found(world, {1: 4000})
    world.tunnels.add(2)
    del world.tunnels.circuits[1]
    world.announcer.circuit_removed(1)
    assert world.announcer.circuit_id == 2
    world.look(seen={2: 5000}, later_s=ANNOUNCE_S)
    assert world.session.announces.count(True) == 2


async def test_where_no_node_answers_another_circuit_is_tried_and_none_is_built(world):
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


async def test_where_no_circuit_is_answered_over_nothing_changes_for_ever(world):
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


async def test_while_a_lane_has_no_circuit_yet_none_is_built_for_this(world):
    for _ in range(30):
        world.look()
    assert not world.tunnels.created


async def test_an_old_circuit_is_better_than_none(world):
    world.tunnels.add(1, age_s=700)
    world.look()
    assert world.announcer.circuit_id == 1
    assert not world.tunnels.created


async def test_where_no_exit_makes_requests_circuits_are_built_less_and_less_often(world):
    world.tunnels.add(1)
    world.tunnels.add(2, by_http=True)
    world.look()
    waits = asyncio.create_task(world.announcer.http_request(HTTP_TRACKER, HTTP))
    await asyncio.sleep(0)
    world.announcer.request_ended(HTTP_TRACKER, 2, is_answered=False)
    for _ in range(3600):
        world.look()
    assert 3 < len(world.tunnels.created) < 12
    waits.cancel()


async def test_http_trackers_are_asked_by_an_exit_that_asks_them(world):
    world.tunnels.add(1)
    world.tunnels.add(2, age_s=30, by_http=True)
    world.tunnels.add(3, age_s=60, by_http=True)
    found(world, {1: 4000, 2: 5000, 3: 6000})
    waits = asyncio.create_task(world.announcer.http_request(HTTP_TRACKER, HTTP))
    await asyncio.sleep(0)
    for _ in range(3):
        world.look(seen={2: 5000, 3: 6000}, later_s=ANNOUNCE_S)
    assert await waits == (None, (HTTP.replace(b"port=1", b"port=5000"), 2))
    world.announcer.request_ended(HTTP_TRACKER, 2, is_answered=False)
    for _ in range(3):
        world.look(seen={3: 6000}, later_s=ANNOUNCE_S)
    taken_back, asked = await world.announcer.http_request(HTTP_TRACKER, HTTP)
    assert taken_back == (with_http_event("stopped").replace(b"port=1", b"port=5000"), 2)
    assert asked == (with_http_event("started").replace(b"port=1", b"port=6000"), 3)
    world.announcer.request_ended(HTTP_TRACKER, 3, is_answered=False)
    assert (await world.announcer.http_request(HTTP_TRACKER, HTTP)).asked == (
        HTTP.replace(b"port=1", b"port=6000"),
        3,
    ), "it is the tracker that is silent"
    scrape = b"GET /scrape HTTP/1.1\r\n\r\n"
    assert await world.announcer.http_request(HTTP_TRACKER, scrape) == (None, (scrape, None))
    last = with_http_event("stopped")
    assert (await world.announcer.http_request(HTTP_TRACKER, last)).asked == (last.replace(b"port=1", b"port=6000"), 3)


async def test_who_begins_a_connection_is_a_stranger_unless_it_is_connected(world):
    world.tunnels.add(1)
    world.look()
    assert world.announcer.came(1, PEER, SYN) is Came.STRANGER
    assert world.announcer.came(1, encode_address("2001:db8::1", 1), SYN) is Came.TAKEN
    assert world.announcer.came(1, PEER, DATA) is Came.TAKEN
    world.session.connected.add(("9.9.9.9", 6881))
    assert world.announcer.came(1, PEER, SYN) is Came.TAKEN
