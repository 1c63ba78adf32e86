"""The real Tribler on our pool, in a network namespace that has loopback alone: `unshare -n` made it.

tribler_world.py FOLDER HOPS COUNT [kill]

Downloads that many torrents one after another, by REST, as its user would. Prints one JSON object: of each download
its progress, its seconds and whether the bytes are right; and what went over the circuits of each child.

With `kill`, that many at the same time, slowly; a child is killed meanwhile. Prints the longest time that each download
stood after that.
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
SLOW_BYTES, SLOW_BYTES_S = 64 << 20, 1 << 20
WATCHED_S = 15.0


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
    """Yield the running command, and an asker of its REST interface."""
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
        yield running, ask
        running.process.terminate()
        await asyncio.wait_for(running.process.wait(), 30)


def make_torrents(folder, count, size_bytes=SIZE_BYTES, speed=0):
    """Return (session, torrent handle, file, magnet link) of each; each has an address, and so a child, of its own."""
    made = []
    for number in range(count):
        host = f"127.77.1.{number + 1}"
        session = open_session(seeder_settings(host, speed=speed))
        file, torrent = folder / f"file{number}", folder / f"file{number}.torrent"
        make_random_file(file, size_bytes)
        write_torrent(file, torrent)
        parameters = lt.add_torrent_params()
        parameters.ti, parameters.save_path = lt.torrent_info(str(torrent)), str(folder)
        parameters.flags |= lt.torrent_flags.seed_mode
        link = f"{lt.make_magnet_uri(parameters.ti)}&x.pe={host}:{session.listen_port()}"
        made.append((session, session.add_torrent(parameters), file, link))
    return made


async def add(ask, link, saved, hops):
    """Return the infohash that Tribler knows it by."""
    added = await ask("PUT", "downloads", uri=link, anon_hops=hops, safe_seeding=True, destination=str(saved))
    return added["infohash"]


async def known_downloads(ask):
    return {known["infohash"]: known for known in (await ask("GET", "downloads"))["downloads"]}


async def download(ask, link, file, saved, hops):
    began_s = time.monotonic()
    infohash, known = await add(ask, link, saved, hops), {}
    while time.monotonic() < began_s + DOWNLOAD_TIMEOUT_S:
        known = (await known_downloads(ask)).get(infohash, {})
        if known.get("progress") == 1:
            break
        await asyncio.sleep(0.2)
    return {
        "progress": known.get("progress"),
        "status": known.get("status"),
        "seconds": round(time.monotonic() - began_s, 1),
        "same": same_bytes(file, saved / file.name),
    }


async def one_after_another(ask, torrents, saved, hops):
    downloads = [await download(ask, link, file, saved, hops) for _, _, file, link in torrents]
    carried = Counter()
    for circuit in (await ask("GET", "ipv8/tunnel/circuits"))["circuits"]:
        carried[slot_of(int(circuit["circuit_id"]))] += circuit["bytes_down"]
    return {"downloads": downloads, "carried": carried}


async def with_a_killed_child(running, ask, torrents, saved, hops):
    for *_, link in torrents:
        await add(ask, link, saved, hops)
    deadline_s = time.monotonic() + DOWNLOAD_TIMEOUT_S
    while not all(known["progress"] > 0.05 for known in (await known_downloads(ask)).values()):
        assert time.monotonic() < deadline_s, await known_downloads(ask)
        await asyncio.sleep(0.2)
    killed = running.pool_children()[0]
    killed.kill()
    killed_s = time.monotonic()
    sent, moved_s, stood_s = [0] * len(torrents), [killed_s] * len(torrents), [0.0] * len(torrents)
    while (now_s := time.monotonic()) < killed_s + WATCHED_S:
        for number, (_, handle, _, _) in enumerate(torrents):
            stood_s[number] = max(stood_s[number], now_s - moved_s[number])
            if (bytes_now := handle.status().total_payload_upload) != sent[number]:
                sent[number], moved_s[number] = bytes_now, now_s
        await asyncio.sleep(0.05)
    children = [child.pid for child in running.pool_children() if child.pid != killed.pid]
    return {"stood_s": sorted(round(seconds, 1) for seconds in stood_s), "children": len(children)}


async def main(folder, hops, count, kills):
    saved = folder / "downloads"
    saved.mkdir()
    torrents = make_torrents(folder, count, *((SLOW_BYTES, SLOW_BYTES_S) if kills else ()))
    async with (
        LocalSwarm(
            1 << 20, seeders=0, exits=3, relays=3, log_level="error", community_id=TRIBLER_COMMUNITY_ID
        ) as swarm,
        tribler(swarm, folder) as (running, ask),
    ):
        if kills:
            seen = await with_a_killed_child(running, ask, torrents, saved, hops)
        else:
            seen = await one_after_another(ask, torrents, saved, hops)
    print(json.dumps(seen))


if __name__ == "__main__":
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), "kill" in sys.argv[4:]))
