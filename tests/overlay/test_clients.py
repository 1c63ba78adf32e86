"""Tests which SOCKS5 association gets a datagram that arrives over a circuit."""

from tunnel_pool.overlay.clients import clients as own
from tunnel_pool.overlay.clients.clients import Clients
from tunnel_pool.overlay.ground.lanes import Lane

LANE, PEER, OTHER_PORT = Lane(1), b"\x01\x7f\x00\x00\x01\x00\x50", b"\x01\x7f\x00\x00\x01\x00\x51"
NAME = b"\x03\x01a\x00\x50"


def test_who_asked_is_answered():
    clients = Clients()
    clients.asked(7, PEER, 1)
    assert clients.for_answer(LANE, [1, 2], 7, PEER) == 1
    clients.asked(7, PEER, 2)
    assert clients.for_answer(LANE, [1, 2, 3], 7, PEER) == 2
    assert clients.for_answer(LANE, [1, 2, 3], 8, PEER) == 3


def test_who_is_no_longer_there_is_not_answered():
    clients = Clients()
    clients.asked(7, PEER, 1)
    assert clients.for_answer(LANE, [2, 3], 7, PEER) == 3
    assert clients.for_answer(LANE, [2], 7, PEER) == 2
    assert clients.for_answer(LANE, [], 7, PEER) is None


def test_who_asked_a_name_is_answered():
    clients = Clients()
    clients.asked(7, NAME, 1)
    assert clients.for_answer(LANE, [1, 2], 7, PEER) == 1
    assert clients.for_answer(LANE, [1, 2], 7, OTHER_PORT) == 2
    clients.forget_circuit(7)
    assert clients.for_answer(LANE, [1, 2], 7, PEER) == 2


def test_what_nobody_asked_for_is_for_the_usual_one():
    clients = Clients()
    clients.set_usual(LANE, 1)
    clients.set_usual(Lane(2), 2)
    assert clients.for_answer(LANE, [1, 2, 3], 7, PEER) == 1
    assert clients.for_answer(LANE, [2, 3], 7, PEER) == 3
    clients.asked(7, PEER, 3)
    assert clients.for_answer(LANE, [1, 2, 3], 7, PEER) == 3


def test_questions_are_bounded(monkeypatch):
    monkeypatch.setattr(own, "MAX_ASKED", 2)
    clients = Clients()
    for circuit_id in (1, 2, 3):
        clients.asked(circuit_id, PEER, circuit_id)
    assert [clients.for_answer(LANE, [1, 2, 3, 4], circuit_id, PEER) for circuit_id in (1, 2, 3)] == [4, 2, 3]
