"""The real Tribler on our pool, in a network namespace that has loopback alone: `unshare -n` made it.

tribler_world.py FOLDER HOPS DOWNLOADS

Downloads that many torrents one after another, by REST, as its user would. Prints one JSON object: of each download
its progress, its seconds and whether the bytes are right; and what went over the circuits of each child.
"""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import aiohttp
import libtorrent as lt

from overlay.config import TRIBLER_COMMUNITY_ID, slot_of
from tests import real_tribler
from tests.commands import ROOT, command
from tunnel_pool.libtorrent_session import open_session
from tunnel_pool.seeder import seeder_settings
from tunnel_pool.swarm import LocalSwarm, make_random_file, same_bytes, write_torrent

KEY = "secret"
PORT = 52194
HOST = "127.9.9.9"
SIZE_BYTES = 8 << 20
DOWNLOAD_TIMEOUT_S = 60.0


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


@contextlib.asynccontextmanager
async def tribler(swarm, folder):
    """Yield an asker of its REST interface."""
    python, source = real_tribler.python(), real_tribler.source()
    state = folder / "tribler"
    (state / "git").mkdir(parents=True)
    (state / "git" / "configuration.json").write_text(json.dumps(default_configuration(python, source, state)))
    environment = {"TSTATEDIR": str(state), "PYTHONPATH": os.pathsep.join([str(source / "src"), str(ROOT)])}
    where = ",".join(map(str, swarm.nodes))
    arguments = ["--workers=2", f"--listen={HOST}:0", f"--bootstrap={where}", "--allow-private", "-s"]
    program = [str(python), "-m", "tunnel_pool.tribler"]
    async with (
        command(*arguments, program=program, environment=environment) as running,
        aiohttp.ClientSession(headers={"X-Api-Key": KEY}) as session,
    ):

        async def ask(method, path, **body):
            async with session.request(method, f"http://127.0.0.1:{PORT}/api/{path}", json=body or None) as answer:
                return await answer.json()

        deadline_s = time.monotonic() + 60
        while True:
            with contextlib.suppress(aiohttp.ClientError):
                await ask("GET", "downloads")
                break
            assert running.process.returncode is None, running.lines[-20:]
            assert time.monotonic() < deadline_s, running.lines[-20:]
            await asyncio.sleep(0.2)
        yield ask
        running.process.terminate()
        await asyncio.wait_for(running.process.wait(), 30)


def make_torrents(folder, count):
    """Return seeding sessions, which are to be kept, and (file, magnet link) of each: peers of one address are one."""
    sessions, made = [], []
    for number in range(count):
        host = f"127.77.1.{number + 1}"
        session = open_session(seeder_settings(host))
        file, torrent = folder / f"file{number}", folder / f"file{number}.torrent"
        make_random_file(file, SIZE_BYTES)
        write_torrent(file, torrent)
        parameters = lt.add_torrent_params()
        parameters.ti, parameters.save_path = lt.torrent_info(str(torrent)), str(folder)
        parameters.flags |= lt.torrent_flags.seed_mode
        session.add_torrent(parameters)
        sessions.append(session)
        made.append((file, f"{lt.make_magnet_uri(parameters.ti)}&x.pe={host}:{session.listen_port()}"))
    return sessions, made


async def download(ask, link, file, saved, hops):
    began_s = time.monotonic()
    added = await ask("PUT", "downloads", uri=link, anon_hops=hops, safe_seeding=True, destination=str(saved))
    known = {}
    while time.monotonic() < began_s + DOWNLOAD_TIMEOUT_S:
        downloads = (await ask("GET", "downloads"))["downloads"]
        known = next((one for one in downloads if one["infohash"] == added.get("infohash")), {})
        if known.get("progress") == 1:
            break
        await asyncio.sleep(0.2)
    return {
        "progress": known.get("progress"),
        "status": known.get("status"),
        "seconds": round(time.monotonic() - began_s, 1),
        "same": same_bytes(file, saved / file.name),
    }


async def main(folder, hops, count):
    saved = folder / "downloads"
    saved.mkdir()
    seeders, torrents = make_torrents(folder, count)
    async with (
        LocalSwarm(
            1 << 20, seeders=0, exits=3, relays=3, log_level="error", community_id=TRIBLER_COMMUNITY_ID
        ) as swarm,
        tribler(swarm, folder) as ask,
    ):
        downloads = [await download(ask, link, file, saved, hops) for file, link in torrents]
        carried = Counter()
        for circuit in (await ask("GET", "ipv8/tunnel/circuits"))["circuits"]:
            carried[slot_of(int(circuit["circuit_id"]))] += circuit["bytes_down"]
    del seeders
    print(json.dumps({"downloads": downloads, "carried": carried}))


if __name__ == "__main__":
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
