"""Tests that a child left by a killed main process does not keep the port that the next start needs."""

import asyncio
import signal

import psutil

from tests.worlds.commands import command, has_ended, is_pool_child
from tests.worlds.network import COMMUNITY_ID, until, unused_host
from tunnel_pool.overlay.ground.config import HostPort
from tunnel_pool.private_swarm.swarm import free_port


async def stopped_at_once(node):
    """Stop the node's child as soon as there is one, and return it."""
    main = psutil.Process(node.pid)
    async with asyncio.timeout(30):
        while True:
            for child in main.children():
                if is_pool_child(child):
                    child.suspend()
                    return child
            await asyncio.sleep(0)


async def test_a_child_that_was_stopped_in_its_first_moments_does_not_keep_the_port(tmp_path):
    host = unused_host()
    listen = HostPort(host, free_port(host))
    options = ["--bootstrap=none", "--allow-private", f"--community-id={COMMUNITY_ID.hex()}"]
    arguments = ["node", f"--listen={listen}", "--workers=1", f"--state={tmp_path}", *options]
    async with command(*arguments) as node:
        orphan = await stopped_at_once(node)
        node.process.send_signal(signal.SIGKILL)
        await node.process.wait()
        try:
            async with command(*arguments) as again:
                await again.until_line(lambda line: "listening" in line)
        finally:
            if orphan.is_running():
                orphan.resume()
            await until(lambda: has_ended(orphan))
