"""Tests a private network started as README says, from the files that one command has written."""

import asyncio
import contextlib
import json
import shlex

import pytest

from tests.whole.test_cli import fails
from tests.worlds.commands import command
from tests.worlds.network import until, unused_host
from tunnel_pool.private_swarm.recipe import least_nodes, networks_of, nodes_of
from tunnel_pool.private_swarm.swarm import make_random_file, same_bytes


@pytest.mark.slow
@pytest.mark.parametrize("hops", [1, 3])
async def test_what_readme_says_downloads_a_file_with_as_few_nodes_as_it_may_have(hops, tmp_path):
    host, folder = unused_host(), tmp_path / "net"
    least = f"--relays={least_nodes(hops) - 1}", "--exits=1"
    words = f"--hops={hops}", f"--hosts={host}", f"--rpc={host}:9091", "--json"
    async with command("private-network", folder, *least, *words) as written:
        report = json.loads(await asyncio.wait_for(written.process.stdout.read(), 30))
    assert (report["ok"], report["nodes"]) == (True, hops)
    file = tmp_path / "file.bin"
    make_random_file(file, 2 << 20)
    lines = (folder / "README").read_text().splitlines()
    commands = [shlex.split(line[line.index("tunnel-pool ") :])[1:] for line in lines if "tunnel-pool " in line]
    nodes, (seed, daemon, add) = [words for words in commands if words[0] == "node"], commands[-3:]
    async with contextlib.AsyncExitStack() as stack:
        for words in nodes:
            await stack.enter_async_context(command(*words))
        seed[1] = file
        seeder = await stack.enter_async_context(command(*seed))
        link = (await asyncio.wait_for(seeder.process.stdout.readline(), 30)).decode().strip()
        running = await stack.enter_async_context(command(*daemon))
        await running.until_line(lambda line: "clients find them at" in line)
        add[1] = link
        async with command(*add) as added:
            assert await asyncio.wait_for(added.process.wait(), 30) == 0
        got = folder / "downloads" / "file.bin"
        await until(lambda: got.exists() and same_bytes(file, got), 90)


def test_nodes_are_spread_over_the_machines_and_have_ports_of_their_own():
    nodes = nodes_of(["10.0.0.1", "10.0.0.2"], 7000, 3, 2)
    assert [str(node.address) for node in nodes] == [
        "10.0.0.1:7000", "10.0.0.2:7000", "10.0.0.1:7001", "10.0.0.2:7001", "10.0.0.1:7002",
    ]  # fmt: skip
    assert [node.is_exit for node in nodes] == [False] * 3 + [True] * 2
    assert networks_of(nodes) == ["10.0.0.0/24"]
    assert networks_of(nodes_of(["127.3.2.1"], 7000, 1, 1)) == ["127.0.0.0/8"]


async def test_what_is_written_is_right_and_too_few_nodes_and_a_second_network_are_refused(tmp_path):
    folder = tmp_path / "n"
    code, _, line = await fails("private-network", folder, "--hops=3", "--relays=1")
    assert (code, "3 hops need 3 nodes: --relays 2" in line) == (2, True)
    async with command("private-network", folder) as written:
        assert await written.process.wait() == 0
    assert sorted(path.name for path in folder.iterdir()) == [
        "README", "daemon.toml", "downloads", "exit-1.toml", "relay-1.toml", "relay-2.toml", "relay-3.toml",
    ]  # fmt: skip
    for words in (
        ("config", "check", "--config", folder / "daemon.toml"),
        ("node", "--show-policy", "--config", folder / "exit-1.toml"),
        ("node", "--show-policy", "--config", folder / "relay-3.toml"),
    ):
        async with command(*words) as checked:
            assert await checked.process.wait() == 0
    code, _, line = await fails("private-network", folder)
    assert (code, "there is a network in" in line) == (1, True)
