"""Runs the real Tribler in a network namespace with loopback alone, and the nodes and seeders that it meets there."""

import asyncio
import contextlib

import libtorrent as lt

from tests.worlds import real_tribler
from tests.worlds.commands import command, until_all_ended
from tunnel_pool.bench.harness import tribler_core
from tunnel_pool.overlay.ground.config import TRIBLER_COMMUNITY_ID
from tunnel_pool.private_swarm.seeder import seeder_settings
from tunnel_pool.private_swarm.swarm import LocalSwarm, make_random_file, write_torrent
from tunnel_pool.torrent.sessions.libtorrent_session import open_session

WORKERS = 2


@contextlib.asynccontextmanager
async def tribler(swarm, folder, plain=False, patched=False):
    """Run Tribler, and yield its command and a client of its REST API; at the end, Tribler must shut down in order.

    Tribler knows the swarm's nodes from its exit cache. With `plain`, it runs its own tunnels; with `patched`, it runs
    with our patch instead of our launcher.
    """
    python, source, state = str(real_tribler.python()), real_tribler.source(), folder / "tribler"
    if patched:
        source = real_tribler.patched_source(folder / "patched")
    await tribler_core.prepare(python, source, state, swarm)
    program = tribler_core.command_line(python, source, 0 if plain or patched else WORKERS)
    more = [f"--workers={WORKERS}"] if patched else []
    environment = tribler_core.environment_of(source, state, ours=not plain)
    async with (
        command(*more, program=program, environment=environment) as running,
        tribler_core.asked() as started,
    ):

        def check():
            assert running.process.returncode is None, running.lines[-20:]

        # A full pipe would stop Tribler, and asyncio hears of an end once the pipes have been read to theirs.
        printed = asyncio.ensure_future(running.process.stdout.read())
        await started.until_ready(check)
        yield running, started
        family = running.family()
        running.process.terminate()
        await asyncio.wait_for(printed, tribler_core.ENDS_WITHIN_S)
        await running.process.wait()
        await until_all_ended(family)


@contextlib.asynccontextmanager
async def nodes_of_tribler(exits=3, relays=3):
    """Yield a swarm of exits and relays that are of Tribler's network."""
    async with LocalSwarm(
        1 << 20, seeders=0, exits=exits, relays=relays, log_level="error", community_id=TRIBLER_COMMUNITY_ID
    ) as swarm:
        yield swarm


def make_torrents(folder, count, size_bytes, speed=0, net=1):
    """Return (session, torrent handle, file, magnet link) of each; each has an address, and so a child, of its own."""
    made = []
    for number in range(count):
        host = f"127.77.{net}.{number + 1}"
        session = open_session(seeder_settings(host, speed=speed))
        file, torrent = folder / f"file{net}-{number}", folder / f"file{net}-{number}.torrent"
        make_random_file(file, size_bytes)
        write_torrent(file, torrent)
        parameters = lt.add_torrent_params()
        parameters.ti, parameters.save_path = lt.torrent_info(str(torrent)), str(folder)
        parameters.flags |= lt.torrent_flags.seed_mode
        link = f"{lt.make_magnet_uri(parameters.ti)}&x.pe={host}:{session.listen_port()}"
        made.append((session, session.add_torrent(parameters), file, link))
    return made
