"""Tests that only sources with a proven address are answered, and how often."""

from tunnel_pool.overlay.peers import proven
from tunnel_pool.overlay.peers.proven import HeldPackets, ProvenSources, Source

HERE, THERE = Source(("192.0.2.1", 1), b"key"), Source(("192.0.2.2", 1), b"key")


def test_a_source_is_an_address_and_a_key_for_some_minutes():
    sources = ProvenSources()
    sources.add(HERE, 0.0)
    assert sources.has(HERE, 599.0)
    assert not sources.has(HERE, 600.0)
    assert not sources.has(THERE, 1.0)
    assert not sources.has(Source(HERE.address, b"another"), 1.0)


def test_the_oldest_are_forgotten(monkeypatch):
    monkeypatch.setattr(proven, "MAX_PROVEN", 2)
    sources = ProvenSources()
    for number in range(3):
        sources.add(Source(("192.0.2.1", number), b""), float(number))
    assert [sources.has(Source(("192.0.2.1", number), b""), 3.0) for number in range(3)] == [False, True, True]


def test_a_host_of_nodes_is_known_for_a_day_whatever_the_port(monkeypatch):
    monkeypatch.setattr(proven, "MAX_HOSTS", 2)
    sources = ProvenSources()
    sources.add(HERE, 0.0)
    assert sources.has_host("192.0.2.1", 86_399.0)
    assert not sources.has_host("192.0.2.1", 86_400.0)
    assert not sources.has_host("192.0.2.2", 0.0)
    for number in (3, 1, 4):  # who answers again is not the oldest
        sources.add(Source((f"192.0.2.{number}", 2), b"another"), 1.0)
    assert [sources.has_host(f"192.0.2.{number}", 2.0) for number in (1, 3, 4)] == [True, False, True]


def test_a_source_that_asks_without_end_is_answered_now_and_then():
    sources = ProvenSources()
    sources.add(HERE, 0.0)
    assert 10 <= sum(sources.take(HERE, 100.0) for _ in range(100)) <= 11
    assert 19 <= sum(sources.take(HERE, 100.0 + tick / 10) for tick in range(100)) <= 21
    # A proof that comes again brings no new answers.
    sources.add(HERE, 110.0)
    assert sum(sources.take(HERE, 110.0) for _ in range(100)) <= 1


def test_a_source_is_asked_once_and_its_packets_wait():
    held = HeldPackets()
    assert held.hold(HERE, b"1", 0.0) is True
    assert [held.hold(HERE, packet, 0.0) for packet in (b"2", b"3", b"4", b"5")] == [False, False, False, None]
    assert held.release(HERE) == [b"1", b"2", b"3", b"4"]
    assert held.release(HERE) == []


def test_so_many_are_asked_and_no_more(monkeypatch):
    monkeypatch.setattr(proven, "MAX_HELD", 5)
    held = HeldPackets()
    asked = [held.hold(Source(("192.0.2.1", number), b""), b"", 100.0) for number in range(6)]
    assert asked == [True] * 5 + [None]
    held = HeldPackets()
    monkeypatch.setattr(proven, "MAX_HELD", 10_000)
    asked = [held.hold(Source(("192.0.2.1", number), b""), b"", 100.0) for number in range(1000)]
    assert 200 <= asked.count(True) <= 201
