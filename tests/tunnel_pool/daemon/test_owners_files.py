"""Tests four clients that edit torrents with shared names and folders: no torrent changes another's files."""

import asyncio
import base64
import contextlib
import hashlib
import os
import random
from pathlib import Path

import aiohttp
import libtorrent as lt
import pytest

from tests.tunnel_pool.daemon.owner import Seeder
from tests.tunnel_pool.daemon.rpc import Rpc
from tests.tunnel_pool.daemon.running import daemon
from tests.tunnel_pool.daemon.test_paths import torrent_of
from tests.worlds.network import unused_host
from tunnel_pool.torrent.metainfo import read_metainfo

TORRENTS = 30
NAMES = ("t", "u", "own", "data.bin")
FILES = ("a", "A", "b", "sub/a", "c.1")
SIZES = (100, 20_000, 40_000)
LAYOUTS = ("NoSubfolder", "Subfolder")
FOLDERS = ("own", "other", "own/t", "aside")
REFUSED = (aiohttp.ClientError, ConnectionError, TimeoutError)


class World:
    """Torrents, several of them with files of one name and size; a seeder of each; files of others in their way."""

    def __init__(self, folder, rng):
        self.folder, self.rng = folder, rng
        self.seeder = Seeder(folder / "seeds", speed=2_000_000)
        self.contents, self.torrents = {}, []
        for number in range(TORRENTS):
            self._make(number)
        self.strangers = {}
        for name in FOLDERS[:3]:
            for path in ("t/a", "u/b", "data.bin", "t/notes", "u/sub/a"):
                self._place(folder / name / path)

    def _make(self, number):
        name = self.rng.choice(NAMES)
        paths = [""] if name == "data.bin" else self.rng.sample(FILES, self.rng.randint(1, 4))
        files = {path: self.rng.randbytes(self.rng.choice(SIZES)) for path in paths}
        if number % 5 == 0 and self.torrents:  # the files of another one, in pieces of another size
            name, files = self.rng.choice(list(self.contents.values()))
        content = torrent_of(
            name, files, folder=self.folder / "seeds" / str(number), piece_bytes=(16384, 32768)[number % 2]
        )
        parameters = read_metainfo(content)
        infohash = str(parameters.info_hashes.v1)
        if infohash not in self.contents:
            parameters.save_path, parameters.flags = (
                str(self.folder / "seeds" / str(number)),
                lt.torrent_flags.seed_mode,
            )
            # libtorrent would look for other names of those that differ in case alone.
            parameters.renamed_files = {at: f"{name}/{path}" if path else name for at, path in enumerate(files)}
            self.seeder.session.add_torrent(parameters)
            self.torrents.append((infohash, content))
        self.contents[infohash] = name, files

    def _place(self, path):
        if path.parent.is_file() or path.exists() or self.rng.random() < 0.5:
            return
        with contextlib.suppress(FileExistsError, NotADirectoryError):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(self.rng.randbytes(self.rng.choice((50, *SIZES))))
            self.strangers[path] = path.read_bytes()

    def source(self):
        infohash, content = self.rng.choice(self.torrents)
        return infohash, content, f"magnet:?xt=urn:btih:{infohash}&x.pe={self.seeder.address}"

    def place(self):
        return str(self.folder / self.rng.choice(FOLDERS[:3]))

    def check_strangers(self, allowed=()):
        for path, content in self.strangers.items():
            assert path.read_bytes() == content, f"{path} was changed"


class Clients:
    """Each method asks for something at random, by one of the interfaces; refusals are answers, too."""

    def __init__(self, world, address, rpc, http):
        self.world, self.address, self.rpc, self.http = world, address, rpc, http
        self.asked = 0

    async def run(self, until_asked):
        faces = (self.transmission, self.qbittorrent, self.api, self.tribler)
        async with asyncio.TaskGroup() as group:
            for face in faces:
                group.create_task(self._ask(face, until_asked))

    async def _ask(self, face, until_asked):
        while self.asked < until_asked:
            self.asked += 1
            try:
                await face()
            except REFUSED:
                if not await self._is_up():
                    return
            await asyncio.sleep(self.world.rng.random() * 0.1)

    async def _is_up(self):
        try:
            async with self.http.get(f"http://{self.address}/api/status") as answer:
                return answer.status == 200
        except REFUSED:
            return False

    async def transmission(self):
        world, rng = self.world, self.world.rng
        infohash, content, link = world.source()
        ids = {"ids": [infohash]}
        method, arguments = rng.choice([
            ("torrent_add", {"metainfo": base64.b64encode(content).decode(), "download_dir": world.place()}),
            ("torrent_add", {"filename": link, "download_dir": world.place()}),
            ("torrent_set_location", {**ids, "location": world.place(), "move": rng.random() < 0.6}),
            ("torrent_rename_path", {**ids, "path": world.contents[infohash][0], "name": rng.choice(NAMES)}),
            ("torrent_verify", ids),
            ("torrent_start", ids),
            ("torrent_set", {**ids, rng.choice(("files_unwanted", "files_wanted")): [0]}),
            ("torrent_remove", {**ids, "delete_local_data": rng.random() < 0.5}),
            ("session_set", {
                "incomplete_dir": str(world.folder / "aside"), "incomplete_dir_enabled": rng.random() < 0.5,
            }),
        ])  # fmt: skip
        await self.rpc.post({"jsonrpc": "2.0", "method": method, "params": arguments, "id": 1})

    async def qbittorrent(self):
        world, rng = self.world, self.world.rng
        infohash, content, link = world.source()
        call, words = rng.choice([
            ("add", {"urls": link, "savepath": world.place(), "contentLayout": rng.choice(LAYOUTS)}),
            ("add", {"content": content, "savepath": world.place(), "contentLayout": "NoSubfolder"}),
            ("setLocation", {"hashes": infohash, "location": world.place()}),
            ("renameFile", {"hash": infohash, "oldPath": "t/a", "newPath": f"t/{rng.choice(FILES[:3])}"}),
            ("recheck", {"hashes": infohash}),
            ("start", {"hashes": infohash}),
            ("delete", {"hashes": infohash, "deleteFiles": rng.choice(("true", "false"))}),
        ])  # fmt: skip
        form = aiohttp.FormData()
        for name, value in words.items():
            if name == "content":
                form.add_field("torrents", value, filename="t.torrent", content_type="application/x-bittorrent")
            else:
                form.add_field(name, value)
        async with self.http.post(f"http://{self.address}/api/v2/torrents/{call}", data=form) as answer:
            await answer.read()

    async def api(self):
        world, rng = self.world, self.world.rng
        infohash, content, link = world.source()
        one = f"/api/torrents/{infohash}"
        method, path, body = rng.choice([
            ("POST", "/api/torrents", {"source": link, "folder": world.place(), "hops": 0}),
            ("POST", "/api/torrents", {"metainfo": base64.b64encode(content).decode(), "folder": world.place()}),
            ("PATCH", one, {"stopped": rng.random() < 0.2}),
            ("PATCH", one, {"labels": [rng.choice(("x", "y"))]}),
            ("DELETE", f"{one}?files={rng.choice(('true', 'false'))}", None),
        ])  # fmt: skip
        await self._request(method, path, body)

    async def tribler(self):
        world, rng = self.world, self.world.rng
        infohash, _, link = world.source()
        one = f"/api/downloads/{infohash}"
        method, path, body = rng.choice([
            ("PUT", "/api/downloads", {"uri": link, "destination": world.place(), "anon_hops": 0}),
            ("PATCH", one, {"state": rng.choice(("resume", "recheck", "stop"))}),
            ("DELETE", one, {"remove_data": rng.random() < 0.5}),
        ])  # fmt: skip
        await self._request(method, path, body)

    async def _request(self, method, path, body):
        async with self.http.request(method, f"http://{self.address}{path}", json=body) as answer:
            await answer.read()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kills", [0, 25])
async def test_nobodys_file_is_changed_that_is_not_the_torrents_own(kills, tmp_path):
    seed = int(os.environ.get("SEED") or random.randrange(1 << 30))
    print("seed", seed)
    rng = random.Random(seed)
    world = World(tmp_path, rng)
    (tmp_path / "state").mkdir()
    arguments = ["--workers=0", "--hops=0", f"--listen={unused_host()}:0"]
    asked = 0
    for round_ in range(kills + 1):
        async with (
            daemon(tmp_path / "state", *arguments) as (running, address),
            Rpc(address) as rpc,
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(40)) as http,
        ):
            clients = Clients(world, address, rpc, http)
            most = 500 if not kills else 500 * (round_ + 1) // (kills + 1) - asked
            killing = None
            if round_ < kills:
                killing = asyncio.get_running_loop().call_later(rng.random() * 2, running.process.kill)
            await clients.run(most if killing is None else 1 << 30)
            asked += clients.asked
            if killing is not None:
                killing.cancel()
                with contextlib.suppress(ProcessLookupError):
                    running.process.kill()
                await running.process.wait()
            world.check_strangers()
            if round_ == kills:
                await check_whole(world, rpc)
    assert asked >= 500
    world.check_strangers()


async def check_whole(world, rpc):
    """Check the files that torrents report as complete on the disk, and download one more torrent completely."""
    infohash, _ = world.torrents[0]
    await rpc.call("torrent_remove", {"ids": [infohash]})
    link = f"magnet:?xt=urn:btih:{infohash}&x.pe={world.seeder.address}"
    await rpc.call("torrent_add", {"filename": link, "download_dir": str(world.folder / "fresh")})
    await rpc.call("torrent_start_now", {"ids": [infohash]})
    asked = {"ids": [infohash], "fields": ["percent_complete", "error_string", "status", "peers_connected"]}
    row = {"percent_complete": 0}
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(150):  # libtorrent tries a peer again after a minute
            while row["percent_complete"] < 1:
                await asyncio.sleep(0.1)
                (row,) = (await rpc.call("torrent_get", asked))["torrents"]
    assert row["percent_complete"] == 1, row
    fields = ["hash_string", "download_dir", "files", "status", "is_finished"]
    rows = (await rpc.call("torrent_get", {"fields": fields}))["torrents"]
    right = 0
    for row in rows:
        contents = {hashlib.sha256(each).digest() for each in world.contents[row["hash_string"]][1].values()}
        for file in row["files"]:
            home, infohash = Path(row["download_dir"]), row["hash_string"]
            own = [world.folder / each / f".{infohash}.incoming" for each in FOLDERS]
            folders = (world.folder / "aside" / infohash, *own, home)
            place = next((folder / file["name"] for folder in folders if (folder / file["name"]).is_file()), home)
            if file["bytes_completed"] == file["length"] and place.is_file():
                assert hashlib.sha256(place.read_bytes()).digest() in contents, (row, file)
                right += 1
    assert right
