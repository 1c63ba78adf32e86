"""Tests the pure part of announces: requests to trackers over circuits, and the address where a circuit is seen."""

import itertools
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunnel_pool.overlay.requests.dht_pings import ping
from tunnel_pool.socks5.address import encode_address
from tunnel_pool.torrent.announces import http_trackers, udp_trackers
from tunnel_pool.torrent.announces.account import Account, Totals
from tunnel_pool.torrent.announces.choice import Life, Seen, choose, is_worn
from tunnel_pool.torrent.announces.outside import MIN_VOTES, Nodes, Outside
from tunnel_pool.torrent.announces.questions import CONNECT_START, Question, begins_connection, question_of
from tunnel_pool.torrent.announces.udp_trackers import AGAIN_S, Answer, Connections, Datagram

TRACKER, OTHER = encode_address("tracker.example", 80), encode_address("9.9.9.9", 80)
HERE, THERE = 7, 8  # circuits
ACCOUNT = Account(0xABCD, lambda: Totals(uploaded=300, downloaded=200))


def connect(transaction):
    return CONNECT_START + transaction


def connected(transaction, connection):
    return bytes(4) + transaction + connection


def announce(connection=b"c" * 8, port=1):
    head = connection + struct.pack("!I4s20s20s", 1, b"tran", b"h" * 20, b"p" * 20)
    return head + struct.pack("!QQQIIIiH", 5, 6, 7, 2, 0, 0x1234, -1, port) + b"\x02\x01/"


def counting():
    """Return a function that makes new bytes at each call."""
    numbers = itertools.count(1)
    return lambda size: next(numbers).to_bytes(size, "big")


def test_an_announce_has_the_port_of_the_circuit_and_what_the_account_says():
    told = udp_trackers.rewritten(announce(), 6881, ACCOUNT)
    assert struct.unpack_from("!QQQIIIiH", told, 56) == (200, 6, 300, 2, 0, 0xABCD, -1, 6881)
    assert (told[:56], told[98:]) == (announce()[:56], announce()[98:])
    assert udp_trackers.rewritten(announce(), None, None) == announce()
    assert udp_trackers.infohash_of(told) == b"h" * 20


REQUEST = (
    b"GET /a/announce?passkey=uploaded=1&info_hash=%01%02ab&peer_id=x&port=1&uploaded=7&downloaded=5&left=6"
    b"&key=00001234&event=started HTTP/1.1\r\nHost: t\r\nCookie: port=1\r\n\r\n"
)


def test_a_request_has_the_port_of_the_circuit_and_what_the_account_says():
    told = http_trackers.rewritten(REQUEST, 6881, ACCOUNT)
    assert told == (
        b"GET /a/announce?passkey=uploaded=1&info_hash=%01%02ab&peer_id=x&port=6881&uploaded=300&downloaded=200&left=6"
        b"&key=0000ABCD&event=started HTTP/1.1\r\nHost: t\r\nCookie: port=1\r\n\r\n"
    )
    assert http_trackers.rewritten(REQUEST, None, None) == REQUEST
    assert http_trackers.infohash_of(REQUEST) == b"\x01\x02ab"


def test_a_key_or_port_of_a_trackers_own_address_stays():
    own = REQUEST.replace(b"?passkey=uploaded=1&", b"?key=secret&port=443&")
    told = http_trackers.rewritten(own, 6881, ACCOUNT)
    assert told.startswith(b"GET /a/announce?key=secret&port=443&info_hash=")
    assert b"&port=6881&" in told
    assert b"&key=0000ABCD&" in told
    assert http_trackers.infohash_of(b"GET /scrape?port=443&info_hash=ab HTTP/1.1\r\n\r\n") is None


@pytest.mark.parametrize("line", [b"GET /scrape?info_hash=ab HTTP/1.1", b"GET /", b"", b"GET /?port=1&key=zz HTTP/1.1"])
def test_what_announces_nothing_is_no_announce(line):
    assert http_trackers.infohash_of(line + b"\r\n\r\n") is None


@given(st.binary(max_size=200))
def test_no_request_and_no_datagram_makes_them_fail(data):
    http_trackers.infohash_of(data)
    http_trackers.rewritten(data, 1, ACCOUNT)
    question_of(data)
    connections = Connections(counting())
    connections.ask(HERE, Datagram(TRACKER, data))
    connections.answered(HERE, data)


def test_libtorrent_never_sees_the_id_that_a_tracker_gave_over_a_circuit():
    connections = Connections(counting())
    question = Datagram(TRACKER, connect(b"tran"))
    assert connections.ask(HERE, question) == question
    answer = connections.answered(HERE, connected(b"tran", b"real id!"))
    known = answer.for_client[0][8:]
    assert answer == Answer((connected(b"tran", known),))
    assert known != b"real id!"
    assert connections.ask(HERE, Datagram(TRACKER, announce(known))) == (TRACKER, announce(b"real id!"))
    assert connections.is_tracker(TRACKER)
    assert not connections.is_tracker(OTHER)


@pytest.mark.parametrize(("circuit", "tracker"), [(THERE, TRACKER), (HERE, OTHER)])
def test_an_id_is_used_over_the_circuit_and_with_the_tracker_alone_that_it_is_for(circuit, tracker):
    """Any other, as one that a tracker gave to a plain session of the same program, is replaced by a new one."""
    connections = Connections(counting())
    connections.ask(HERE, Datagram(TRACKER, connect(b"tran")))
    known = connections.answered(HERE, connected(b"tran", b"real id!")).for_client[0][8:]
    asked = connections.ask(circuit, Datagram(tracker, announce(known)))
    assert (asked.destination, question_of(asked.payload)) == (tracker, Question.CONNECT)
    transaction = asked.payload[12:]
    assert connections.answered(circuit, connected(b"else", b"forged!!")) == Answer()
    answer = connections.answered(circuit, connected(transaction, b"another!"))
    assert answer == Answer((), (Datagram(tracker, announce(b"another!")),))
    assert connections.ask(circuit, Datagram(tracker, announce(known))) == (tracker, announce(b"another!"))


def test_a_tracker_that_does_not_answer_is_asked_again_for_an_id_some_times():
    connections = Connections(counting())
    asked = connections.ask(HERE, Datagram(TRACKER, announce()))
    assert question_of(asked.payload) is Question.CONNECT
    assert [connections.again(100.0 + after_s) for after_s in (0, 0.5)] == [[], []]
    for after_s in AGAIN_S:
        assert connections.again(100.0 + after_s) == [(HERE, asked)]
        assert connections.again(100.0 + after_s) == []
    assert connections.again(1000.0) == []
    answer = connections.answered(HERE, connected(asked.payload[12:], b"real id!"))
    assert answer == Answer((), (Datagram(TRACKER, announce(b"real id!")),))


def test_a_tracker_is_asked_for_one_id_at_a_time():
    """libtorrent asks for each of its torrents; an exit lets 50 datagrams to who has not answered, and no more."""
    connections = Connections(counting())
    transactions = [number.to_bytes(4, "big") for number in range(300, 600)]
    sent = [connections.ask(HERE, Datagram(TRACKER, connect(transaction))) for transaction in transactions]
    assert sent == [(TRACKER, connect(transactions[0]))] + [None] * 299
    assert connections.ask(HERE, Datagram(TRACKER, announce(b"of yore!"))) is None
    assert connections.ask(HERE, Datagram(OTHER, connect(b"tran"))) == (OTHER, connect(b"tran"))
    assert connections.ask(THERE, Datagram(TRACKER, connect(b"tran"))) == (TRACKER, connect(b"tran"))
    answer = connections.answered(HERE, connected(transactions[0], b"real id!"))
    told = answer.for_client[0][8:]
    assert answer.for_client == tuple(connected(transaction, told) for transaction in transactions)
    assert answer.sent == (Datagram(TRACKER, announce(b"real id!")),)
    assert connections.ask(HERE, Datagram(TRACKER, announce(told))) == (TRACKER, announce(b"real id!"))
    # A tracker that did not answer for long is asked anew, when libtorrent asks.
    for now_s in (0.0, *AGAIN_S):
        connections.again(now_s)
    assert connections.ask(THERE, Datagram(TRACKER, connect(b"more"))) == (TRACKER, connect(b"tran"))
    assert connections.ask(THERE, Datagram(TRACKER, connect(b"next"))) is None


def test_what_is_answered_or_gone_is_not_asked_again():
    connections = Connections(counting())
    asked = connections.ask(HERE, Datagram(TRACKER, announce()))
    connections.ask(THERE, Datagram(TRACKER, announce()))
    connections.again(100.0)
    connections.answered(HERE, connected(asked.payload[12:], b"real id!"))
    connections.forget_circuit(THERE)
    assert connections.again(1000.0) == []


def test_what_a_dead_circuit_was_given_is_forgotten():
    connections = Connections(counting())
    connections.ask(HERE, Datagram(TRACKER, connect(b"tran")))
    known = connections.answered(HERE, connected(b"tran", b"real id!")).for_client[0][8:]
    connections.forget_circuit(HERE)
    assert question_of(connections.ask(HERE, Datagram(TRACKER, announce(known))).payload) is Question.CONNECT


def test_questions_are_told_by_their_form():
    assert question_of(ping(b"t", bytes(20))) is Question.DHT
    assert question_of(connect(b"tran")) is Question.CONNECT
    assert question_of(announce()) is Question.ANNOUNCE
    assert question_of(b"c" * 8 + b"\0\0\0\2" + bytes(24)) is Question.SCRAPE
    syn = b"\x41\0" + bytes(18)
    assert question_of(syn) is Question.NONE
    assert begins_connection(syn)
    assert not begins_connection(b"\x21\0" + bytes(18))


def node(number, network=None):
    return encode_address(f"{number if network is None else network}.1.1.{number}", 6881)


def answer_to(question, seen=("5.6.7.8", 4000)):
    transaction = question[question.index(b"1:t8:") + 5 :][:8]
    host = bytes(map(int, seen[0].split("."))) + seen[1].to_bytes(2, "big")
    return b"d2:ip6:" + host + b"1:rd2:id20:" + bytes(20) + b"e1:t8:" + transaction + b"1:y1:re"


def asked(outside, *nodes):
    known = Nodes()
    for each in nodes:
        known.add(each)
    return dict(outside.ask(known))


def test_a_circuit_is_seen_where_several_networks_say_so():
    outside = Outside(counting())
    questions = asked(outside, *map(node, range(1, MIN_VOTES + 1)))
    for place, (address, question) in enumerate(questions.items(), start=1):
        assert outside.agreed() is None
        assert outside.answered(address, answer_to(question))
        assert outside.is_answered
        assert (outside.agreed() is not None) == (place >= MIN_VOTES)
    assert outside.agreed() == ("5.6.7.8", 4000)


def test_nodes_of_one_network_have_one_vote_together():
    outside = Outside(counting())
    for address, question in asked(outside, *(node(number, network=9) for number in range(1, 7))).items():
        assert outside.answered(address, answer_to(question))
    assert outside.agreed() is None


def test_a_minority_that_lies_is_not_believed_and_a_half_is_enough_to_be_unsure():
    outside = Outside(counting())
    for place, (address, question) in enumerate(asked(outside, *map(node, range(1, 8))).items()):
        outside.answered(address, answer_to(question, ("5.6.7.8", 4000 if place < 4 else 6)))
    assert outside.agreed() == ("5.6.7.8", 4000)
    unsure = Outside(counting())
    for place, (address, question) in enumerate(asked(unsure, *map(node, range(1, 7))).items()):
        unsure.answered(address, answer_to(question, ("5.6.7.8", 4000 + place % 2)))
    assert unsure.agreed() is None


def test_only_who_was_asked_answers_and_once():
    outside = Outside(counting())
    (address, question), *_ = asked(outside, node(1)).items()
    assert not outside.answered(node(2), answer_to(question))
    assert not outside.answered(address, answer_to(question).replace(b"1:t8:", b"1:t8:x"))
    assert outside.answered(address, answer_to(question))
    assert not outside.answered(address, answer_to(question))


@given(st.binary(max_size=100))
def test_no_answer_makes_it_fail(data):
    outside = Outside(counting())
    (address, question), *_ = asked(outside, node(1)).items()
    outside.answered(address, b"d2:ip6:" + data + question[-20:])
    outside.agreed()


LIFE = Life(max_s=3600, max_bytes=10 << 30)


def seen(circuit_id, age_s=0.0, carried_bytes=0, makes_requests=False):
    return Seen(circuit_id, age_s, carried_bytes, makes_requests)


def test_the_youngest_circuit_is_taken_and_one_that_has_lived_half_its_life_is_not():
    assert choose([seen(1, 60), seen(2, 30), seen(3, 1, 6 << 30)], LIFE, wants_requests=False) == seen(2, 30)
    assert choose([seen(1, 1800)], LIFE, wants_requests=False) is None
    assert choose([seen(1), seen(2, 9)], LIFE, wants_requests=False, failed={1}) == seen(2, 9)


def test_one_whose_exit_makes_requests_is_taken_where_that_is_wanted():
    able = seen(2, 60, makes_requests=True)
    assert choose([seen(1), able], LIFE, wants_requests=True) == able
    assert choose([seen(1)], LIFE, wants_requests=True) is None


def test_a_circuit_is_replaced_before_it_ends():
    assert not is_worn(seen(1, 2000, 1 << 30), LIFE)
    assert is_worn(seen(1, 2900), LIFE)
    assert is_worn(seen(1, 0, 9 << 30), LIFE)
