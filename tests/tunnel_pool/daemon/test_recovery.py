"""Tests the death of a child while the daemon downloads: its downloads resume soon, all others go on."""

import asyncio
import signal
from collections import Counter

import aiohttp
import libtorrent as lt
import pytest

from tests.tunnel_pool.daemon.owner import link_of
from tests.tunnel_pool.daemon.rpc import Rpc
from tests.tunnel_pool.daemon.running import daemon, make_torrent
from tests.worlds.network import until
from tests.worlds.standing import longest_stands
from tunnel_pool.bench.harness.daemon import network_of
from tunnel_pool.private_swarm.seeder import seeder_settings
from tunnel_pool.private_swarm.swarm import LocalSwarm
from tunnel_pool.torrent.sessions.libtorrent_session import open_session

COUNT = 6
SIZE_BYTES, BYTES_S = 80 << 20, 1 << 20
BEGUN_WITHIN_S = 60.0


async def circuits_of(address):
    async with aiohttp.ClientSession() as http, http.get(f"http://{address}/api/circuits") as response:
        return await response.json()


async def have_circuits(address):
    """Return whether both children have circuits: a connection stays with a child that had one when it began."""
    return {circuit["child"] for circuit in await circuits_of(address) if circuit["state"] == "READY"} == {0, 1}


async def bytes_by_child(address):
    """Return what the circuits of both children have brought; RPC_SYNC tells of it within a second."""
    await asyncio.sleep(1)
    brought = Counter({0: 0, 1: 0})
    for circuit in await circuits_of(address):
        brought[circuit["child"]] += circuit["down_bytes"]
    return brought


@pytest.mark.slow
@pytest.mark.parametrize("isolation", ["torrent", "none"])
async def test_a_killed_child_does_not_hold_downloads_up(isolation, tmp_path):
    """Two children carry six downloads, each from a seeder of its own."""
    async with LocalSwarm(1 << 20, seeders=0, exits=3, relays=0, log_level="error") as swarm:
        net = swarm.client_host.rsplit(".", 2)[0]
        sessions, handles, links = [], [], []
        for number in range(COUNT):
            sessions.append(open_session(seeder_settings(f"{net}.9.{number + 1}", speed=BYTES_S)))
            made = make_torrent(tmp_path / "seeds", f"t{number}", {"a": SIZE_BYTES}, 1 << 18)
            parameters = lt.load_torrent_buffer(made)
            parameters.save_path, parameters.flags = str(tmp_path / "seeds"), lt.torrent_flags.seed_mode
            handles.append(sessions[-1].add_torrent(parameters))
            links.append(link_of(lt.load_torrent_buffer(made), f"{net}.9.{number + 1}:{sessions[-1].listen_port()}"))
        arguments = ["--workers=2", "--hops=1", f"--isolate={isolation}", *network_of(swarm)]
        async with daemon(tmp_path, *arguments) as (running, address), Rpc(address) as rpc:
            await rpc.call("session_set", {"download_queue_enabled": False})
            await rpc.call("torrent_add", {"filename": links[0]})
            async with asyncio.timeout(BEGUN_WITHIN_S):
                while not await have_circuits(address):  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
            for link in links[1:]:
                await rpc.call("torrent_add", {"filename": link})
            await until(
                lambda: min(handle.status().total_payload_upload for handle in handles) > BYTES_S, BEGUN_WITHIN_S
            )
            assert min((await bytes_by_child(address)).values()) > BYTES_S
            running.pool_children()[0].send_signal(signal.SIGKILL)
            stood_s = await longest_stands(handles)
        print(f"the longest time that each of {COUNT} downloads stood, --isolate {isolation}: {stood_s} s")
        # What the other child carries goes on; libtorrent would ask for lost peers again after a minute.
        assert stood_s[0] < 3
        assert max(stood_s) < 20
