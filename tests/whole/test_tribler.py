"""Tests tunnel_pool.tribler on a stand-in for Tribler's core, with real py-ipv8, libtorrent and children."""

import asyncio
import json
import os
import sys
from contextlib import asynccontextmanager

import pytest
from ipv8.peerdiscovery.network import Network

from tests.whole.test_hidden import REBUILT_WITHIN_S, host_of, network_arguments, seeding
from tests.worlds.commands import ROOT, command
from tests.worlds.network import COMMUNITY_ID
from tunnel_pool.private_swarm.swarm import LocalSwarm, same_bytes

LAUNCHER = [sys.executable, "-m", "tunnel_pool.tribler"]
STANDIN = ROOT / "tests" / "standin"
THEIRS = ["-s", "--log-level", "ERROR"]


@asynccontextmanager
async def swarm_of(seeders, exits, relays, size_mb=4):
    async with LocalSwarm(
        size_mb << 20, seeders=seeders, exits=exits, relays=relays, log_level="error", community_id=COMMUNITY_ID
    ) as swarm:
        yield swarm


@asynccontextmanager
async def tribler(swarm, tmp_path, *more, what=None, seeding=False, bootstrap=None):
    """Run the launcher on the stand-in, which downloads or seeds one torrent over one hop; yield the command."""
    host = host_of(swarm, 20)
    config = {
        "folder": str(tmp_path),
        "host": host,
        "torrent": what or str(swarm.torrent),
        "save": str(swarm.file.parent if seeding else tmp_path),
        "hops": 1,
        "peers": [list(peer) for peer in swarm.seeders],
        "seeding": seeding,
    }
    where = bootstrap or ",".join(map(str, swarm.nodes))
    ours = ["--workers=2", f"--listen={host}:0", f"--bootstrap={where}", *more]
    path = os.pathsep.join(map(str, (STANDIN, ROOT)))
    environment = {"PYTHONPATH": path, "STANDIN": json.dumps(config)}
    async with command(*ours, *THEIRS, program=LAUNCHER, environment=environment) as running:
        yield running


async def said(running, timeout_s=60):
    """Return the next line of the command's stdout, decoded from JSON."""
    try:
        line = await asyncio.wait_for(running.process.stdout.readline(), timeout_s)
    except TimeoutError:
        raise AssertionError(f"nothing was said within {timeout_s} s: {running.lines}") from None
    assert line, running.lines
    return json.loads(line)


async def shut_down(running):
    running.process.terminate()
    last = await said(running, 20)
    await asyncio.wait_for(running.process.wait(), 20)
    assert running.process.returncode == 143, running.lines
    return last


@pytest.mark.slow
async def test_a_download_by_exits(tmp_path):
    async with swarm_of(seeders=1, exits=2, relays=0) as swarm, tribler(swarm, tmp_path) as running:
        finished = await said(running)
        assert same_bytes(swarm.file, tmp_path / swarm.file.name)
        assert len(running.pool_children()) == 2
        assert finished["overlay"]["overlay_name"] == "TriblerTunnelCommunity"
        assert {peer["ip"] for peer in finished["overlay"]["peers"]} == {node.host for node in swarm.exits}
        circuits = [circuit for circuit in finished["circuits"] if circuit["type"] == "DATA"]
        assert sum(circuit["bytes_down"] for circuit in circuits) > swarm.file.stat().st_size
        assert {int(circuit["circuit_id"]) >> 24 for circuit in circuits} == {0, 1}
        last = await shut_down(running)
        assert last["circuits_removed"] >= len(circuits)


@pytest.mark.slow
async def test_after_a_restart_it_starts_from_the_exits_that_it_remembers(tmp_path):
    async with swarm_of(seeders=1, exits=2, relays=0) as swarm:
        async with tribler(swarm, tmp_path) as running:
            await said(running)
            await shut_down(running)
        exits = Network()
        exits.load_snapshot((tmp_path / "exitnode_cache.dat").read_bytes())
        assert set(exits.get_walkable_addresses()) == {(node.host, node.port) for node in swarm.exits}
        again = tmp_path / "again"
        again.mkdir()
        (tmp_path / "exitnode_cache.dat").rename(again / "exitnode_cache.dat")
        async with tribler(swarm, again, "--start-method=forkserver", bootstrap="none") as running:
            await said(running)
            assert same_bytes(swarm.file, again / swarm.file.name)


@pytest.mark.slow
async def test_a_hidden_download_from_our_seed(tmp_path):
    async with (
        swarm_of(seeders=0, exits=0, relays=4) as swarm,
        seeding(swarm, 1, tmp_path) as (_, link),
        tribler(swarm, tmp_path, what=link) as running,
    ):
        finished = await said(running, REBUILT_WITHIN_S)
        assert same_bytes(swarm.file, tmp_path / swarm.file.name)
        assert "RP_DOWNLOADER" in {circuit["type"] for circuit in finished["circuits"]}


@pytest.mark.slow
async def test_a_hidden_seed_that_our_download_finds(tmp_path):
    async with swarm_of(seeders=0, exits=0, relays=4) as swarm, tribler(swarm, tmp_path, seeding=True):
        arguments = ["--hops=1", "--workers=2", f"--save={tmp_path}", "--json"]
        where = network_arguments(swarm, host_of(swarm, 11), tmp_path / "d")
        async with command("download", swarm.torrent, *arguments, *where) as download:
            code, _, lines = await download.ended()
        assert code == 0, lines
        assert same_bytes(swarm.file, tmp_path / swarm.file.name)


@pytest.mark.parametrize(
    ("arguments", "message", "code"),
    [
        ([], "set PYTHONPATH=/path/to/tribler/src", 1),
        (["--workers=0"], "--workers 0 is Tribler by itself", 2),
        (["--workers=3..2"], "'3..2' is a range whose minimum is above its maximum", 2),
        (["--listen=127.0.0.1:65535", "--workers=1..2", "--steering=off"], "leaves no ports for 2 workers", 2),
    ],
)
async def test_what_can_not_start_says_why_in_one_line(arguments, message, code):
    async with command(*arguments, program=LAUNCHER) as running:
        await asyncio.wait_for(running.process.wait(), 30)
        await running._reader
        assert running.process.returncode == code
        assert len(running.lines) == 1
        assert message in running.lines[0]


async def test_a_tribler_that_is_not_as_we_know_it_is_said_so(tmp_path):
    for name in ("tribler/core/tunnel", "tribler/core", "tribler"):
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
        (tmp_path / name / "__init__.py").touch()
    for name in ("run_tribler", "tribler/core/session", "tribler/core/components", "tribler/core/tunnel/community"):
        (tmp_path / f"{name}.py").touch()
    (tmp_path / "tribler/core/notifier.py").write_text("class Notification:\n    circuit_removed = 1\n")
    async with command(program=LAUNCHER, environment={"PYTHONPATH": str(tmp_path)}) as running:
        await asyncio.wait_for(running.process.wait(), 30)
        await running._reader
        assert running.process.returncode == 1
        assert len(running.lines) == 1
        assert "this Tribler is not like the 8.4" in running.lines[0]
