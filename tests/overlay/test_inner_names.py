"""Tests that names of internal networks are neither sent to an exit nor resolved by one."""

import asyncio
import socket
import threading
from collections import Counter
from types import SimpleNamespace

import pytest

from tests.worlds.network import until
from tunnel_pool.daemon.outside.urls import NotAllowedError, place_of
from tunnel_pool.overlay.ground.exit_rules import Protocol
from tunnel_pool.overlay.serving.circuit_names import CircuitNames
from tunnel_pool.overlay.serving.exit_source import ExitSource
from tunnel_pool.overlay.serving.inner_names import is_inner_name
from tunnel_pool.overlay.serving.resolver import (
    MAX_RESOLVING,
    MAX_RESOLVING_IN_ALL,
    MAX_RESOLVING_OF_HOP,
    MAX_WAITING,
    MAX_WAITING_OF_HOP,
    Names,
)
from tunnel_pool.overlay.serving.shares import Asker, Shares
from tunnel_pool.overlay.serving.stream_names import StreamNames

INNER = [
    "nas", "a.test", "x.alt", "pc.wlan", "pc.dhcp", "localhost", "a.local", "a.LAN.", "x.corp", "fritz.box",
    "www.fritz.box", "a.home.arpa", "b.intranet", "printer.internal", "127.1", "0x7f.1", "2130706433", "1.2.3.4.5",
    "x.0x7f", "a..b", "", ".", "db.svc.localdomain",
]  # fmt: skip
OUTER = ["example.org", "tracker.example", "a.box", "corp.example", "1.example", "lan.de", "xn--bcher-kva.example"]


@pytest.mark.parametrize("name", INNER)
def test_inner_names(name):
    assert is_inner_name(name)


@pytest.mark.parametrize("name", OUTER)
def test_names_of_the_internet(name):
    assert not is_inner_name(name)


@pytest.mark.parametrize("name", ["nas.lan", "fritz.box", "x.corp", "0x7f.1", "localdomain"])
def test_no_exit_is_asked_for_a_feeds_inner_name(name):
    with pytest.raises(NotAllowedError, match="can't look up"):
        place_of(f"https://{name}/rss")


class Policy(SimpleNamespace):
    """An exit with circuits 0 to 99; circuit n has the previous hop n // 10."""

    def __init__(self):
        names, self.tasks = Names(), []
        super().__init__(
            tasks=self.tasks,
            counters=Counter(),
            names=names,
            allow_private=False,
            exit_source=ExitSource(),
            exit_sockets={
                number: SimpleNamespace(
                    names=CircuitNames(names, Asker(number, f"192.0.2.{number // 10}"), self.tasks.append)
                )
                for number in range(100)
            },
        )

    def exit_protocols(self):
        return Protocol.TCP

    def close(self):
        for task in self.tasks:
            task.cancel()


@pytest.fixture
def asked(monkeypatch):
    """Yield the names that getaddrinfo is called with; only those that begin with `quick` resolve before the end."""
    names, answers = [], threading.Event()

    def getaddrinfo(name, port, **options):
        names.append(name)
        if not name.startswith("quick"):
            answers.wait(30)
        return [(2, 1, 6, "", ("192.0.2.1", 0))]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    yield names
    answers.set()


async def test_slow_names_of_one_circuit_hold_up_no_other(asked):
    names = StreamNames(policy := Policy())
    for number in range(64):
        names.look_up(f"slow{number}.example", 0)
    await until(lambda: len(asked) == MAX_RESOLVING)
    assert await names.look_up("quick.example", 1) == "192.0.2.1"
    assert len(asked) == MAX_RESOLVING + 1
    names.close()
    policy.close()


async def test_slow_names_of_one_previous_hop_hold_up_no_other(asked):
    names = StreamNames(policy := Policy())
    for circuit_id in range(10):
        for number in range(64):
            names.look_up(f"slow{number}.example", circuit_id)
    await until(lambda: len(asked) == MAX_RESOLVING_OF_HOP)
    assert 8 * MAX_RESOLVING_OF_HOP <= MAX_RESOLVING_IN_ALL  # so many previous hops hold up all others
    assert await names.look_up("quick.example", 10) == "192.0.2.1"
    names.close()
    policy.close()


async def test_a_name_is_looked_up_once_for_all_that_a_circuit_leads_there(asked):
    """Hundreds of torrents announce to one tracker at a start."""
    policy = Policy()
    names = StreamNames(policy)
    looked_up = [names.look_up("quick.example", 0) for _ in range(MAX_WAITING)]
    assert set(await asyncio.gather(*looked_up)) == {"192.0.2.1"}
    assert await names.look_up("quick.example", 0) == "192.0.2.1"
    assert asked == ["quick.example"]
    # What one circuit has found is no other's: it would hear by the time it takes.
    assert await names.look_up("quick.example", 1) == "192.0.2.1"
    assert asked == ["quick.example"] * 2
    # Many names wait for their turn, and too many are refused.
    assert set(await asyncio.gather(*(names.look_up(f"quick{number}.example", 2) for number in range(100)))) == {
        "192.0.2.1"
    }
    assert policy.counters == {}
    for number in range(MAX_WAITING + 10):
        names.look_up(f"slow{number}.example", 3)
    await until(lambda: policy.counters == {"exit_too_many_names": 10})
    for number in range(MAX_WAITING):
        names.look_up(f"slow{number}.example", 4)
        names.look_up(f"slow{number}.example", 5)
    await until(lambda: policy.counters == {"exit_too_many_names": 10 + 3 * MAX_WAITING - MAX_WAITING_OF_HOP})
    names.close()
    policy.close()


async def test_an_exit_looks_no_inner_name_up(asked):
    policy = Policy()
    names = StreamNames(policy)
    for name in ("nas", "printer.local", "10.1"):
        assert await names.look_up(name, 0) is None
    assert asked == []
    assert policy.counters == {"exit_name_refused": 3}


def test_a_previous_hop_is_an_address_of_ipv4_and_64_bits_of_ipv6():
    for hosts in (["192.0.2.1"], ["::ffff:192.0.2.1", "192.0.2.1"], ["2001:db8::1", "2001:db8::ffff:1"]):
        shares = Shares(of_circuit=9, of_hop=3, in_all=9)
        askers = [Asker(number, hosts[number % len(hosts)]) for number in range(5)]
        assert [shares.take(asker) for asker in askers] == [True] * 3 + [False] * 2
        assert shares.take(Asker(6, "2001:db8:0:1::1"))
        shares.give_back(askers[0])
        assert shares.take(askers[4])
        assert shares.all == 4
