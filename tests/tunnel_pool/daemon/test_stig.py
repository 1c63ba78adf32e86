"""Tests an anonymous download driven by stig, as it is on PyPI, which tries JSON-RPC 2.0 first."""

import asyncio
import os
import re
import sys
from pathlib import Path

import pytest

from tests.tunnel_pool.daemon.running import daemon
from tunnel_pool.bench.harness.daemon import magnet_of, network_of
from tunnel_pool.private_swarm.swarm import LocalSwarm, same_bytes

pytestmark = pytest.mark.slow


class Stig:
    def __init__(self, address, config):
        connect = f"set connect.host {address.host} ; set connect.port {address.port} ;"
        self._words = [Path(sys.executable).with_name("stig"), "-T", *connect.split()]
        # stig takes its output for a terminal if COLUMNS or LINES is set, as it is under pytest-xdist.
        usual = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        self._environment = {**usual, "XDG_CONFIG_HOME": str(config), "HOME": str(config)}

    async def __call__(self, *words):
        process = await asyncio.create_subprocess_exec(
            *self._words, *map(str, words), env=self._environment,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        output, _ = await asyncio.wait_for(process.communicate(), 30)
        return output.decode()

    async def seen(self, pattern, *words):
        async with asyncio.timeout(60):
            while not re.search(pattern, output := await self(*words)):
                pass
        return output


async def test_a_download_by_stig(tmp_path):
    async with (
        LocalSwarm(4 << 20, seeders=1, exits=2, relays=1, log_level="error") as swarm,
        daemon(tmp_path, "--workers=1", *network_of(swarm)) as (running, address),
    ):
        stig = Stig(address, tmp_path / "config")
        assert "Added" in await stig("add", "--stopped", magnet_of(swarm))
        assert "stopped" in await stig("ls", "-c", "name,status")
        assert re.search(r"labels\s+hops:1", await stig("info", "all"))
        await stig("label", "iso,hops:2", "all")
        assert re.search(r"labels\s+(iso,hops:2|hops:2,iso)", await stig("info", "all"))
        await stig("limit", "down", "2MB", "all")
        await stig("start", "all")
        await stig.seen(r"random.bin.*\t100", "ls", "-c", "name,%downloaded")
        assert "random.bin" in await stig("ls", "files", "all")
        await stig("move", "all", tmp_path / "moved")
        await stig.seen(str(tmp_path / "moved"), "ls", "-c", "path")
        assert same_bytes(swarm.file, tmp_path / "moved" / swarm.file.name)
        (saw,) = await swarm.peers_of_seeders()
        assert saw
        assert set(saw) <= {node.host for node in swarm.exits}
        await stig("pause", "all")
        assert "stopped" in await stig("ls", "-c", "name,status")
        await stig("remove", "--force", "--delete-files", "all")
        assert "random.bin" not in await stig("ls")
