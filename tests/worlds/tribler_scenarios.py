"""Uses the real Tribler as its users do, in a network namespace with loopback alone, which `unshare -n` made.

tribler_scenarios.py SCENARIO FOLDER [ARGUMENT...]; prints one JSON object, what was seen.
"""

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from tests.worlds.commands import command
from tests.worlds.standing import longest_stands
from tests.worlds.tribler_world import make_torrents, nodes_of_tribler, tribler
from tunnel_pool.overlay.ground.config import slot_of
from tunnel_pool.private_swarm.swarm import same_bytes

SIZE_BYTES = 8 << 20
DOWNLOAD_TIMEOUT_S = 60.0
HIDDEN_TIMEOUT_S = 90.0
STATISTICS_WITHIN_S = 10.0
SLOW_BYTES, SLOW_BYTES_S = 80 << 20, 1 << 20
OUR_HOST, OUR_SECOND_HOST = "127.9.8.1", "127.9.8.2"


async def download(started, link, file, saved, hops, *, timeout_s=DOWNLOAD_TIMEOUT_S):
    began_s = time.monotonic()
    known = await started.until_done(await started.add(link, saved, hops), timeout_s)
    return {
        "progress": known.get("progress"),
        "status": known.get("status"),
        "seconds": round(time.monotonic() - began_s, 1),
        "same": same_bytes(file, saved / file.name),
    }


async def bytes_by_child(started):
    carried = Counter()
    for circuit in await started.circuits():
        carried[slot_of(int(circuit["circuit_id"]))] += circuit["bytes_down"]
    return carried


async def one_after_another(folder, hops, count):
    """Download that many torrents, each when the one before is complete."""
    torrents, saved = make_torrents(folder, count, SIZE_BYTES), folder / "downloads"
    async with nodes_of_tribler() as swarm, tribler(swarm, folder) as (running, started):
        downloads = [await download(started, link, file, saved, hops) for _, _, file, link in torrents]
        return {"downloads": downloads, "carried": await bytes_by_child(started)}


async def together(folder, hops, count):
    """Download that many torrents at once, then one of them again over another hop count while it runs."""
    torrents, saved = make_torrents(folder, count, SIZE_BYTES), folder / "downloads"
    (changed,) = make_torrents(folder, 1, SLOW_BYTES, 8 << 20, net=2)
    async with nodes_of_tribler() as swarm, tribler(swarm, folder) as (running, started):
        downloads = await asyncio.gather(*(download(started, link, file, saved, hops) for _, _, file, link in torrents))
        infohash = await started.add(changed[3], saved, hops)
        await started.until(infohash, lambda known: 0 < known.get("progress", 0) < 1, DOWNLOAD_TIMEOUT_S)
        await started.ask("PATCH", f"downloads/{infohash}", anon_hops=hops + 1)
        known = await started.until_done(infohash, 2 * DOWNLOAD_TIMEOUT_S)
        return {
            "downloads": downloads,
            "changed": {"hops": known["hops"], "same": same_bytes(changed[2], saved / changed[2].name)},
            "carried": await bytes_by_child(started),
        }


async def disturbed(folder, hops, count, signal_name):
    """Download that many torrents slowly; a child gets the signal, and the longest stand of each is measured."""
    torrents, saved = make_torrents(folder, count, SLOW_BYTES, SLOW_BYTES_S), folder / "downloads"
    async with nodes_of_tribler() as swarm, tribler(swarm, folder) as (running, started):
        for *_, link in torrents:
            await started.add(link, saved, hops)
        deadline_s = time.monotonic() + DOWNLOAD_TIMEOUT_S
        while not all(known["progress"] > 0.05 for known in (await started.downloads()).values()):
            assert time.monotonic() < deadline_s, await started.downloads()
            await asyncio.sleep(0.2)
        struck = running.pool_children()[0]
        struck.send_signal(signal.Signals[signal_name])
        stood_s = await longest_stands([handle for _, handle, _, _ in torrents])
        children = [child.pid for child in running.pool_children() if child.pid != struck.pid]
        return {"stood_s": stood_s, "children": len(children)}


def our_arguments(swarm, host, state):
    where = ",".join(map(str, swarm.nodes))
    return ["--workers=2", f"--listen={host}:0", f"--bootstrap={where}", f"--state={state}", "--allow-private"]


@contextlib.asynccontextmanager
async def our_seed(swarm, file, hops, state):
    """Yield the magnet link of a file that `tunnel-pool seed` offers hidden."""
    async with command("seed", file, f"--hops={hops}", *our_arguments(swarm, OUR_HOST, state)) as seed:
        yield (await asyncio.wait_for(seed.process.stdout.readline(), 30)).decode().strip()


async def hidden_downloads(folder, hops, count):
    """Have Tribler download hidden torrents that our seeders offer, with no exit and no tracker between."""
    saved, seen, types = folder / "downloads", [], set()
    async with nodes_of_tribler(exits=1, relays=5) as swarm, tribler(swarm, folder) as (running, started):
        for number, (session, handle, file, _) in enumerate(make_torrents(folder, count, SIZE_BYTES)):
            session.remove_torrent(handle)  # nobody is to be found in the open
            async with our_seed(swarm, file, hops, folder / f"seed{number}") as link:
                seen.append(await download(started, link, file, saved, hops, timeout_s=HIDDEN_TIMEOUT_S))
                types |= {circuit["type"] for circuit in await started.circuits()}
        return {"downloads": seen, "types": sorted(types)}


async def hidden_seeds(folder, hops, count):
    """Have Tribler seed hidden torrents, which our downloads find."""
    seen = []
    async with nodes_of_tribler(exits=1, relays=5) as swarm, tribler(swarm, folder) as (running, started):
        for number, (session, handle, file, link) in enumerate(make_torrents(folder, count, SIZE_BYTES)):
            session.remove_torrent(handle)
            infohash = await started.add(file.with_suffix(".torrent").as_uri(), folder, hops)
            await started.until_done(infohash, DOWNLOAD_TIMEOUT_S)
            saved = folder / f"found{number}"
            arguments = [f"--hops={hops}", f"--save={saved}", "--json", *our_arguments(swarm, OUR_SECOND_HOST, saved)]
            began_s = time.monotonic()
            async with command("download", link.partition("&x.pe=")[0], *arguments) as ours:
                with contextlib.suppress(AssertionError):  # it did not end in time
                    await ours.ended(HIDDEN_TIMEOUT_S)
            seconds = round(time.monotonic() - began_s, 1)
            seen.append({"seconds": seconds, "same": same_bytes(file, saved / file.name)})
    return {"downloads": seen}


async def restarted(folder, hops):
    """Restart Tribler by REST while it downloads: it goes on, with children of its own."""
    (seeded,) = make_torrents(folder, 1, SLOW_BYTES, 8 << 20)
    saved, (*_, file, link) = folder / "downloads", seeded
    async with nodes_of_tribler() as swarm, tribler(swarm, folder) as (running, started):
        infohash = await started.add(link, saved, hops)
        await started.until(infohash, lambda known: known.get("progress", 0) > 0.1, DOWNLOAD_TIMEOUT_S)
        before = {child.pid for child in running.pool_children()}
        await started.ask("PUT", "shutdown?restart=1")

        def has_others():
            now = {child.pid for child in running.pool_children()}
            return now and not now & before

        await started.until_ready(lambda: None, has_others)
        known = await started.until_done(infohash, 2 * DOWNLOAD_TIMEOUT_S)
        return {"progress": known.get("progress"), "same": same_bytes(file, saved / file.name)}


REST = (
    "statistics/ipv8", "statistics/tribler", "downloads", "libtorrent/session?hop=1", "libtorrent/settings?hop=1",
    "ipv8/network", "ipv8/dht/statistics", "ipv8/dht/buckets", "ipv8/overlays", "ipv8/overlays/statistics",
    "ipv8/tunnel/settings", "ipv8/tunnel/circuits", "ipv8/tunnel/relays", "ipv8/tunnel/exits", "ipv8/tunnel/swarms",
    "ipv8/tunnel/peers", "ipv8/tunnel/peers/dht", "ipv8/tunnel/peers/pex",
)  # fmt: skip


async def rest(folder, plain):
    """Ask everything that Tribler's page asks of tunnels, after a download and with a hidden seed."""
    (seeded,) = make_torrents(folder, 1, SIZE_BYTES)
    *_, file, link = seeded
    async with nodes_of_tribler() as swarm, tribler(swarm, folder, plain=plain) as (_, started):
        deadline_s = time.monotonic() + 2 * DOWNLOAD_TIMEOUT_S
        while not any(circuit["state"] == "READY" for circuit in await started.circuits()):
            assert time.monotonic() < deadline_s, "no circuits"
            await asyncio.sleep(0.2)
        await download(started, link, file, folder / "downloads", 1)
        while time.monotonic() < deadline_s:
            known = {path: await started.ask("GET", path) for path in REST}
            types = {circuit["type"] for circuit in known["ipv8/tunnel/circuits"]["circuits"]}
            if "IP_SEEDER" in types and known["ipv8/dht/buckets"]["buckets"]:
                break
            await asyncio.sleep(1)
        (circuit,) = [c for c in known["ipv8/tunnel/circuits"]["circuits"] if c["type"] == "DATA"][:1]
        known["speed test"] = await started.ask(
            "GET", f"ipv8/tunnel/circuits/{circuit['circuit_id']}/test?test_time_ms=300"
        )
        return known


async def patched(folder, hops, count):
    """Run Tribler with our patch instead of our launcher."""
    torrents, saved = make_torrents(folder, count, SIZE_BYTES), folder / "downloads"
    async with nodes_of_tribler() as swarm, tribler(swarm, folder, patched=True) as (running, started):
        downloads = [await download(started, link, file, saved, hops) for _, _, file, link in torrents]
        children = len(running.pool_children())
        statistics, deadline_s = {"total_down": 0}, time.monotonic() + STATISTICS_WITHIN_S
        # A child tells its bytes about once a second.
        while statistics["total_down"] <= count * SIZE_BYTES and time.monotonic() < deadline_s:
            await asyncio.sleep(0.2)
            statistics = (await started.ask("GET", "statistics/ipv8"))["ipv8_statistics"]
        return {"downloads": downloads, "children": children, "statistics": statistics}


SCENARIOS = (
    one_after_another, together, disturbed, hidden_downloads, hidden_seeds, restarted, rest, patched,
)  # fmt: skip


async def main(name, folder, arguments):
    (scenario,) = [scenario for scenario in SCENARIOS if scenario.__name__ == name]
    (folder / "downloads").mkdir()
    print(json.dumps(await scenario(folder, *arguments)))


if __name__ == "__main__":
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), list(map(json.loads, sys.argv[3:]))))
