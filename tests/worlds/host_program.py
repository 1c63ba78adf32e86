"""Embeds the pool in a program that takes itself to be frozen: its own executable also starts the children.

HOST_PROGRAM is that executable. Prints one JSON object: how its children were started, and whether Twisted was needed.
"""

import argparse
import asyncio
import json
import os
import signal
import sys

sys.frozen = True
sys.executable = os.environ.get("HOST_PROGRAM", "")

from tunnel_pool import hosting  # noqa: E402

hosting.use_switches("--host-worker", "--host-template")
hosting.become_child_if_asked()

import psutil  # noqa: E402

from tests.worlds.network import make_config  # noqa: E402
from tunnel_pool.pool.command import StartMethod  # noqa: E402
from tunnel_pool.pooled.community import PooledTunnelCommunity  # noqa: E402


async def main(arguments, pooled):
    await pooled.start()
    await pooled.pool.all_settled()
    me = psutil.Process()
    switches = [process.cmdline()[-1] for process in me.children(recursive=True)]
    running = len(pooled.pool.running())
    await pooled.unload()
    left = len(me.children(recursive=True))
    print(json.dumps({"switches": switches, "running": running, "left": left, "twisted": "twisted" in sys.modules}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--start-method", default="spawn")
    parser.add_argument("--ignores-children", action="store_true")
    given = parser.parse_args()
    if given.ignores_children:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps them, and nobody hears their exit codes
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)  # py-ipv8's TaskManager wants one; it does not run yet
    community = PooledTunnelCommunity(
        make_config(), range(2), 1, start_method=StartMethod(given.start_method), shares_port=True
    )
    loop.run_until_complete(main(given, community))
