"""Debian's transmission-remote drives an anonymous download from its beginning to its end."""

import asyncio
import re
import shutil

import pytest

from tests.tunnel_pool.daemon.running import daemon
from tunnel_pool.bench.harness.daemon import magnet_of, network_of
from tunnel_pool.private_swarm.swarm import LocalSwarm, same_bytes

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("transmission-remote") is None, reason="apt-get install transmission-cli"),
]


class Remote:
    def __init__(self, address, password):
        self._words = ["transmission-remote", str(address), "--auth", f"tunnel-pool:{password}"]

    async def __call__(self, *words):
        process = await asyncio.create_subprocess_exec(
            *self._words, *map(str, words), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        output, _ = await asyncio.wait_for(process.communicate(), 20)
        assert process.returncode == 0, output.decode()
        return output.decode()

    async def seen(self, pattern, *words):
        """Return what the command prints, once the wanted text is in it."""
        async with asyncio.timeout(60):
            while not re.search(pattern, output := await self(*words)):  # noqa: ASYNC110
                await asyncio.sleep(0.2)
        return output


async def test_a_download_by_transmission_remote(tmp_path):
    password = {"TUNNEL_POOL_RPC_PASSWORD": "correct horse"}
    async with (
        LocalSwarm(8 << 20, seeders=1, exits=2, relays=1, log_level="error") as swarm,
        daemon(tmp_path, "--workers=1", *network_of(swarm), environment=password) as (running, address),
    ):
        remote = Remote(address, "correct horse")
        assert "success" in await remote("--start-paused", "--add", magnet_of(swarm), "--labels", "iso,hops:2")
        assert "Stopped" in await remote("--list")
        await remote("--torrent", "1", "--downlimit", "500", "--start")
        assert "Labels: iso, hops:2" in await remote("--torrent", "1", "--info")
        await remote.seen(r" [1-9]\d?% ", "--list")
        assert "random.bin" in await remote.seen("random.bin", "--torrent", "1", "--files")
        assert swarm.seeders[0].host in await remote("--torrent", "1", "--info-peers")
        await remote("--torrent", "1", "--stop")
        await remote.seen("Stopped", "--list")
        await remote("--torrent", "1", "--no-downlimit", "--start")
        await remote.seen(r"100% .*(Idle|Seeding)", "--list")
        await remote("--torrent", "1", "--move", tmp_path / "moved")
        await remote.seen(f"Location: {tmp_path / 'moved'}", "--torrent", "1", "--info")
        assert same_bytes(swarm.file, tmp_path / "moved" / swarm.file.name)
        (saw,) = await swarm.peers_of_seeders()
        assert set(saw) <= {node.host for node in swarm.exits}
        await remote("--torrent", "1", "--remove-and-delete")
        assert "random.bin" not in await remote("--list")
        for words in (["--session-info"], ["--session-stats"], ["--port-test"]):
            await remote(*words)
        await remote("--exit")
        assert await asyncio.wait_for(running.process.wait(), 20) == 0
