"""Tests `kill -9` at random moments: acknowledged changes are kept, and every file is right."""

import asyncio
import contextlib
import random
import shutil
import signal
import socket

import aiohttp
import libtorrent as lt
import pytest

from tests.tunnel_pool.daemon.owner import FILES, Owner, Seeder, link_of, right_files
from tests.tunnel_pool.daemon.rpc import Rpc
from tests.tunnel_pool.daemon.running import connected, daemon, kept_peers, make_torrent, seen
from tests.worlds.network import unused_host
from tunnel_pool.daemon.storage.store import Store
from tunnel_pool.overlay.ground.config import HostPort
from tunnel_pool.private_swarm.swarm import same_bytes

TORRENTS = 6


@pytest.mark.timeout(900)
@pytest.mark.parametrize("moments", [2, pytest.param(50, marks=pytest.mark.slow)])
async def test_a_daemon_killed_at_any_moment_keeps_what_it_said(moments, tmp_path):
    seeder = Seeder(tmp_path / "seeds")
    for number in range(TORRENTS):
        seeder.seed(f"torrent-{number}")
    folders = [str(tmp_path / "downloads"), str(tmp_path / "other"), str(tmp_path / "deep/er")]
    owner = Owner(seeder, folders)
    arguments = ["--workers=0", f"--listen={unused_host()}:0"]
    for _ in range(moments):
        async with daemon(tmp_path, *arguments) as (running, address), Rpc(address) as rpc:
            await owner.check(rpc)
            killing = asyncio.get_running_loop().call_later(
                random.random() * 1.5, running.process.send_signal, signal.SIGKILL
            )
            try:
                while True:
                    await owner.act(rpc)
                    await asyncio.sleep(random.random() * 0.05)
            except (aiohttp.ClientError, ConnectionError):
                await running.process.wait()
            finally:
                killing.cancel()
    async with daemon(tmp_path, *arguments) as (running, address), Rpc(address) as rpc:
        await owner.check(rpc)
        await all_downloaded(rpc, owner, seeder)
    shutil.rmtree(tmp_path / "seeds")


async def test_what_was_downloaded_since_the_last_save_is_there_after_a_kill(tmp_path):
    """Progress is saved every 20 s."""
    seeder = Seeder(tmp_path / "seeds", speed=8_000_000)
    link = seeder.link_to("t", {"a": 30_000_000, "b": 2000})
    arguments = ["--workers=0", "--hops=0", f"--listen={unused_host()}:0"]

    async def downloaded(rpc, least):
        async with asyncio.timeout(30):
            while True:
                (row,) = (await rpc.call("torrent_get", {"fields": ["have_valid"]}))["torrents"]
                if row["have_valid"] >= least:
                    return
                await asyncio.sleep(0.1)

    async with daemon(tmp_path, *arguments) as (running, address), Rpc(address) as rpc:
        await rpc.call("torrent_add", {"filename": link})
        await downloaded(rpc, 12_000_000)
        running.process.kill()
        await running.process.wait()
    seeder.session.pause()
    async with daemon(tmp_path, *arguments) as (running, address), Rpc(address) as rpc:
        await downloaded(rpc, 12_000_000)
        seeder.session.resume()
        await downloaded(rpc, 30_002_000)
    assert same_bytes(seeder.folder / "t" / "a", tmp_path / "downloads" / "t" / "a")


@pytest.mark.slow
async def test_the_peers_of_a_magnet_link_are_known_to_the_next_start(tmp_path):
    """These include peers that failed last, which libtorrent's resume data lacks."""
    parameters = lt.load_torrent_buffer(make_torrent(tmp_path / "seeds", "late", FILES))
    arguments = ["--workers=0", "--hops=0", f"--listen={unused_host()}:0"]
    with socket.create_server((unused_host(), 0)) as unused:
        peer = HostPort(*unused.getsockname())
    async with daemon(tmp_path, *arguments) as (running, address), Rpc(address) as rpc:
        await rpc.call("torrent_add", {"filename": link_of(parameters, peer)})
        async with asyncio.timeout(40):
            while kept_peers(tmp_path):
                await rpc.call("torrent_set_location", {"ids": [1], "location": str(tmp_path / "downloads")})
                await asyncio.sleep(0.2)
        running.process.kill()
        await running.process.wait()
    seeder = Seeder(tmp_path / "seeds", *peer)
    seeder.start(parameters)
    async with daemon(tmp_path, *arguments) as (_, address):
        await seen(await connected(address), 1, lambda torrent: torrent.percent_done == 1)


async def test_pieces_that_wanted_files_share_with_others_are_right_after_a_kill(tmp_path):
    """libtorrent keeps them in a file whose header it writes when it closes it, and so not before a `kill -9`."""
    seeder = Seeder(tmp_path / "seeds")
    link = seeder.links[seeder.seed("shared")]
    arguments = ["--workers=0", "--hops=0", f"--listen={unused_host()}:0"]
    async with daemon(tmp_path, *arguments) as (running, address), Rpc(address) as rpc:
        await rpc.call("torrent_add", {"filename": link, "files_unwanted": [0]})
        await seen(await connected(address), 1, lambda torrent: torrent.left_until_done == 0 and torrent.have_valid)
        await rpc.call(
            "torrent_set_location", {"ids": [1], "location": str(tmp_path / "downloads")}
        )  # writes resume data
        running.process.kill()
        await running.process.wait()
    assert list((tmp_path / "downloads").glob(".*.parts"))
    async with daemon(tmp_path, *arguments) as (running, address), Rpc(address) as rpc:
        await until_right(rpc, seeder, [1])
        running.process.terminate()
        assert await running.process.wait() == 0
    assert [await was_ended(tmp_path) for _ in range(2)] == [True, False]


async def was_ended(state):
    """Open and close the daemon's store as one that is killed does; return whether the run before ended in order."""
    store = Store(state)
    try:
        return await store.open()
    finally:
        await store.close()


@contextlib.asynccontextmanager
async def told_when_late(what):
    try:
        yield
    except TimeoutError:
        raise AssertionError(f"not in time: {what()}") from None


async def all_downloaded(rpc, owner, seeder):
    """Wait until every torrent without hops is downloaded; `--workers=0` leaves no way to get the others."""
    plain = [infohash for infohash, (known, *_) in owner.may_be.items() if known and known["hops"] == 0]
    await until_right(rpc, seeder, plain or ["0" * 40])


async def until_right(rpc, seeder, ids):
    """Have these torrents download all their files, and wait until they are there byte for byte.

    Shortly after more files are wanted, the daemon may still report that all that was wanted before is there. Where
    the machine stands still for five seconds, the seeder takes its peer to be gone, which that notices by its own
    time-outs, up to two minutes.
    """
    await rpc.call("torrent_set", {"ids": ids, "files_wanted": []})
    await rpc.call("torrent_start_now", {"ids": ids})
    torrents = []
    async with told_when_late(lambda: torrents), asyncio.timeout(200):
        while True:
            fields = ["percent_done", "download_dir", "hash_string", "status", "error_string"]
            torrents = (await rpc.call("torrent_get", {"fields": fields, "ids": ids}))["torrents"]
            if all(torrent["percent_done"] == 1 and right_files(seeder, torrent) for torrent in torrents):
                break
            await asyncio.sleep(0.2)
