"""Run a private network of so many nodes and two daemons with nothing to do, and count what they send.

idle_world.py FOLDER NODES

Runs in a network namespace that `unshare` made; all programs are at one address of loopback. Prints one JSON object:
what each program knows once they have settled, and how many datagrams all of them sent a second.
"""

import asyncio
import contextlib
import json
import shlex
import sys
import time
from pathlib import Path

import aiohttp

from tests.worlds.commands import command
from tests.worlds.leak_world import run
from tunnel_pool.node.server import ask_status
from tunnel_pool.system.errors import UserError

EXITS = 2
HOST = "127.0.0.1"
SETTLED_WITHIN_S = 240.0
CALM_S = 45.0  # then each node has had its address stored in the DHT (ipv8/dht/discovery.py, store_peer: each 30 s)
WATCHED_S = 20.0


def datagrams_sent():
    """Return how many datagrams were sent in this namespace (proc(5), /proc/net/snmp)."""
    names, values = [line.split()[1:] for line in Path("/proc/net/snmp").read_text().splitlines() if "Udp:" in line]
    return int(dict(zip(names, values, strict=True))["OutDatagrams"])


async def known_to_node(state_dir):
    try:
        status = await ask_status(state_dir)
    except UserError:
        return None
    return status["candidates"], status["exits_known"]


async def known_to_daemon(http, port):
    with contextlib.suppress(aiohttp.ClientError):
        async with http.get(f"http://{HOST}:{port}/api/status") as response:
            status = await response.json()
            return status["candidates"], status["exits"]
    return None


def lacks(have, want):
    """Return whether a program knows too few nodes, the daemons aside, or too few exits."""
    return have is None or have[0] < want[0] or have[1] < want[1]


async def main(folder, nodes):
    run("ip", "link", "set", "lo", "up")
    words = f"--relays={nodes - EXITS}", f"--exits={EXITS}", f"--hosts={HOST}", f"--rpc={HOST}:9091"
    async with command("private-network", folder / "net", *words) as written:
        assert await written.process.wait() == 0
    lines = (folder / "net" / "README").read_text().splitlines()
    commands = [shlex.split(line[line.index("tunnel-pool ") :])[1:] for line in lines if "tunnel-pool " in line]
    of_nodes = [words for words in commands if words[0] == "node"]
    (daemon,) = (words for words in commands if words[0] == "daemon")
    async with contextlib.AsyncExitStack() as stack:
        http = await stack.enter_async_context(aiohttp.ClientSession())
        states = []
        for number, words in enumerate(of_nodes):
            states.append(folder / f"state{number}")
            await stack.enter_async_context(command(*words, "--state", states[-1], "--workers=0"))
        for number in range(2):
            own = "--state", folder / f"daemon{number}", f"--rpc={HOST}:{9091 + number}", "--workers=1"
            await stack.enter_async_context(command(*daemon, *own))

        async def known():
            return [
                *[await known_to_node(state) for state in states],
                *[await known_to_daemon(http, 9091 + number) for number in range(2)],
            ]

        is_exit = ["exit" in str(words) for words in of_nodes]
        wanted = [(nodes - 1, EXITS - exits) for exits in is_exit] + [(nodes, EXITS)] * 2
        began_s = time.monotonic()
        found = await known()
        while any(map(lacks, found, wanted)) and time.monotonic() - began_s < SETTLED_WITHIN_S:
            await asyncio.sleep(1.0)
            found = await known()
        settled_s = time.monotonic() - began_s
        await asyncio.sleep(CALM_S)
        before, since_s = datagrams_sent(), time.monotonic()
        await asyncio.sleep(WATCHED_S)
        a_second = (datagrams_sent() - before) / (time.monotonic() - since_s)
    print(
        json.dumps(
            {
                "programs": nodes + 2,
                "missing": [(have, want) for have, want in zip(found, wanted, strict=True) if lacks(have, want)],
                "settled_s": round(settled_s, 1),
                "datagrams_a_second_each": round(a_second / (nodes + 2), 1),
            }
        )
    )


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
