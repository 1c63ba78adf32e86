"""Faults that the chaos test inflicts on a running World; each is a coroutine that takes the World."""

import asyncio
import contextlib
import os
import signal

import aiohttp
import psutil

from tests.worlds.commands import is_pool_child

PAUSED_S = 5.0  # at most; a child that answers no heartbeat for 4 s is replaced
DISK_FULL_S = 2.0
BLOCK_BYTES = 1 << 20


async def kill_child(world):
    world.strike(world.random_child(), signal.SIGKILL)


async def _pause(world, process, at_most_s):
    world.strike(process, signal.SIGSTOP)
    await asyncio.sleep(world.random.random() * at_most_s)
    world.strike(process, signal.SIGCONT)


async def terminate_child(world):
    """Send a child SIGTERM, which children ignore: they end when the main process asks them to."""
    world.strike(world.random_child(), signal.SIGTERM)


async def pause_child(world):
    await _pause(world, world.random_child(), PAUSED_S)


async def kill_all_children(world):
    for child in world.children():
        world.strike(child, signal.SIGKILL)


async def kill_template(world):
    """Kill the process that children are forked of, if there is one; the children go on."""
    for process in world.processes("--template"):
        if not is_pool_child(process):
            world.strike(process, signal.SIGKILL)


async def kill_main(world):
    await world.restart(signal.SIGKILL)


async def kill_main_as_it_starts(world):
    await world.restart(signal.SIGKILL, again_after_s=world.random.random())


async def terminate_main(world):
    await world.restart(signal.SIGTERM)


async def interrupt_main(world):
    await world.restart(signal.SIGINT)


async def kill_main_while_a_child_stands_still(world):
    """Stop a child at work, then kill the main process: the child dies with it, even while stopped.

    A child that is stopped before it has called `die_with_parent` stays until it is continued, without a key or a
    socket of the node (tests/tunnel_pool/pool/test_orphan.py). So only children that run are stopped here.
    """
    children = (await world.get("/api/pool"))["children"]
    at_work = [child["pid"] for child in children if child["slot"] is not None and child["state"] == "running"]
    if at_work:
        with contextlib.suppress(psutil.NoSuchProcess):
            world.strike(psutil.Process(world.random.choice(at_work)), signal.SIGSTOP)
    await world.restart(signal.SIGKILL)


async def pause_main(world):
    await _pause(world, psutil.Process(world.running.pid), PAUSED_S / 2)


async def hang_up(world):
    """Send SIGHUP, on which the daemon reads its configuration again."""
    world.strike(psutil.Process(world.running.pid), signal.SIGHUP)


async def scale(world):
    least = world.random.randint(1, 2)
    await world.put("/api/pool/workers", {"least": least, "most": world.random.randint(least, 3)})


async def drain(world):
    slots = [child["slot"] for child in (await world.get("/api/pool"))["children"]]
    if slots:
        with contextlib.suppress(aiohttp.ClientResponseError):  # it is gone, or drained already
            await world.post(f"/api/pool/children/{world.random.choice(slots)}/drain")


async def kill_node(world):
    """Kill an exit or a relay that is not ours, and start another at the same address."""
    await world.replace_node(signal.SIGKILL)


async def pause_node(world):
    await _pause(world, world.random_node(), PAUSED_S)


async def pause_seeders(world):
    for seeder in world.seeders:
        seeder.session.pause()
    await asyncio.sleep(world.random.random() * PAUSED_S / 2)
    for seeder in world.seeders:
        seeder.session.resume()


async def fill_disk(world):
    """Fill the daemon's disk to the last byte, for up to DISK_FULL_S seconds."""
    ballast = world.disk / "ballast"
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(os.urandom(BLOCK_BYTES) if file.tell() == 0 else bytes(BLOCK_BYTES))
    await asyncio.sleep(world.random.random() * DISK_FULL_S)
    ballast.unlink()


# How often each comes, compared with the others.
FAULTS = {
    kill_child: 6,
    terminate_child: 1,
    pause_child: 4,
    kill_all_children: 2,
    kill_template: 2,
    kill_main: 6,
    kill_main_as_it_starts: 3,
    terminate_main: 2,
    interrupt_main: 1,
    kill_main_while_a_child_stands_still: 2,
    pause_main: 2,
    hang_up: 2,
    scale: 4,
    drain: 2,
    kill_node: 2,
    pause_node: 2,
    pause_seeders: 2,
    fill_disk: 3,
}
