"""Tests the restart of a daemon with many torrents with hops: all of them go on, and the log stays short."""

import re
import secrets
from collections import Counter

import pytest

from tests.tunnel_pool.daemon.rpc import Rpc
from tests.tunnel_pool.daemon.running import daemon
from tests.worlds.network import until, unused_host
from tests.worlds.recording_tracker import recording_tracker
from tunnel_pool.bench.harness.daemon import network_of
from tunnel_pool.private_swarm.swarm import LocalSwarm

TORRENTS = 300
LINES_OF_A_KIND = 12  # those of two minutes, and the lines that tell how many there were


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("scheme", ["udp", "http"])
async def test_three_hundred_torrents_are_told_of_and_announced_after_a_restart(scheme, tmp_path):
    async with (
        LocalSwarm(1 << 20, seeders=1, exits=2, relays=0, log_level="error") as swarm,
        recording_tracker(host := unused_host()) as tracker,
    ):
        options = *network_of(swarm), "--workers=1", "--hops=1", "--settle=0", "--isolate=none", "--log-level=info"
        hashes = {secrets.token_hex(20) for _ in range(TORRENTS)}

        def asked():
            return {told.infohash.hex() for told in tracker.told}

        async with daemon(tmp_path, *options) as (_, address), Rpc(address) as rpc:
            await rpc.call("session_set", {"download_queue_enabled": False})
            for infohash in hashes:
                place = f"{scheme}://{host}:{tracker.port}/announce"
                await rpc.call("torrent_add", {"filename": f"magnet:?xt=urn:btih:{infohash}&tr={place}"})
            await until(lambda: asked() == hashes, 120, "all are announced")
        tracker.told.clear()
        async with daemon(tmp_path, *options) as (running, address):
            await until(lambda: asked() == hashes, 120, "all are announced again")
        lines = [re.sub(r"[0-9a-f]{8,}|\d+", "#", line) for line in running.lines]
        assert not [line for line in lines if "was not told" in line]
        assert max(Counter(lines).values()) <= LINES_OF_A_KIND, Counter(lines).most_common(3)
