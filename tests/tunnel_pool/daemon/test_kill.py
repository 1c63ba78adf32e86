"""`kill -9` at random moments: what was acknowledged is there afterwards, and every file is right."""

import asyncio
import contextlib
import copy
import random
import shutil
import signal
import socket
from pathlib import Path

import aiohttp
import libtorrent as lt
import pytest

from overlay.config import HostPort
from tests.network import unused_host
from tests.tunnel_pool.daemon.running import Rpc, connected, daemon, kept_peers, make_torrent, seen
from tunnel_pool.libtorrent_session import open_session
from tunnel_pool.seeder import seeder_settings
from tunnel_pool.swarm import same_bytes

TORRENTS = 6
FILES = {"a.bin": 1_500_000, "sub/b.bin": 900_000, "c.txt": 100}


class Seeder:
    """A plain one, in this process, of torrents whose files are whole."""

    def __init__(self, folder, host=None, port=0):
        self.folder = folder
        host = host or unused_host()
        self._session = open_session(seeder_settings(host, port, 4_000_000))
        self.address = HostPort(host, self._session.listen_port())
        self.links, self.names = {}, {}

    def seed(self, name):
        parameters = lt.load_torrent_buffer(make_torrent(self.folder, name, FILES))
        infohash = str(parameters.info_hashes.v1)
        self.links[infohash] = link_of(parameters, self.address)
        self.names[infohash] = name
        self.start(parameters)

    def start(self, parameters):
        parameters.save_path = str(self.folder)
        parameters.flags = lt.torrent_flags.seed_mode
        self._session.add_torrent(parameters)


def link_of(parameters, peer):
    return f"{lt.make_magnet_uri(parameters)}&x.pe={peer}"


class Owner:
    """Does things at random, and knows what is to be true: of each torrent, one of some states, or None."""

    def __init__(self, links, folders):
        self.links = links
        self.folders = folders
        self.may_be = dict.fromkeys(links)  # infohash -> what it is, as far as is known
        self.otherwise = {}  # infohash -> what it is instead, if the last request came through

    async def act(self, rpc):
        infohash = random.choice(list(self.links))
        before = self.may_be[infohash]
        if before is None:
            folder, hops = random.choice(self.folders), random.choice(["hops:0", "hops:0", "hops:1"])
            after = {"folder": folder, "stopped": False, "labels": ["new"], "hops": hops}
            call = "torrent_add", {"filename": self.links[infohash], "download_dir": folder, "labels": ["new", hops]}
        else:
            after = copy.deepcopy(before)
            match random.choice(["move", "stop", "start", "label", "remove", "delete"]):
                case "move":
                    after["folder"] = random.choice(self.folders)
                    call = "torrent_set_location", {"location": after["folder"], "move": True}
                case "stop" | "start" as what:
                    after["stopped"] = what == "stop"
                    call = f"torrent_{what}", {}
                case "label":
                    after["labels"] = [f"label-{random.randrange(1000)}"]
                    call = "torrent_set", {"labels": after["labels"]}
                case "remove" | "delete" as what:
                    after = None
                    call = "torrent_remove", {"delete_local_data": what == "delete"}
            call[1]["ids"] = [infohash]
        self.otherwise = {infohash: after}
        _, answer = await rpc.post({"jsonrpc": "2.0", "method": call[0], "params": call[1], "id": 1})
        if "result" in answer:
            self.may_be[infohash] = after
        else:
            assert answer["error"]["message"] == "it is being moved already"
        self.otherwise = {}

    async def check(self, rpc):
        """What is there is what was acknowledged; of the request that was cut off, all or nothing."""
        there = {}
        fields = ["hash_string", "download_dir", "status", "labels", "percent_done", "error", "error_string"]
        for torrent in (await rpc.call("torrent_get", {"fields": fields}))["torrents"]:
            assert torrent["hash_string"] not in there, "doubled"
            *labels, hops = torrent["labels"]
            assert torrent["error"] == 0, torrent
            there[torrent["hash_string"]] = {
                "folder": torrent["download_dir"], "stopped": torrent["status"] == 0, "labels": labels, "hops": hops,
            }  # fmt: skip
        for infohash, known in self.may_be.items():
            found = there.pop(infohash, None)
            assert found in (known, self.otherwise.get(infohash, known)), (infohash, found, known, self.otherwise)
            self.may_be[infohash] = found
        assert not there
        self.otherwise = {}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("moments", [2, pytest.param(50, marks=pytest.mark.slow)])
async def test_a_daemon_killed_at_any_moment_keeps_what_it_said(moments, tmp_path):
    seeder = Seeder(tmp_path / "seeds")
    for number in range(TORRENTS):
        seeder.seed(f"torrent-{number}")
    folders = [str(tmp_path / "downloads"), str(tmp_path / "other"), str(tmp_path / "deep/er")]
    owner = Owner(seeder.links, folders)
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


@pytest.mark.slow
async def test_the_peers_of_a_magnet_link_are_known_to_the_next_start(tmp_path):
    """Also those that failed last, which libtorrent's resume data lacks."""
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


@contextlib.asynccontextmanager
async def told_when_late(what):
    try:
        yield
    except TimeoutError:
        raise AssertionError(f"not in time: {what()}") from None


async def all_downloaded(rpc, owner, seeder):
    """What can be: without hops, nobody is there.

    Where the machine stands still for five seconds, the seeder takes its peer to be gone, which that notices by its own
    time-outs, up to two minutes.
    """
    plain = [infohash for infohash, known in owner.may_be.items() if known and known["hops"] == "hops:0"]
    await rpc.call("torrent_start_now", {"ids": plain or ["0" * 40]})
    torrents = []
    async with told_when_late(lambda: torrents), asyncio.timeout(200):
        while True:
            fields = ["percent_done", "download_dir", "hash_string", "status", "error_string"]
            torrents = (await rpc.call("torrent_get", {"fields": fields, "ids": plain or ["0" * 40]}))["torrents"]
            if all(torrent["percent_done"] == 1 for torrent in torrents):
                break
            await asyncio.sleep(0.2)
    for torrent in torrents:
        name = seeder.names[torrent["hash_string"]]
        for path in FILES:
            assert same_bytes(seeder.folder / name / path, Path(torrent["download_dir"]) / name / path), torrent
