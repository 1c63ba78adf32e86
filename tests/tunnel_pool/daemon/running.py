"""Runs daemons as their owners do, and connects transmission-rpc, a client of another project."""

import asyncio
import contextlib
import os
import re
import sqlite3

import libtorrent as lt
from transmission_rpc import Client

from tests.worlds.commands import command
from tests.worlds.network import COMMUNITY_ID, unused_host
from tunnel_pool.bench.harness.daemon import PRIVATE
from tunnel_pool.daemon.daemon import DaemonOptions, running
from tunnel_pool.daemon.server.web import WebOptions
from tunnel_pool.daemon.storage.store import STORE_FILE
from tunnel_pool.overlay.ground.config import HostPort
from tunnel_pool.pool.scaling import WorkerRange
from tunnel_pool.torrent.metainfo import new_creator
from tunnel_pool.tunnels import NodeOptions


@contextlib.asynccontextmanager
async def daemon(state, *more, environment=None):
    """Run the daemon, and yield the process and the address of its RPC."""
    arguments = ["daemon", f"--state={state}", f"--folder={state / 'downloads'}", "--rpc=127.0.0.1:0", *PRIVATE]
    async with command(*arguments, *more, environment=environment) as running:
        line = await running.until_line(lambda line: "clients find them at" in line)
        match = re.search(r"http://([\d.]+):(\d+)/", line)
        yield running, HostPort(match[1], int(match[2]))


@contextlib.asynccontextmanager
async def daemon_here(state, folder=None, web=None, **options):
    """Run a daemon in this process, and yield it; its downloads go to `folder`, else to where it keeps its state."""
    node = NodeOptions(
        WorkerRange(0, 0),
        state,
        listen=HostPort(unused_host(), 0),
        bootstrap=(),
        community_id=COMMUNITY_ID,
        allow_private=True,
    )
    here = DaemonOptions(node, folder or state, web or WebOptions(HostPort("127.0.0.1", 0)), **options)
    async with running(here) as opened:
        ticking = asyncio.create_task(opened.until_stopped())
        yield opened
        opened.stopping.set()
        await ticking


async def connected(address, **options):
    """Return a connected client of transmission-rpc; its calls block."""
    return await asyncio.to_thread(Client, host=address.host, port=address.port, **options)


async def seen(client, number, condition, timeout_s=90):
    """Wait until the condition holds for the torrent, and return it.

    By default, this takes longer than the minute after which libtorrent tries a peer again that failed once.
    """
    torrent = None
    try:
        async with asyncio.timeout(timeout_s):
            while not condition(torrent := await asyncio.to_thread(client.get_torrent, number)):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise AssertionError(f"not so within {timeout_s} s: {torrent and torrent.fields}") from None
    return torrent


def make_torrent(folder, name, sizes, piece_bytes=16384):
    """Write files of random bytes to a folder of this name, and return the bytes of their torrent."""
    for path, size in sizes.items():
        (folder / name / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / name / path).write_bytes(os.urandom(size))
    creator = new_creator(folder / name, piece_bytes)
    lt.set_piece_hashes(creator, str(folder))
    return lt.bencode(creator.generate())


def kept_peers(state):
    """Return the peers in the resume data that is kept of the only torrent."""
    with contextlib.closing(sqlite3.connect(state / STORE_FILE)) as connection:
        ((resume,),) = connection.execute("SELECT resume FROM torrents").fetchall()
    return lt.read_resume_data(resume).peers
