"""A daemon as its owner runs it, and a client of Transmission that is not ours."""

import asyncio
import contextlib
import os
import re
import sqlite3

import aiohttp
import libtorrent as lt
from transmission_rpc import Client

from tests.commands import command
from tunnel_pool.bench.harness.daemon import PRIVATE
from tunnel_pool.daemon.storage.store import STORE_FILE
from tunnel_pool.overlay.config import HostPort
from tunnel_pool.torrent.metainfo import new_creator


@contextlib.asynccontextmanager
async def daemon(state, *more, environment=None):
    """The command, and where its RPC is."""
    arguments = ["daemon", f"--state={state}", f"--folder={state / 'downloads'}", "--rpc=127.0.0.1:0", *PRIVATE]
    async with command(*arguments, *more, environment=environment) as running:
        line = await running.until_line(lambda line: "clients find them at" in line)
        match = re.search(r"http://([\d.]+):(\d+)/", line)
        yield running, HostPort(match[1], int(match[2]))


async def connected(address, **options):
    """transmission-rpc's client; its calls block."""
    return await asyncio.to_thread(Client, host=address.host, port=address.port, **options)


async def seen(client, number, condition, timeout_s=90):
    """The torrent, when the condition holds for it; libtorrent asks a peer that failed once again after a minute."""
    torrent = None
    try:
        async with asyncio.timeout(timeout_s):
            while not condition(torrent := await asyncio.to_thread(client.get_torrent, number)):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise AssertionError(f"not so within {timeout_s} s: {torrent and torrent.fields}") from None
    return torrent


def make_torrent(folder, name, sizes, piece_bytes=16384):
    """Files of random bytes in a folder of this name; the torrent's bytes."""
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


class Rpc:
    """JSON-RPC 2.0, as Transmission 4.1 has it."""

    def __init__(self, address):
        self._url = f"http://{address}/transmission/rpc"
        self._headers = {}
        self._http = None

    async def __aenter__(self):
        self._http = aiohttp.ClientSession()
        return self

    async def __aexit__(self, *error):
        await self._http.close()

    @property
    def where(self):
        """The URL, and the headers of one who has shaken hands."""
        return self._url, self._headers

    async def post(self, body):
        """Any JSON; returns the status and the answer."""
        while True:
            async with self._http.post(self._url, json=body, headers=self._headers) as response:
                if response.status != 409:
                    return response.status, await response.json() if response.status == 200 else None
                self._headers["X-Transmission-Session-Id"] = response.headers["X-Transmission-Session-Id"]

    async def call(self, method, params=None):
        """The result; fails when there is none."""
        status, answer = await self.post({"jsonrpc": "2.0", "method": method, "params": params or {}, "id": 1})
        assert status == 200
        assert "result" in answer, answer
        return answer["result"]
