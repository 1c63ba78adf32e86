"""Tests HTTP access to files of torrents, whole and by range, during the download and after it."""

import asyncio
import hashlib
import itertools
import mimetypes
import os

import aiohttp
import libtorrent as lt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tunnel_pool.daemon.running import connected, daemon, make_torrent, seen
from tunnel_pool.bench.harness.daemon import magnet_of, network_of
from tunnel_pool.daemon.server.media_types import media_type
from tunnel_pool.daemon.server.streaming import pieces_of
from tunnel_pool.daemon.upkeep.alerts import FILE_TOO_SHORT
from tunnel_pool.private_swarm.swarm import LocalSwarm


@given(st.integers(0, 10_000), st.integers(0, 10_000), st.integers(1, 777))
def test_pieces_are_the_range_in_order(start, length, piece_bytes):
    pieces = list(pieces_of(start, start + length, piece_bytes))
    covered = [(piece.number * piece_bytes + piece.skip, piece.number * piece_bytes + piece.stop) for piece in pieces]
    assert sum(end - begin for begin, end in covered) == length
    assert all(before[1] == after[0] for before, after in itertools.pairwise(covered))
    assert not covered or covered[0][0] == start


async def get(http, url, wanted=None, method="GET"):
    async with http.request(method, url, headers={"Range": wanted} if wanted else {}) as response:
        return response.status, await response.read(), response.headers


async def test_a_file_that_was_cut_short_is_checked_and_not_served_as_zeros(tmp_path):
    assert lt.libtorrent_category().message(FILE_TOO_SHORT) == "file too short"
    data = make_torrent(tmp_path / "downloads", "show", {"a.mp4": 300_000})
    path = tmp_path / "downloads/show/a.mp4"
    async with daemon(tmp_path, "--workers=0") as (running, address), aiohttp.ClientSession() as http:
        client = await connected(address)
        added = await asyncio.to_thread(client.add_torrent, data)
        await seen(client, added.id, lambda torrent: torrent.status == "seeding")
        os.truncate(path, 100_000)
        torrent = await asyncio.to_thread(client.get_torrent, added.id)
        url = f"http://{address}/stream/{torrent.hash_string}/0"
        status, body, _ = await get(http, url)
        assert status == 409
        assert b"shorter than it was" in body
        left = await seen(client, added.id, lambda torrent: torrent.status == "downloading" and torrent.progress < 50)
        assert left.progress > 30  # percent
        assert not left.error_string


async def test_parts_of_a_file_that_is_there(tmp_path):
    data = make_torrent(tmp_path / "downloads", "show", {"a.mp4": 300_000, "b.html": 1000, "c": 0})
    content = (tmp_path / "downloads/show/a.mp4").read_bytes()
    async with daemon(tmp_path, "--workers=0") as (running, address), aiohttp.ClientSession() as http:
        client = await connected(address)
        added = await asyncio.to_thread(client.add_torrent, data)
        await seen(client, added.id, lambda torrent: torrent.status == "seeding")
        torrent = await asyncio.to_thread(client.get_torrent, added.id)
        files = {file.name: file.id for file in torrent.get_files()}
        stream = f"http://{address}/stream/{torrent.hash_string}"
        base = f"{stream}/{files['show/a.mp4']}"
        status, body, headers = await get(http, base)
        assert (status, body, headers["Content-Type"]) == (200, content, "video/mp4")
        status, body, headers = await get(http, base, "bytes=70000-139999")
        assert (status, body, headers["Content-Range"]) == (206, content[70_000:140_000], "bytes 70000-139999/300000")
        assert (await get(http, base, "bytes=-10"))[:2] == (206, content[-10:])
        assert (await get(http, base, "bytes=299999-"))[:2] == (206, content[-1:])
        assert (await get(http, base, "Bytes=5-9"))[:2] == (206, content[5:10])  # RFC 9110, 14.1
        assert (await get(http, f"{base}/a%20name.mp4", "bytes=5-9"))[:2] == (206, content[5:10])
        assert (await get(http, base, "bytes=0-1,5-6"))[:2] == (200, content)
        for validator, answer in ((headers["ETag"], (206, content[:10])), ('"another"', (200, content))):
            async with http.get(base, headers={"Range": "bytes=0-9", "If-Range": validator}) as response:
                assert (response.status, await response.read()) == answer
        assert (await get(http, base, "lines=1-2"))[:2] == (200, content)
        status, body, headers = await get(http, base, method="HEAD")
        assert (status, body, headers["Content-Length"]) == (200, b"", "300000")
        for wrong in ("bytes=300000-", "bytes=9-5", "bytes=x"):
            status, _, headers = await get(http, base, wrong)
            assert status == 416, wrong
            assert headers["Content-Range"] == "bytes */300000"
        status, body, headers = await get(http, f"{stream}/{files['show/b.html']}")
        assert (status, len(body)) == (200, 1000)
        assert headers["Content-Type"] == "application/octet-stream"  # no page of ours
        assert headers["Content-Security-Policy"].startswith("sandbox")
        assert (await get(http, f"{stream}/{files['show/c']}"))[:2] == (200, b"")
        await asyncio.to_thread(client.change_torrent, added.id, files_unwanted=[files["show/a.mp4"]])
        assert (await get(http, base))[:2] == (200, content)  # it is all there
        assert (await asyncio.to_thread(client.get_torrent, added.id)).percent_done == 1.0
        for missing in (f"{stream}/3", f"{stream}/x", f"{stream}/-1", f"http://{address}/stream/{'0' * 40}/0"):
            assert (await get(http, missing))[0] == 404


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a.mkv", "video/x-matroska"),
        ("a/b.TS", "video/mp2t"),
        ("a.m2ts", "video/mp2t"),
        ("a.m4v", "video/mp4"),
        ("a.flac", "audio/flac"),
        ("what? a.mp3", "audio/mpeg"),
        ("data:a.opus", "audio/ogg"),
        ("a.html", "text/html"),
        ("a.tar.gz", "application/octet-stream"),
        ("a", "application/octet-stream"),
        ("", "application/octet-stream"),
    ],
)
def test_media_types_are_those_of_no_machine(name, kind, monkeypatch):
    for end in (".mkv", ".ts", ".flac", ".mp3"):
        monkeypatch.setitem(mimetypes.types_map, end, "text/vnd.trolltech.linguist")
    assert media_type(name) == kind


@pytest.mark.slow
async def test_pieces_of_one_byte_do_not_hold_up_others(tmp_path):
    """The test would take a minute, and hold up the loop, if the work for each piece grew with their number."""
    content = os.urandom(100_000)
    (tmp_path / "downloads").mkdir()
    (tmp_path / "downloads/odd.mp4").write_bytes(content)
    hashes = b"".join(hashlib.sha1(bytes([byte])).digest() for byte in content)
    info = {b"name": b"odd.mp4", b"piece length": 1, b"length": len(content), b"pieces": hashes}
    async with daemon(tmp_path, "--workers=0") as (_, address), aiohttp.ClientSession() as http:
        client = await connected(address)
        added = await asyncio.to_thread(client.add_torrent, lt.bencode({b"info": info}))
        await seen(client, added.id, lambda torrent: torrent.percent_done == 1)
        async with asyncio.timeout(25):
            assert (await get(http, f"http://{address}/stream/{added.hash_string}/0"))[:2] == (200, content)


@pytest.mark.slow
async def test_a_small_file_comes_at_once_and_an_unwanted_one_not_at_all(tmp_path):
    data = make_torrent(tmp_path / "seed", "show", {"a.mp3": 3_000_000, "b.mp3": 3_000_000})
    (tmp_path / "show.torrent").write_bytes(data)
    content = (tmp_path / "seed/show/a.mp3").read_bytes()
    seed = ["--workers=0", "--hops=0"]
    async with (
        daemon(tmp_path / "1", *seed, f"--folder={tmp_path / 'seed'}") as (_, seeder),
        daemon(tmp_path / "2", *seed) as (_, address),
        aiohttp.ClientSession() as http,
    ):
        theirs, ours = await connected(seeder), await connected(address)
        there = await asyncio.to_thread(theirs.add_torrent, data)
        await seen(theirs, there.id, lambda torrent: torrent.status == "seeding")
        port = (await asyncio.to_thread(theirs.get_session)).peer_port
        magnet = f"magnet:?xt=urn:btih:{there.hash_string}&x.pe=127.0.0.1:{port}"
        added = await asyncio.to_thread(ours.add_torrent, magnet)
        torrent = await seen(ours, added.id, lambda torrent: torrent.get_files())
        files = {file.name: file.id for file in torrent.get_files()}
        base = f"http://{address}/stream/{there.hash_string}"
        async with asyncio.timeout(4):  # a deadline without its alert is asked for again after 5 s a piece
            assert (await get(http, f"{base}/{files['show/a.mp3']}"))[:2] == (200, content)
        await seen(ours, added.id, lambda torrent: torrent.percent_done == 1.0)
        await asyncio.to_thread(ours.remove_torrent, added.id, delete_data=True)
        added = await asyncio.to_thread(ours.add_torrent, data, paused=True, files_unwanted=[files["show/b.mp3"]])
        assert (await get(http, f"{base}/{files['show/b.mp3']}"))[0] == 409
        wanted = await asyncio.to_thread(ours.get_torrent, added.id)
        assert wanted.size_when_done < 3_100_000


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_readers_get_what_they_ask_for_while_it_downloads(tmp_path):
    """Several readers seek and hang up at once, over a circuit whose speed limit leaves most of the file missing."""
    async with (
        LocalSwarm(40 << 20, seeders=1, exits=2, relays=0, log_level="error") as swarm,
        daemon(tmp_path, "--hops=1", "--workers=1", *network_of(swarm)) as (running, address),
        aiohttp.ClientSession() as http,
    ):
        client = await connected(address)
        await asyncio.to_thread(client.set_session, speed_limit_down=1000, speed_limit_down_enabled=True)
        added = await asyncio.to_thread(client.add_torrent, magnet_of(swarm), paused=True)
        url = f"http://{address}/stream/{(await asyncio.to_thread(client.get_torrent, added.id)).hash_string}/0"
        assert (await get(http, url))[0] == 404  # no metadata yet
        await asyncio.to_thread(client.start_torrent, added.id)
        await seen(client, added.id, lambda torrent: torrent.get_files())
        content = swarm.file.read_bytes()

        async def read(start, length):
            status, body, _ = await get(http, url, f"bytes={start}-{start + length - 1}")
            assert (status, body) == (206, content[start : start + length])

        for start in (30_000_000, 5, 41_000_000, 20_000_000):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(read(start, 900_000), 0.01)  # hangs up
            await asyncio.gather(read(start, 900_000), read(start + 500_000, 400_000))
        torrent = await asyncio.to_thread(client.get_torrent, added.id)
        assert torrent.percent_done < 0.9
        await asyncio.to_thread(client.stop_torrent, added.id)
        assert (await get(http, url))[0] == 409
