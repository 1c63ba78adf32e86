"""Tests our programs with plain pyipv8 on the other side, a real peer without any of our code."""

import asyncio
import json
import os
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.worlds.commands import command
from tests.worlds.network import COMMUNITY_ID, Echo, unused_host
from tunnel_pool.private_swarm.swarm import LocalSwarm, free_port, same_bytes

PLAIN = [sys.executable, str(Path(__file__).parent.parent / "worlds" / "plain_node.py")]


@pytest.mark.slow
async def test_we_download_through_a_plain_exit(tmp_path):
    plain = await asyncio.create_subprocess_exec(
        *PLAIN, "exit", host := unused_host(), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    port = json.loads(await plain.stdout.readline())["port"]
    try:
        await download_through(host, port, tmp_path)
    finally:
        plain.stdin.close()
        assert await plain.wait() == 0


async def download_through(host, port, tmp_path):
    size_bytes = 20 << 20
    async with LocalSwarm(size_bytes, seeders=1, exits=0, relays=0, log_level="error") as swarm:
        arguments = ["download", swarm.torrent, "--workers=2", f"--save={tmp_path}", f"--state={tmp_path / 'state'}"]
        arguments += [f"--peer={swarm.seeders[0]}", f"--bootstrap={host}:{port}", f"--listen={swarm.client_host}:0"]
        async with command(*arguments, f"--community-id={COMMUNITY_ID.hex()}", "--json") as download:
            code, report, lines = await download.ended()
        assert code == 0, lines
        assert report["bytes"] == size_bytes
        assert same_bytes(swarm.file, tmp_path / swarm.file.name)
        assert sum(circuit["bytes"] for circuit in report["circuits"]) > size_bytes


async def plain_client_through(tmp_path, hops, workers, endpoint="python"):
    """Run a plain client over `hops` nodes of ours, the last an exit; return its answer, the echo and the exit host."""
    hosts = [unused_host() for _ in range(hops)]
    ports = [free_port(host) for host in hosts]
    async with AsyncExitStack() as stack:
        for host, port in zip(hosts, ports, strict=True):
            is_exit = host == hosts[-1]
            arguments = ["node", f"--listen={host}:{port}", f"--workers={workers}", f"--state={tmp_path / host}"]
            arguments += [f"--community-id={COMMUNITY_ID.hex()}", "--allow-private", *(["--exit"] if is_exit else [])]
            others = [f"{h}:{p}" for h, p in zip(hosts, ports, strict=True) if h != host]
            node = await stack.enter_async_context(command(*arguments, f"--bootstrap={','.join(others) or 'none'}"))
            await node.until_line(lambda line: "listening" in line)
        with Echo() as echo:
            nodes = [f"{port}@{host}" for host, port in zip(hosts, ports, strict=True)]
            client = await asyncio.create_subprocess_exec(
                *PLAIN,
                "client",
                unused_host(),
                str(hops),
                *map(str, echo.address),
                *nodes,
                stdout=asyncio.subprocess.PIPE,
                env={**os.environ, "PLAIN_ENDPOINT": endpoint},
            )
            output, _ = await asyncio.wait_for(client.communicate(), 60)
            assert client.returncode == 0
            return json.loads(output.splitlines()[-1]), echo, hosts[-1]


async def test_a_plain_client_exits_through_our_node(tmp_path):
    answer, echo, exit_host = await plain_client_through(tmp_path, hops=1, workers=0)
    assert answer == {"origin": list(echo.address), "data": "d1:t5:helloe", "hops": 1}
    assert [source[0] for _, source in echo.received] == [exit_host]


@pytest.mark.slow
@pytest.mark.parametrize("endpoint", ["python", "rust"])
async def test_a_plain_client_takes_our_pooled_nodes_as_first_hop_middle_and_exit(endpoint, tmp_path):
    answer, echo, exit_host = await plain_client_through(tmp_path, hops=3, workers=2, endpoint=endpoint)
    assert answer == {"origin": list(echo.address), "data": "d1:t5:helloe", "hops": 3}
    assert [source[0] for _, source in echo.received] == [exit_host]
