"""Has programs of others exchange a file with us, each way, and writes down what came of it.

python -m tests.compatibility.matrix FILE.json [PROGRAM...]

The programs that are installed seed to our `download`, and download from our `daemon`, of which they learn by
opentracker; at 0, 1 and 2 hops, the first for comparison, with encryption off and required. Run it in a network
namespace of its own (`unshare -rn`), as some programs ask the world for their address.
"""

import asyncio
import contextlib
import itertools
import json
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import libtorrent as lt

from tests.compatibility.programs import PROGRAMS, Place, running, until_it_seeds, version_of
from tests.tunnel_pool.daemon.rpc import Rpc
from tests.tunnel_pool.daemon.running import daemon
from tests.worlds.commands import command
from tests.worlds.network import until
from tests.worlds.swarms import OPENTRACKER, opentracker
from tunnel_pool.bench.harness.daemon import network_of
from tunnel_pool.private_swarm.swarm import LocalSwarm, free_port, same_bytes
from tunnel_pool.torrent.sessions.libtorrent_session import open_session

SIZE_BYTES = 4 << 20
HOPS = (0, 1, 2)
WITHIN_S = 45
NET = "44.16"  # addresses of this machine's own, in its namespace: Transmission takes no peers at 127.0.0.0/8
HOSTS = (f"{NET}.{200 + number // 250}.{1 + number % 250}" for number in itertools.count())
AT_A_TIME = 3  # exchanges; those that come to nothing wait, and do no work


def torrent_of_v1(swarm, folder, tracker=None):
    """Write the swarm's torrent as one of BEP 3 alone, with this tracker; return its path and its infohash."""
    decoded = lt.bdecode(swarm.torrent.read_bytes())
    for key in (b"piece layers", b"announce", b"announce-list"):
        decoded.pop(key, None)
    for key in (b"meta version", b"file tree"):
        decoded[b"info"].pop(key, None)
    if tracker is not None:
        decoded[b"announce"] = tracker.encode()
    path = folder / "file.torrent"
    path.write_bytes(lt.bencode(decoded))
    return path, lt.load_torrent_file(str(path)).info_hashes.v1.to_bytes()


async def seeds_to_us(program, swarm, folder, hops, encrypted):
    """Return the seconds that our download took from the program."""
    torrent, infohash = torrent_of_v1(swarm, folder)
    place = Place(folder / "state", swarm.file.parent, torrent, next(HOSTS), free_port("127.0.0.1"), encrypted)
    async with running(program, place):
        await until_it_seeds(place, infohash)
        if not hops:
            return await _plain_download(torrent, folder / "got", place)
        words = ["download", torrent, f"--hops={hops}", f"--peer={place.host}:{place.port}", f"--save={folder / 'got'}"]
        words += [f"--state={folder / 'ours'}", "--json", "--workers=1", *network_of(swarm)]
        began_s = time.monotonic()
        async with command(*words) as download:
            code, _, lines = await download.ended(WITHIN_S)
        assert code == 0, lines[-1:]
        return time.monotonic() - began_s


async def _plain_download(torrent, folder, place):
    """Return the seconds that libtorrent takes by itself."""
    off = ("enable_dht", "enable_lsd", "enable_upnp", "enable_natpmp")
    session = open_session({"listen_interfaces": f"{next(HOSTS)}:0", "alert_mask": 0, **dict.fromkeys(off, False)})
    parameters = lt.load_torrent_file(str(torrent))
    parameters.save_path = str(folder)
    parameters.flags &= ~(lt.torrent_flags.paused | lt.torrent_flags.auto_managed)
    handle = session.add_torrent(parameters)
    began_s = time.monotonic()
    handle.connect_peer((place.host, place.port))
    await until(lambda: handle.status().is_seeding, WITHIN_S, "the download")
    return time.monotonic() - began_s


async def downloads_from_us(program, swarm, folder, hops, encrypted):
    """Return the seconds that the program took from us."""
    tracker_host = next(HOSTS)
    _, infohash = torrent_of_v1(swarm, folder)
    async with opentracker(tracker_host, infohash) as tracker:
        torrent, _ = torrent_of_v1(swarm, folder, f"http://{tracker[0]}:{tracker[1]}/announce")
        words = [f"--hops={hops}", "--workers=1", f"--folder={swarm.file.parent}", *network_of(swarm)]
        if not hops:  # else libtorrent tells of 127.0.0.1, too
            words.append(f"--plain-listen={next(HOSTS)}:0")
        async with daemon(folder / "ours", *words) as (ours, address), Rpc(address) as rpc:
            await rpc.call("torrent_add", {"filename": str(torrent), "download_dir": str(swarm.file.parent)})
            if hops:
                await ours.until_line(lambda line: "Others find the torrents" in line)
            await asyncio.sleep(2)  # it is announced
            place = Place(folder / "state", folder / "got", torrent, next(HOSTS), free_port("127.0.0.1"), encrypted)
            began_s = time.monotonic()
            async with running(program, place):
                got = folder / "got" / swarm.file.name
                await until(lambda: got.exists() and same_bytes(swarm.file, got), WITHIN_S, "the download")
            return time.monotonic() - began_s


SEEDS = "seeds to us"
WAYS = {SEEDS: seeds_to_us, "downloads from us": downloads_from_us}


async def cell(program, way, hops, encrypted, net):
    """Return what came of one exchange: the seconds that it took, or why it failed."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            async with LocalSwarm(SIZE_BYTES, seeders=0, exits=2, relays=1, log_level="error", net=net) as swarm:
                return {"seconds": round(await WAYS[way](program, swarm, folder, hops, encrypted), 1)}
        except (AssertionError, TimeoutError, OSError) as error:
            return {"failed": str(error).partition(", and said")[0][:200] or type(error).__name__}


async def matrix(programs):
    """Return what came of each exchange, in order; some are made at a time."""
    at_a_time, nets = asyncio.Semaphore(AT_A_TIME), (f"44.{number}" for number in itertools.count(17))
    alone = {program.name: asyncio.Lock() if program.is_alone else contextlib.nullcontext() for program in programs}

    async def look(program, way, encrypted, hops):
        async with alone[program.name], at_a_time:
            found = await cell(program, way, hops, encrypted, next(nets))
        told = {"program": program.name, "way": way, "hops": hops, "encrypted": encrypted, **found}
        print(json.dumps(told), flush=True)
        return told

    return await asyncio.gather(
        *(
            look(program, way, encrypted, hops)
            for program in programs
            for way in WAYS
            if way != SEEDS or program.seeds
            for encrypted in ((False, True) if program.encrypts else (False,))
            for hops in HOPS
        )
    )


def main():
    where, named = Path(sys.argv[1]), sys.argv[2:]
    for words in ("link set lo up", "addr add 44.0.0.1/8 dev lo"):
        subprocess.run(["ip", *words.split()], check=True)
    versions = {program.name: version_of(program) for program in PROGRAMS}
    there = [each for each in PROGRAMS if versions[each.name] and (not named or each.name in named)]
    if OPENTRACKER is None or not there:
        sys.exit("install opentracker, and some of " + ", ".join(each.name for each in PROGRAMS))
    cells = asyncio.run(matrix(there))
    told = {
        "libtorrent": lt.__version__,
        "python": platform.python_version(),
        "within_s": WITHIN_S,
        "programs": {each.name: {"origin": each.origin, "version": versions[each.name]} for each in there},
        "cells": cells,
    }
    where.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
