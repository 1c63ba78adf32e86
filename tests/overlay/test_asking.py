"""Tests the order in which introduction points are asked, and the bookkeeping of unanswered requests."""

from ipv8.keyvault.crypto import default_eccrypto
from ipv8.messaging.anonymization.tunnel import IntroductionPoint
from ipv8.peer import Peer

from tunnel_pool.overlay.hidden_swarms.asking import Asked, Questions

SWARM, OTHER = b"s" * 20, b"o" * 20


def point(seeder=b"a"):
    return IntroductionPoint(Peer(default_eccrypto.generate_key("curve25519").pub(), ("127.0.0.1", 1)), seeder)


def test_who_was_never_asked_comes_first_then_who_was_asked_the_longest_ago():
    questions = Questions(10)
    first, second, third = point(), point(), point()
    assert questions.in_turn(SWARM, [first]) == [first]
    questions.asked(SWARM, first, [], 0)
    assert questions.in_turn(SWARM, [first, second]) == [second, first]
    questions.asked(SWARM, second, [], 10)
    assert questions.in_turn(SWARM, [second, first]) == [first, second]
    questions.asked(SWARM, first, [], 20)
    assert questions.in_turn(SWARM, [first, second, third]) == [third, second, first]
    assert questions.in_turn(OTHER, [first, second]) == [first, second]


def test_points_that_are_gone_are_forgotten():
    questions = Questions(10)
    gone, there = point(), point()
    questions.asked(SWARM, gone, [], 0)
    questions.asked(SWARM, there, [], 10)
    assert questions.in_turn(SWARM, [there]) == [there]
    assert questions.in_turn(SWARM, [there, gone]) == [gone, there]  # as if it were new


def test_a_seeder_is_asked_once_in_so_many_seconds_by_whichever_point():
    questions = Questions(10)
    questions.asked(SWARM, point(b"a"), [], 0)
    assert not questions.may_ask(b"a", 9)
    assert questions.may_ask(b"a", 10)
    assert questions.may_ask(b"b", 1)


def test_a_question_is_open_until_it_is_answered_and_knows_its_circuits():
    questions = Questions(10)
    assert not questions.is_unanswered(SWARM, 100)
    questions.asked(SWARM, point(b"a"), [1, 2], 0)
    questions.asked(SWARM, point(b"b"), [3], 5)
    assert not questions.is_unanswered(SWARM, 9.9)
    assert questions.is_unanswered(SWARM, 10)
    assert not questions.is_unanswered(OTHER, 10)
    assert questions.answered(SWARM) == Asked(0, frozenset({1, 2}))
    assert not questions.is_unanswered(SWARM, 100)
    assert questions.answered(SWARM) is None


def test_a_swarm_that_is_forgotten_asks_no_seeder_sooner():
    questions = Questions(10)
    asked = point(b"a")
    questions.asked(SWARM, asked, [1], 0)
    questions.forget(SWARM)
    assert not questions.is_unanswered(SWARM, 20)
    assert questions.in_turn(SWARM, [asked, point()])[0] == asked
    assert not questions.may_ask(b"a", 5)
