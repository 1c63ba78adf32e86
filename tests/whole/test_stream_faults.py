"""Tests downloads over streams while processes on the way die: they complete, and reach the other peers again."""

import os
import signal
from contextlib import asynccontextmanager

import psutil
import pytest

from tests.whole.test_hidden import network_arguments
from tests.worlds.commands import command
from tests.worlds.network import until
from tunnel_pool.packet_engine import is_built
from tunnel_pool.private_swarm.swarm import LocalSwarm, same_bytes

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not is_built(), reason="only the native engine carries streams"),
]


@asynccontextmanager
async def downloading(hops, tmp_path, size_mb=24, exits=2):
    """Yield a swarm, and a download at walking speed that has begun: 4 MB/s."""
    async with LocalSwarm(
        size_mb << 20, seeders=2, exits=exits, relays=2, log_level="error", seeder_speed=2_000_000
    ) as swarm:
        arguments = [f"--peer={seeder}" for seeder in swarm.seeders] + [f"--hops={hops}", "--workers=2", "--json"]
        network = network_arguments(swarm, swarm.client_host, tmp_path / "s")
        async with command("download", swarm.torrent, f"--save={tmp_path}", *arguments, *network) as download:
            await download.until_downloaded(3)
            yield swarm, download


async def completes(swarm, download, tmp_path):
    """Wait for the end, and return the report."""
    code, report, lines = await download.ended()
    assert code == 0, lines
    assert same_bytes(swarm.file, tmp_path / swarm.file.name)
    assert sum(circuit["streams"] for circuit in report["circuits"]) > 0
    return report


def index_of_exit_in_use(swarm):
    """Return the index of an exit that is connected to a seeder by TCP, None while there is none."""
    seeders = {tuple(seeder) for seeder in swarm.seeders}
    for index, pid in enumerate(swarm.pids()["exits"]):
        connections = psutil.Process(pid).net_connections("tcp")
        if any(each.raddr and tuple(each.raddr) in seeders for each in connections):
            return index
    return None


async def test_an_exit_is_killed(tmp_path):
    async with downloading(2, tmp_path) as (swarm, download):
        index = index_of_exit_in_use(swarm)
        assert index is not None
        await swarm.replace_node("exits", index, signal.SIGKILL)
        await completes(swarm, download, tmp_path)


async def test_the_relays_are_killed(tmp_path):
    # With one exit, every circuit goes over a relay.
    async with downloading(2, tmp_path, exits=1) as (swarm, download):
        for index in range(2):
            await swarm.replace_node("relays", index, signal.SIGKILL)
        report = await completes(swarm, download, tmp_path)
        assert len(report["circuits"]) > 8 + 1  # what was wanted, with a look-up: others were built in place of these


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_child_is_struck(how, tmp_path):
    # A stopped child is noticed after some seconds.
    async with downloading(1, tmp_path, size_mb=80) as (swarm, download):
        children = download.pool_children()
        os.kill(children[0].pid, how)
        old = {child.pid for child in children}
        await until(lambda: {child.pid for child in download.pool_children()} - old, 30, "a new child")
        report = await completes(swarm, download, tmp_path)
        assert report["worker_restarts"] == 1
