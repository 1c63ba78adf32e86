"""Run a client in a network namespace of its own, whose way to exits is barred, or whose exits end or fall silent.

blocked_world.py FOLDER HOPS unmet|blocked|gone|silent ours|mixed|tracked [OPTION...]

`unmet`: the client's provider drops what goes to exits and what comes from them, all the time. In mid-download,
`blocked`: it does so from then on; `gone`: all exits end but one that the client has not met; `silent`: the exit in use
takes what comes and does nothing. The relays are `ours`, or pyipv8's, some of them old (`mixed`). `tracked`: they are
ours, and an HTTP tracker alone knows the seeder.

Runs in a network namespace that `unshare` made, as leak_world.py. Prints one JSON object: how the download ended, its
circuits, when its first byte came, and for how long at most nothing came after the change.
"""

import asyncio
import json
import os
import signal
import sys
import time
from contextlib import AsyncExitStack, suppress
from pathlib import Path

from tests.whole.test_stream_faults import index_of_exit_in_use
from tests.worlds.commands import MODULE, ROOT, command
from tests.worlds.leak_world import CLIENT, NET, TRACKER, Client, run
from tests.worlds.network import COMMUNITY_ID, until
from tests.worlds.swarms import announce, http_tracker
from tunnel_pool.bench.harness.daemon import magnet_of
from tunnel_pool.overlay.ground.config import HostPort
from tunnel_pool.private_swarm.swarm import RELAY_NET, LocalSwarm, same_bytes
from tunnel_pool.torrent.metainfo import parse_torrent, swarm_hash_of

PLAIN_RELAYS = ("old-relay", "relay", "old-relay", "relay", "relay")
EXITS = {"unmet": 2, "blocked": 2, "gone": 3, "silent": 2}
SIZE_BYTES, BYTES_S = 16 << 20, 2 << 20


def block(client, hosts):
    """Drop packets to these, as there is no way, and from these, as their way back is none (rp_filter)."""
    for device in ("all", "wire"):
        run(*client.enter, "sysctl", "-q", "-w", f"net.ipv4.conf.{device}.rp_filter=1")
    for host in hosts:
        run(*client.enter, "ip", "route", "add", "blackhole", f"{host}/32")


async def plain_relay(role, host, stack, enter=()):
    """Run a relay of plain pyipv8, and return its address; `enter` is the command prefix that runs a program there."""
    process = await asyncio.create_subprocess_exec(
        *enter, sys.executable, "-m", "tests.worlds.plain_node", role, host, cwd=ROOT,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    stack.push_async_callback(process.wait)
    stack.callback(process.stdin.close)
    return HostPort(host, json.loads(await process.stdout.readline())["port"])


def strike(swarm, client, what):
    """Bar the way to the exits, or end or stop them."""
    pids = swarm.pids()["exits"]
    if what == "blocked":
        block(client, [node.host for node in swarm.exits])
    elif what == "gone":
        for pid in pids[:-1]:
            os.kill(pid, signal.SIGKILL)
    else:
        os.kill(pids[index_of_exit_in_use(swarm)], signal.SIGSTOP)


async def link_of(swarm, is_tracked, stack):
    """Return a link that names the seeder, or a tracker that knows it."""
    if not is_tracked:
        return magnet_of(swarm)
    infohash = swarm_hash_of(parse_torrent(str(swarm.torrent)))
    tracker, _ = await stack.enter_async_context(http_tracker(TRACKER))
    await announce(tracker, infohash, swarm.seeders[0])
    return f"magnet:?xt=urn:btih:{infohash.hex()}&tr=http://{TRACKER}:{tracker[1]}/announce"


async def longest_stall(file):
    """Return, once it is cancelled, the most seconds for which nothing was written into the file."""
    longest_s, written, written_s = 0.0, 0, time.monotonic()
    with suppress(asyncio.CancelledError):
        while True:
            now_s, blocks = time.monotonic(), file.stat().st_blocks if file.exists() else 0
            if blocks != written:
                longest_s = max(longest_s, now_s - written_s)
                written, written_s = blocks, now_s
            await asyncio.sleep(0.02)
    return longest_s


async def downloaded(folder, client, hops, *, what, relays, options, stack):
    is_mixed = relays == "mixed"
    plain = [
        await plain_relay(role, f"{NET}.{RELAY_NET}.{number}", stack)
        for number, role in enumerate(PLAIN_RELAYS if is_mixed else (), start=1)
    ]
    swarm = await stack.enter_async_context(
        LocalSwarm(
            SIZE_BYTES,
            seeders=1,
            exits=EXITS[what],
            relays=0 if is_mixed else 4,
            log_level="error",
            net=NET,
            seeder_speed=BYTES_S,
            community_id=COMMUNITY_ID,
            more_nodes=tuple(plain),
        )
    )
    unmet = {"unmet": swarm.exits, "gone": swarm.exits[-1:]}.get(what, [])
    block(client, [node.host for node in unmet])
    started_s = time.monotonic()
    link = await link_of(swarm, relays == "tracked", stack)
    download = await stack.enter_async_context(
        command(
            "download", link, f"--hops={hops}", "--workers=2", f"--state={folder / 'state'}",
            f"--listen={CLIENT}:0", f"--bootstrap={','.join(map(str, swarm.nodes))}", "--allow-private",
            f"--community-id={swarm.community_id.hex()}", f"--save={folder}", "--json", *options,
            program=[*client.enter, *MODULE],
        )
    )  # fmt: skip
    await download.until_downloaded(0.01)
    first_s = time.monotonic() - started_s
    if what != "unmet":
        watching = asyncio.create_task(longest_stall(folder / swarm.file.name))
        strike(swarm, client, what)
    code, report, lines = await download.ended()
    stall_s = 0.0
    if what != "unmet":
        watching.cancel()
        stall_s = await watching
    for pid in swarm.pids()["exits"]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    return {
        "code": code,
        "verified": same_bytes(swarm.file, folder / swarm.file.name),
        "first_byte_s": round(first_s, 1),
        "stall_s": round(stall_s, 1),
        "circuits": (report or {}).get("circuits", []),
        "lines": lines[-5:],
    }


async def scenario(folder, hops, **how):
    client = Client(folder)
    try:
        await until(client.join, what="the client's namespace")
        run("ip", "link", "set", "lo", "up")
        for host in [TRACKER, *(f"{NET}.{part}.{number}" for part in (1, 2, 3) for number in range(1, 9))]:
            run("ip", "addr", "add", f"{host}/32", "dev", "world")
        async with AsyncExitStack() as stack:
            return await downloaded(folder, client, hops, stack=stack, **how)
    finally:
        client.close()


if __name__ == "__main__":
    where, hop_count, what, relays, *more = sys.argv[1:]
    run_it = scenario(Path(where), int(hop_count), what=what, relays=relays, options=more)
    print(json.dumps(asyncio.run(run_it)))
