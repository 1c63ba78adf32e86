"""Tests links between nodes: delay, loss and rate of one link, and real packets between real namespaces."""

import asyncio
import json
import random
import statistics
import sys
from itertools import pairwise

import pytest

from tunnel_pool.gumby_experiments.nodes import links, router
from tunnel_pool.gumby_experiments.nodes.router import Direction, Link, netem
from tunnel_pool.gumby_experiments.plan.errors import RunError
from tunnel_pool.system.errors import UserError

# In a namespace: sends so many datagrams, one after the other, to where the other sends them back.
PING = """
import json, socket, sys, time
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); sock.settimeout(0.5)
took = []
for _ in range(int(sys.argv[2])):
    begun = time.monotonic(); sock.sendto(b"x" * 1000, (sys.argv[1], 7000))
    try:
        sock.recv(2000); took.append(1000 * (time.monotonic() - begun))
    except TimeoutError: pass
print(json.dumps(took))
"""
PONG = """
import socket, sys
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); sock.bind((sys.argv[1], 7000)); print("up", flush=True)
while True:
    data, source = sock.recvfrom(2000); sock.sendto(data, source)
"""
needs_namespaces = pytest.mark.skipif(bool(links.why_not()), reason=str(links.why_not()))


def arrivals(link, packets, size=1250, every_s=0.001, seed=1):
    direction = Direction(random.Random(seed))
    direction.link = link
    return [direction.arrival(size, number * every_s) for number in range(packets)]


def test_a_delay_is_the_same_for_all():
    assert arrivals(Link(delay_ms=20), 3) == pytest.approx([0.020, 0.021, 0.022])


def test_jitter_spreads_and_keeps_the_order():
    came = arrivals(Link(delay_ms=20, jitter_ms=5), 2000)
    late = [1000 * (at - 0.001 * number) for number, at in enumerate(came)]
    assert came == sorted(came)
    assert all(15 <= each <= 25.1 for each in late)
    assert statistics.pstdev(late) > 0.5


def test_a_share_is_lost():
    came = arrivals(Link(loss_percent=10), 10_000)
    assert 0.085 < came.count(None) / len(came) < 0.115


def test_a_rate_spaces_packets_and_drops_what_waits_too_long():
    # 10 Mbit/s are 1000 such packets a second; twice as many are sent.
    came = arrivals(Link(rate_mbit=10), 4000, every_s=0.0005)
    there = [at for at in came if at is not None]
    assert len(there) / there[-1] == pytest.approx(1000, rel=0.02)
    gaps = [later - sooner for sooner, later in pairwise(there)]
    assert min(gaps) >= 0.00099
    assert (
        max(at - 0.0005 * number for number, at in enumerate(came) if at is not None) <= Link().queue_ms / 1000 + 0.002
    )


def test_the_words_for_netem():
    assert netem(Link()) == ["netem", "limit", "10000", "delay", "0.0ms"]
    assert netem(Link(delay_ms=20, jitter_ms=2, loss_percent=1, rate_mbit=50)) == (
        "netem limit 925 delay 20.0ms 2ms loss 1% rate 50mbit".replace("20.0ms", "20ms").split()
    )


def test_every_node_has_an_address_of_its_own():
    assert len({router.address(node) for node in range(1, 600)}) == 599


async def _run(*command):
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stdin=asyncio.subprocess.DEVNULL
    )
    output, _ = await process.communicate()
    return json.loads(output)


async def ping(namespaces, times):
    """Return the round-trip times in ms of the datagrams from node 1 that node 2 sent back."""
    to, enter_there = namespaces.place(2)
    _, enter_here = namespaces.place(1)
    pong = await asyncio.create_subprocess_exec(
        *enter_there, sys.executable, "-c", PONG, to, stdout=asyncio.subprocess.PIPE
    )
    try:
        await pong.stdout.readline()
        return await _run(*enter_here, sys.executable, "-c", PING, to, str(times))
    finally:
        pong.kill()
        await pong.wait()


@pytest.mark.slow
@needs_namespaces
async def test_packets_take_their_time_and_some_are_lost():
    async with links.open_links(2, seed=1) as namespaces:
        assert statistics.median(await ping(namespaces, 20)) < 10
        await namespaces.set(1, delay_ms=20)
        await namespaces.set(2, delay_ms=5)
        took = await ping(namespaces, 20)
        assert len(took) == 20
        assert 49 < statistics.median(took) < 80
        await namespaces.set(2, loss_percent=100)
        assert await ping(namespaces, 3) == []


@needs_namespaces
async def test_veth_pairs_join_the_namespaces_too():
    """The links that netem is put on, where the kernel has it, join the namespaces as well."""
    async with links.open_links(2, seed=1, kind="netem") as namespaces:
        assert len(await ping(namespaces, 20)) == 20


async def test_without_the_right_it_is_said_in_one_line(monkeypatch):
    monkeypatch.setattr(links.os, "geteuid", lambda: 1000)
    with pytest.raises(UserError, match="need root on Linux"):
        async with links.open_links(2, seed=1):
            pass
    monkeypatch.setattr(links.os, "geteuid", lambda: 0)
    monkeypatch.setattr(links.shutil, "which", lambda name: None if name == "tc" else f"/bin/{name}")
    with pytest.raises(UserError, match="need tc: apt-get install iproute2"):
        async with links.open_links(2, seed=1):
            pass


@needs_namespaces
async def test_links_that_are_gone_are_told():
    async with links.open_links(1, seed=1) as namespaces:
        namespaces._process.kill()
        with pytest.raises(RunError, match="has ended"):
            await namespaces.set(1, delay_ms=1)
