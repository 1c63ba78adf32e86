"""The real Tribler in a network namespace that has loopback alone: its process, its REST interface, who it meets.

With `plain`, its own tunnels run; else ours, over two children.
"""

import asyncio
import contextlib
import json
import os
import subprocess
import time
from pathlib import Path

import aiohttp
import libtorrent as lt
import psutil

from overlay.config import TRIBLER_COMMUNITY_ID
from tests import real_tribler
from tests.commands import ROOT, command
from tunnel_pool.exit_cache import pack_exits
from tunnel_pool.libtorrent_session import open_session
from tunnel_pool.seeder import seeder_settings
from tunnel_pool.swarm import LocalSwarm, make_random_file, write_torrent

KEY = "secret"
PORT = 52194
HOST = "127.9.9.9"
READY_WITHIN_S = 60.0
ENDS_WITHIN_S = 30.0
OURS = ["--workers=2", f"--listen={HOST}:0", "--bootstrap=none", "--allow-private"]


def default_configuration(python, source, folder):
    """Return what Tribler would begin with, changed so far that it disturbs nobody and waits for nobody."""
    code = "import json; from tribler.tribler_config import DEFAULT_CONFIG; print(json.dumps(DEFAULT_CONFIG))"
    environment = {**os.environ, "PYTHONPATH": str(source / "src")}
    printed = subprocess.run([python, "-c", code], env=environment, capture_output=True, check=True).stdout
    config = json.loads(printed)
    config["state_dir"] = config["ipv8"]["working_directory"] = str(folder)
    for key in config["ipv8"]["keys"]:
        if "file" in key:
            key["file"] = str(folder / Path(key["file"]).name)
    config["ipv8"]["interfaces"] = [{"interface": "UDPIPv4", "ip": "127.0.0.1", "port": 8090}]
    config["api"].update(http_port=PORT, key=KEY)
    config["versioning"]["enabled"] = config["rss"]["enabled"] = False
    # There is no DHT of BitTorrent here, which it would wait for before it adds a torrent.
    config["libtorrent"]["dht_readiness_timeout"] = 0
    config["libtorrent"]["download_defaults"]["saveas"] = str(folder / "downloads")
    return config


class Tribler:
    """A running one, asked by REST as its page would ask."""

    def __init__(self, running, session):
        self.running = running
        self._session = session

    async def ask(self, method, path, **body):
        """Return what it answers, JSON or text."""
        async with self._session.request(method, f"http://127.0.0.1:{PORT}/api/{path}", json=body or None) as answer:
            text = await answer.text()
            assert answer.status == 200, (method, path, answer.status, text)
            return json.loads(text) if text.startswith(("{", "[")) else text

    async def until_ready(self, holds=lambda: True):
        """Wait until it answers, and this holds."""
        deadline_s = time.monotonic() + READY_WITHIN_S
        while True:
            with contextlib.suppress(aiohttp.ClientError, AssertionError):
                await self.ask("GET", "downloads")
                if holds():
                    return
            assert self.running.process.returncode is None, self.running.lines[-20:]
            assert time.monotonic() < deadline_s, self.running.lines[-20:]
            await asyncio.sleep(0.2)

    async def add(self, uri, saved, hops):
        """Return the infohash that it knows the torrent by."""
        more = {"anon_hops": hops, "safe_seeding": True, "destination": str(saved)}
        return (await self.ask("PUT", "downloads", uri=uri, **more))["infohash"]

    async def downloads(self):
        """Return what it says of each torrent, by infohash."""
        return {known["infohash"]: known for known in (await self.ask("GET", "downloads"))["downloads"]}

    async def until(self, infohash, holds, timeout_s):
        """Return what it says of the torrent when this holds of that, or the time is over."""
        deadline_s, known = time.monotonic() + timeout_s, {}
        while not holds(known) and time.monotonic() < deadline_s:
            await asyncio.sleep(0.2)
            known = (await self.downloads()).get(infohash, {})
        return known

    async def until_done(self, infohash, timeout_s):
        return await self.until(infohash, lambda known: known.get("progress") == 1, timeout_s)

    async def circuits(self):
        return (await self.ask("GET", "ipv8/tunnel/circuits"))["circuits"]


@contextlib.asynccontextmanager
async def tribler(swarm, folder, plain=False, patched=False):
    """Yield a running Tribler that knows the swarm's nodes by its exit cache; it has to end in order.

    With `plain` it runs its own tunnels, with `patched` it was given our patch instead of our launcher.
    """
    python, source = real_tribler.python(), real_tribler.source()
    if patched:
        source = real_tribler.patched_source(folder / "patched")
    state = folder / "tribler"
    (state / "git").mkdir(parents=True)
    (state / "git" / "configuration.json").write_text(json.dumps(default_configuration(python, source, state)))
    (state / "git" / "exitnode_cache.dat").write_bytes(pack_exits(swarm.nodes))
    itself = [str(source / "src" / "run_tribler.py")]
    program, paths = {
        "plain": (itself, [source / "src"]),
        "patched": ([*itself, "--workers=2"], [source / "src", ROOT]),
        "launched": (["-m", "tunnel_pool.tribler", *OURS], [source / "src", ROOT]),
    }["plain" if plain else "patched" if patched else "launched"]
    environment = {"TSTATEDIR": str(state), "PYTHONPATH": os.pathsep.join(map(str, paths))}
    theirs = ["-s", "--log-level", "WARNING"]
    async with (
        command(*theirs, program=[str(python), *program], environment=environment) as running,
        aiohttp.ClientSession(headers={"X-Api-Key": KEY}) as session,
    ):
        started = Tribler(running, session)
        await started.until_ready()
        yield started
        family = running.family()
        running.process.terminate()
        await asyncio.wait_for(running.process.wait(), ENDS_WITHIN_S)
        left = [process for process in family if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]
        assert not left, left


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
