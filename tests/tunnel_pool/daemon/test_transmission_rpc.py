"""Tests the daemon with transmission-rpc, as it is on PyPI; the torrents and their files are real."""

import asyncio
import signal

import pytest
from transmission_rpc.error import TransmissionAuthError, TransmissionError

from tests.tunnel_pool.daemon.running import connected, daemon, kept_peers, make_torrent, seen
from tunnel_pool.bench.harness.daemon import magnet_of, network_of
from tunnel_pool.private_swarm.swarm import LocalSwarm, same_bytes


async def test_an_anonymous_download_by_a_label(tmp_path):
    async with (
        LocalSwarm(2 << 20, seeders=1, exits=2, relays=1, log_level="error") as swarm,
        daemon(tmp_path, "--hops=0", "--workers=1", *network_of(swarm)) as (running, address),
    ):
        client = await connected(address)
        added = await asyncio.to_thread(client.add_torrent, magnet_of(swarm), labels=["iso", "hops:2"])
        torrent = await seen(client, added.id, lambda torrent: torrent.percent_done == 1.0)
        assert torrent.labels == ["iso", "hops:2"]
        assert torrent.status == "seeding"
        assert same_bytes(swarm.file, tmp_path / "downloads" / swarm.file.name)
        (saw,) = await swarm.peers_of_seeders()
        assert saw
        assert set(saw) <= {node.host for node in swarm.exits}


async def test_a_plain_download(tmp_path):
    async with (
        LocalSwarm(2 << 20, seeders=1, exits=0, relays=0, log_level="error") as swarm,
        daemon(tmp_path, "--workers=0") as (running, address),
    ):
        client = await connected(address)
        added = await asyncio.to_thread(client.add_torrent, magnet_of(swarm), labels=["hops:0"])
        await seen(client, added.id, lambda torrent: torrent.percent_done == 1.0)
        assert same_bytes(swarm.file, tmp_path / "downloads" / swarm.file.name)


@pytest.mark.slow
async def test_peers_of_the_plain_way_are_not_kept_for_the_other(tmp_path):
    async with (
        LocalSwarm(2 << 20, seeders=1, exits=0, relays=0, log_level="error") as swarm,
        daemon(tmp_path, "--hops=0", "--workers=0") as (running, address),
    ):
        client = await connected(address)
        await asyncio.to_thread(client.set_session, speed_limit_down=50, speed_limit_down_enabled=True)
        added = await asyncio.to_thread(client.add_torrent, magnet_of(swarm))
        await seen(client, added.id, lambda torrent: torrent.percent_done > 0)
        await asyncio.to_thread(client.change_torrent, added.id, labels=["hops:1"])
        running.process.kill()
        await running.process.wait()
    assert kept_peers(tmp_path) == []


async def test_what_is_asked_of_a_torrent_happens_and_outlives_the_daemon(tmp_path):
    downloads = tmp_path / "downloads"
    data = make_torrent(downloads, "show", {"a.bin": 50_000, "b/c.bin": 70_000, "b/d.txt": 10})
    async with daemon(tmp_path, "--hops=2", "--workers=0") as (running, address):
        client = await connected(address)
        call = lambda method, *arguments, **more: asyncio.to_thread(getattr(client, method), *arguments, **more)  # noqa: E731
        added = await call("add_torrent", data)
        torrent = await seen(client, added.id, lambda torrent: torrent.status == "seeding")
        assert (torrent.percent_done, torrent.labels) == (1.0, ["hops:2"])
        files = {file.name: file.id for file in torrent.get_files()}
        assert sorted(files) == ["show/a.bin", "show/b/c.bin", "show/b/d.txt"]
        assert (await call("add_torrent", data)).id == added.id

        await call("stop_torrent", added.id)
        await seen(client, added.id, lambda torrent: torrent.status == "stopped")
        await call(
            "change_torrent", added.id, labels=["x"], download_limit=77, download_limited=True, seed_ratio_limit=1.5,
            seed_ratio_mode=1, files_unwanted=[files["show/a.bin"]], priority_high=[files["show/b/c.bin"]],
        )  # fmt: skip
        await call("rename_torrent_path", added.id, "show/b/c.bin", "e.bin")
        assert (downloads / "show/b/e.bin").stat().st_size == 70_000
        await call("move_torrent_data", added.id, str(tmp_path / "elsewhere"))
        await seen(client, added.id, lambda torrent: torrent.download_dir == str(tmp_path / "elsewhere"))
        assert (tmp_path / "elsewhere/show/b/e.bin").stat().st_size == 70_000
        assert not (downloads / "show").exists()
        await call("verify_torrent", added.id)
        await seen(client, added.id, lambda torrent: torrent.status == "stopped" and torrent.percent_done == 1.0)
        running.process.send_signal(signal.SIGTERM)
        assert await running.process.wait() == 0

    async with daemon(tmp_path, "--hops=1", "--workers=0") as (running, address):
        client = await connected(address)
        (torrent,) = await asyncio.to_thread(client.get_torrents)
        assert (torrent.id, torrent.status, torrent.labels) == (added.id, "stopped", ["x", "hops:2"])
        assert (torrent.download_limit, torrent.download_limited, torrent.seed_ratio_limit) == (77, True, 1.5)
        assert {file.name: (file.selected, file.priority) for file in torrent.get_files()} == {
            "show/a.bin": (False, 0),
            "show/b/e.bin": (True, 1),
            "show/b/d.txt": (True, 0),
        }
        assert torrent.percent_done == 1.0
        await asyncio.to_thread(client.remove_torrent, added.id, delete_data=True)
        assert await asyncio.to_thread(client.get_torrents) == []
        async with asyncio.timeout(10):
            while (tmp_path / "elsewhere/show").exists():  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert (await asyncio.to_thread(client.add_torrent, data)).id > added.id  # never given twice


@pytest.mark.slow
async def test_a_stop_while_files_are_checked_loses_none_of_them(tmp_path):
    data = make_torrent(tmp_path / "downloads", "large", {"a.bin": 150_000_000}, piece_bytes=1 << 18)
    arguments = ["--hops=0", "--workers=0"]
    async with daemon(tmp_path, *arguments) as (running, address):
        client = await connected(address)
        added = await asyncio.to_thread(client.add_torrent, data)
        await seen(client, added.id, lambda torrent: torrent.status == "seeding")
        await asyncio.to_thread(client.verify_torrent, added.id)
        running.process.send_signal(signal.SIGTERM)
        assert await running.process.wait() == 0
    async with daemon(tmp_path, *arguments) as (running, address):
        client = await connected(address)
        await seen(client, added.id, lambda torrent: torrent.status == "seeding", 20)


async def test_nothing_is_renamed_over_something_else(tmp_path):
    downloads = tmp_path / "downloads"
    data = make_torrent(downloads, "show", {"a.bin": 100, "b/c.bin": 200, "b/d.bin": 300})
    (downloads / "show/foreign").write_text("mine")
    async with daemon(tmp_path, "--hops=0", "--workers=0") as (running, address):
        client = await connected(address)
        added = await asyncio.to_thread(client.add_torrent, data)
        await seen(client, added.id, lambda torrent: torrent.status == "seeding")
        for path, name in [
            ("show/a.bin", "foreign"),
            ("show/a.bin", "b"),
            ("show/b/c.bin", "d.bin"),
            ("show/b", "a.bin"),
        ]:
            with pytest.raises(TransmissionError, match="something of that name"):
                await asyncio.to_thread(client.rename_torrent_path, added.id, path, name)
        await asyncio.to_thread(client.rename_torrent_path, added.id, "show/b", "e")
        assert (downloads / "show/e/d.bin").stat().st_size == 300
        assert (downloads / "show/foreign").read_text() == "mine"


async def test_the_queue(tmp_path):
    async with daemon(tmp_path, "--workers=0") as (running, address):
        client = await connected(address)
        ids = []
        for number in range(4):
            link = f"magnet:?xt=urn:btih:{number + 1:040x}&dn=number-{number}"
            ids.append((await asyncio.to_thread(client.add_torrent, link)).id)
        await asyncio.to_thread(client.set_session, download_queue_size=2, download_queue_enabled=True)

        async def states():
            torrents = await asyncio.to_thread(client.get_torrents)
            return {torrent.name: torrent.status for torrent in sorted(torrents, key=lambda t: t.queue_position)}

        assert await states() == {
            "number-0": "downloading", "number-1": "downloading",
            "number-2": "download pending", "number-3": "download pending",
        }  # fmt: skip
        await asyncio.to_thread(client.queue_top, ids[3])
        assert list((await states()).items())[:3] == [
            ("number-3", "downloading"), ("number-0", "downloading"), ("number-1", "download pending"),
        ]  # fmt: skip
        await asyncio.to_thread(client.start_torrent_now, ids[2])
        assert (await states())["number-2"] == "downloading"
        await asyncio.to_thread(client.remove_torrent, ids[3])
        assert [t.queue_position for t in await asyncio.to_thread(client.get_torrents)] == [0, 1, 2]


async def test_a_password(tmp_path):
    path = tmp_path / "password"
    path.write_text("correct horse\n")
    more = ["--workers=0", "--rpc-user=me", f"--rpc-password-file={path}"]
    async with daemon(tmp_path, *more) as (running, address):
        client = await connected(address, username="me", password="correct horse")
        assert await asyncio.to_thread(client.get_torrents) == []
        for wrong in (
            {},
            {"username": "me", "password": "incorrect"},
            {"username": "you", "password": "correct horse"},
        ):
            with pytest.raises(TransmissionAuthError):
                await connected(address, **wrong)


NOTHING = "magnet:?xt=urn:btih:" + 40 * "a"
REFUSED = [
    ("magnet:?xt=urn:btih:short", {}, "magnet link"),
    ("http://192.0.2.1/x.torrent", {}, "not fetched from the web"),
    (NOTHING, {"labels": ["hops:9"]}, "hop count"),
    (NOTHING, {"labels": ["hops:1", "hops:2"]}, "several hop counts"),
    (NOTHING, {"labels": ["of, two"]}, "'of, two' is no label"),
    (NOTHING, {"labels": [" "]}, "is no label"),
    (NOTHING, {"download_dir": "relative"}, "whole path"),
]


async def test_what_cannot_be_added_is_said_and_leaves_nothing(tmp_path):
    async with daemon(tmp_path, "--workers=0") as (running, address):
        client = await connected(address)
        for link, more, said in REFUSED:
            with pytest.raises(TransmissionError, match=said):
                await asyncio.to_thread(client.add_torrent, link, **more)
        assert await asyncio.to_thread(client.get_torrents) == []
