"""Tests a flood of unreadable datagrams: the program still answers, and its log does not grow."""

import asyncio
import socket

import aiohttp
import pytest

from tests.tunnel_pool.daemon.running import daemon
from tests.tunnel_pool.node.test_service import node, scraped
from tests.worlds.network import metrics_in, unused_host
from tunnel_pool.overlay.ground.config import HostPort
from tunnel_pool.overlay.peers.dht import CarefulDht
from tunnel_pool.private_swarm.swarm import free_port

DATAGRAMS = 30_000
AT_ONCE = 300  # datagrams, then the others on this machine have their turn: 30,000 a second at most
PREFIX = bytes([0, 2]) + CarefulDht.community_id  # the public one of the DHT overlay, and nothing behind it


async def flood(address, ask):
    """Send the datagrams, asking the program now and then; return what it has counted as dropped at the end."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        for number in range(0, DATAGRAMS, AT_ONCE):
            for _ in range(AT_ONCE):
                stranger.sendto(PREFIX, address)
            await asyncio.sleep(0.01)
            if number % 3000 == 0:
                await asyncio.wait_for(ask(), 10)
    values = await ask()
    return sum(value for name, value in values.items() if name[0] == "tunnel_pool_dropped_total")


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1])
async def test_a_daemon(workers, tmp_path):
    listen = HostPort(host := unused_host(), free_port(host))
    async with daemon(tmp_path, f"--workers={workers}", f"--listen={listen}") as (running, address):

        async def ask():
            async with aiohttp.ClientSession() as http, http.get(f"http://{address}/metrics") as response:
                return metrics_in(await response.text())

        before = len(running.lines)
        assert await flood(listen, ask) > DATAGRAMS / 2
        assert running.lines[before:] == []


@pytest.mark.slow
async def test_a_node(tmp_path):
    metrics = HostPort(host := unused_host(), free_port(host))
    async with node(tmp_path, "--workers=1", f"--metrics={metrics}") as (running, address):
        before = len(running.lines)
        assert await flood(address, lambda: scraped(metrics)) > DATAGRAMS / 2
        assert [line for line in running.lines[before:] if "circuits" not in line] == []  # a line a minute
