"""Tests which strangers reach a circuit that ends here; packet_engine/src/strangers.rs has the same tests."""

import pytest

from tunnel_pool.overlay.ground.exit_rules import ExitRules
from tunnel_pool.overlay.serving.strangers import ANNOUNCE_BYTES, MAX_REMEMBERED, REMEMBERED_S, Strangers, is_announce

RULES = ExitRules(inbound_per_s=10)
UDP_ANNOUNCE = bytes(8) + b"\x00\x00\x00\x01" + bytes(ANNOUNCE_BYTES - 12)
DHT_ANNOUNCE = b"d1:ad2:id20:aaaaaaaaaaaaaaaaaaaae1:q13:announce_peer1:t1:x1:y1:qe"


@pytest.mark.parametrize("payload", [UDP_ANNOUNCE, DHT_ANNOUNCE])
def test_an_announce_lets_strangers_in(payload):
    strangers = Strangers()
    strangers.sent("8.8.8.8", b"x", 0.0)
    assert strangers.refusal(RULES, 0.0) == "exit_stranger"
    strangers.sent("8.8.8.8", payload, 0.0)
    assert strangers.refusal(RULES, 0.0) is None
    assert strangers.refusal(ExitRules(inbound_per_s=None), 100.0) == "exit_stranger"


def test_a_request_over_http_lets_strangers_in():
    strangers = Strangers()
    strangers.announced()
    assert strangers.refusal(RULES, 0.0) is None


def test_strangers_come_at_a_rate():
    strangers = Strangers()
    strangers.announced()
    refusals = [strangers.refusal(RULES, 100.0) for _ in range(1000)]
    assert refusals.count(None) in (10, 11)
    assert set(refusals) == {None, "exit_strangers_too_fast"}
    assert {strangers.refusal(ExitRules(inbound_per_s=0), 100.0) for _ in range(1000)} == {None}


def test_answers_come_from_anywhere_once_an_introduction_point_is_asked():
    strangers = Strangers()
    assert not strangers.lets_answer_in(100.0)
    strangers.asks_introduction_points()
    assert [strangers.lets_answer_in(100.0) for _ in range(1000)].count(True) in (10, 11)
    assert strangers.lets_answer_in(102.0)


def test_destinations_are_forgotten_in_time():
    strangers = Strangers()
    strangers.sent("8.8.8.8", b"x", REMEMBERED_S)
    strangers.sent("9.9.9.9", b"x", 2 * REMEMBERED_S)
    assert not strangers.is_stranger("8.8.8.8")
    strangers.sent("9.9.9.9", b"x", 3 * REMEMBERED_S)
    assert strangers.is_stranger("8.8.8.8")
    assert not strangers.is_stranger("9.9.9.9")


def test_the_newest_of_many_destinations_are_remembered():
    strangers = Strangers()
    for number in range(10 * MAX_REMEMBERED):
        strangers.sent(str(number), b"x", 1.0)
        assert not strangers.is_stranger(str(max(0, number - 1000)))
    assert strangers.is_stranger("0")


@pytest.mark.parametrize("payload", [b"", b"d", b"de", UDP_ANNOUNCE[:-1], bytes(200), b"d1:q4:ping1:y1:qe"])
def test_what_only_looks_like_an_announce_is_none(payload):
    assert not is_announce(payload)
