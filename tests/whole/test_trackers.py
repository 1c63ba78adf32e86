"""Tests peers found through the tunnels alone, by HTTP and UDP trackers; test_leaks.py has the DHT and the wire."""

import asyncio
import time
from contextlib import asynccontextmanager

import pytest

from tests.worlds.commands import command
from tests.worlds.network import unused_host
from tests.worlds.swarms import OPENTRACKER, announce, http_tracker, opentracker
from tunnel_pool.packet_engine import EngineChoice
from tunnel_pool.private_swarm.swarm import LocalSwarm, same_bytes
from tunnel_pool.torrent.metainfo import parse_torrent, swarm_hash_of

SIZE_BYTES = 2 << 20
needs_opentracker = pytest.mark.skipif(OPENTRACKER is None, reason="apt-get install opentracker")


@asynccontextmanager
async def swarm():
    async with LocalSwarm(SIZE_BYTES, seeders=1, exits=2, relays=0, log_level="error") as opened:
        yield opened


def infohash_of(swarm):
    return swarm_hash_of(parse_torrent(str(swarm.torrent)))


def magnet(swarm, *trackers):
    link = f"magnet:?xt=urn:btih:{infohash_of(swarm).hex()}"
    return "".join([link, *(f"&tr={tracker}" for tracker in trackers)])


async def downloads(swarm, tmp_path, link, *more, workers=2):
    arguments = [f"--workers={workers}", f"--save={tmp_path}", f"--state={tmp_path / 'state'}", "--json", *more]
    arguments += [f"--listen={swarm.client_host}:0", f"--bootstrap={','.join(map(str, swarm.nodes))}"]
    async with command("download", link, f"--community-id={swarm.community_id.hex()}", *arguments) as download:
        code, report, lines = await download.ended()
    assert code == 0, lines
    assert same_bytes(swarm.file, tmp_path / swarm.file.name)
    (seen,) = await swarm.peers_of_seeders()
    assert set(seen) <= {exit_.host for exit_ in swarm.exits}
    return report


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
async def test_peers_from_an_http_tracker(workers, tmp_path):
    async with swarm() as opened, http_tracker() as (tracker, asked):
        await announce(tracker, infohash_of(opened), opened.seeders[0])
        asked.clear()
        url = f"http://{tracker[0]}:{tracker[1]}/announce"
        await downloads(opened, tmp_path, magnet(opened, url), workers=workers)
        assert asked
        assert set(asked) <= {exit_.host for exit_ in opened.exits}


async def test_peers_from_an_http_tracker_that_has_moved(tmp_path):
    async with swarm() as opened, http_tracker() as (tracker, asked):
        await announce(tracker, infohash_of(opened), opened.seeders[0])
        asked.clear()
        await downloads(opened, tmp_path, magnet(opened, f"http://{tracker[0]}:{tracker[1]}/moved"), workers=0)
        assert asked


@pytest.mark.slow
@needs_opentracker
@pytest.mark.parametrize("scheme", ["http", "udp"])
async def test_where_no_exit_says_its_port_trackers_are_asked_all_the_same(scheme, tmp_path):
    """Exits on the Python engine carry no streams, so that they are not asked, and no DHT sees them."""
    async with LocalSwarm(
        SIZE_BYTES, seeders=1, exits=2, relays=0, log_level="error", engine=EngineChoice.PYTHON
    ) as opened, opentracker(unused_host(), infohash_of(opened)) as tracker:  # fmt: skip
        await announce(tracker, infohash_of(opened), opened.seeders[0])
        began_s = time.monotonic()
        await downloads(opened, tmp_path, magnet(opened, f"{scheme}://{tracker[0]}:{tracker[1]}/announce"))
        print(f"{scheme}: {time.monotonic() - began_s:.1f} s")


@pytest.mark.slow
async def test_names_of_trackers_are_resolved_at_the_exit(tmp_path):
    """`localhost` is another machine's business: with a proxy, libtorrent hands names on."""
    async with swarm() as opened, http_tracker() as (tracker, asked):
        await announce(tracker, infohash_of(opened), opened.seeders[0])
        forwarder = await asyncio.start_server(lambda r, w: forward(r, w, tracker), "127.0.0.1", 0)
        port = forwarder.sockets[0].getsockname()[1]
        async with forwarder:
            await downloads(opened, tmp_path, magnet(opened, f"http://localhost:{port}/announce"), "--allow-private")


async def forward(reader, writer, tracker):
    """Forward one request from the exit to the tracker, and its answer back."""
    there, back = await asyncio.open_connection(*tracker)
    back.write(await reader.readuntil(b"\r\n\r\n"))
    writer.write(await there.read(1 << 16))
    await writer.drain()
    for stream in (writer, back):
        stream.close()


@pytest.mark.slow
@needs_opentracker
@pytest.mark.parametrize("scheme", ["http", "udp"])
async def test_peers_from_opentracker(scheme, tmp_path):
    async with swarm() as opened, opentracker(unused_host(), infohash_of(opened)) as tracker:
        await announce(tracker, infohash_of(opened), opened.seeders[0])
        await downloads(opened, tmp_path, magnet(opened, f"{scheme}://{tracker[0]}:{tracker[1]}/announce"))
