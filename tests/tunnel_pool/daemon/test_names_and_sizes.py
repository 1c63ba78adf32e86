"""Tests the fields of a torrent in all interfaces: name, path, id, size and wanted files."""

import asyncio
import json
import os
import time
from types import SimpleNamespace

import aiohttp
import libtorrent as lt
import pytest
from qbittorrentapi import Client, Conflict409Error

from tests.tunnel_pool.daemon.owner import Seeder
from tests.tunnel_pool.daemon.rpc import Rpc
from tests.tunnel_pool.daemon.running import daemon_here, make_torrent
from tests.worlds.network import until
from tunnel_pool.daemon.changes.edits import AddRequest, SetFields, Stop
from tunnel_pool.daemon.done_script import environment_of
from tunnel_pool.daemon.done_webhook import told_of
from tunnel_pool.daemon.server.transmission import fields
from tunnel_pool.torrent.metainfo import magnet_link, parse_torrent, read_metainfo
from tunnel_pool.torrent.metainfo import make_torrent as hybrid_or_v1

SIZES = {"a": 20_000, "sub/b": 3000, "c": 7000}


def qbittorrent(here):
    return Client(host=f"http://{here.address}", FORCE_SCHEME_FROM_HOST=True)


async def shown(here, *names):
    async with Rpc(here.address) as rpc:
        (row,) = (await rpc.call("torrent_get", {"fields": list(names)}))["torrents"]
    return row


# Name and place


@pytest.mark.parametrize("layout", ["Original", "Subfolder", "NoSubfolder"])
@pytest.mark.parametrize("name", ["folder", "file.bin"])
async def test_transmissions_name_is_where_the_files_are(layout, name, tmp_path):
    """Sonarr looks for a torrent's files at its folder and this name."""
    (tmp_path / "state").mkdir()
    if name == "folder":
        content = make_torrent(tmp_path / "seeds", name, SIZES)
    else:
        (tmp_path / "seeds").mkdir()
        (tmp_path / "seeds" / name).write_bytes(os.urandom(50_000))
        content = hybrid_or_v1(tmp_path / "seeds" / name, lambda *_: None)
    async with daemon_here(tmp_path / "state", tmp_path / "own") as here:
        client = qbittorrent(here)
        await asyncio.to_thread(
            lambda: client.torrents_add(torrent_files=content, content_layout=layout, rename="A title", is_paused=True)
        )
        (torrent,) = here.library.torrents.values()
        row = await shown(here, "name", "files", "download_dir")
        tops = {file["name"].partition("/")[0] for file in row["files"]}
        assert row["name"] == (tops.pop() if len(tops) == 1 else "A title")
        (info,) = await asyncio.to_thread(client.torrents_info)
        assert info.name == "A title"
        assert environment_of(torrent, {}, 0.0)["TR_TORRENT_NAME"] == row["name"]


async def test_a_renamed_folder_is_the_name_and_a_title_stays(tmp_path):
    (tmp_path / "state").mkdir()
    content = make_torrent(tmp_path / "own", "t", SIZES)
    async with daemon_here(tmp_path / "state", tmp_path / "own") as here, Rpc(here.address) as rpc:
        torrent, _ = await here.changes.add(read_metainfo(content), AddRequest(hops=0))
        await until(lambda: torrent.is_finished)
        await rpc.call("torrent_rename_path", {"ids": [1], "path": "t", "name": "u"})
        assert ((await shown(here, "name"))["name"], torrent.record.name) == ("u", "u")
        await here.changes.apply([torrent], SetFields({"name": "A title"}))
        await rpc.call("torrent_rename_path", {"ids": [1], "path": "u", "name": "v"})
        assert ((await shown(here, "name"))["name"], torrent.record.name) == ("v", "A title")
        assert sorted(os.listdir(tmp_path / "own")) == ["v"]
    async with daemon_here(tmp_path / "state", tmp_path / "own") as here:
        assert (await shown(here, "name"))["name"] == "v"


# A hybrid


async def test_a_hybrid_has_one_id_and_its_size_is_that_of_its_files(tmp_path):
    for path, size in SIZES.items():
        (tmp_path / "own" / "t" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "own" / "t" / path).write_bytes(os.urandom(size))
    (tmp_path / "state").mkdir()
    content = hybrid_or_v1(tmp_path / "own" / "t", lambda *_: None, 16384, hybrid=True)
    parameters = read_metainfo(content)
    assert parameters.info_hashes.has_v1()
    assert parameters.info_hashes.has_v2()
    v1, size = str(parameters.info_hashes.v1), sum(SIZES.values())
    assert parameters.ti.total_size() > size
    async with daemon_here(tmp_path / "state", tmp_path / "own") as here, aiohttp.ClientSession() as http:
        torrent, _ = await here.changes.add(parameters, AddRequest(hops=0))
        await until(lambda: torrent.is_finished)
        names = ["hash_string", "total_size", "percent_complete", "size_when_done", "have_valid"]
        assert await shown(here, *names) == dict(zip(names, [v1, size, 1.0, size, size], strict=True))
        (info,) = await asyncio.to_thread(qbittorrent(here).torrents_info)
        assert (info.hash, info.total_size, info.size) == (v1, size, size)
        for url, key in (("/api/torrents", None), ("/api/downloads", "downloads")):
            async with http.get(f"http://{here.address}{url}") as answer:
                rows = await answer.json()
            assert [row["infohash"] for row in (rows[key] if key else rows)] == [v1]
        async with http.get(f"http://{here.address}/api/events") as events:
            async for line in events.content:
                if line.startswith(b"data:") and b"changed" in line:
                    (row,) = json.loads(line[5:])["changed"]
                    assert row["infohash"] == v1
                    break
        assert environment_of(torrent, {}, 0.0)["TR_TORRENT_HASH"] == told_of(torrent, 0.0)["infohash"] == v1


# The files that a magnet link chooses


@pytest.mark.parametrize(
    ("chosen", "is_wanted"),
    [("0", [1, 0, 0]), ("1-2", [0, 1, 1]), ("0,2", [1, 0, 1]), ("9", [1, 1, 1]), ("2,9", [0, 0, 1])],
)
@pytest.mark.parametrize("is_hybrid", [False, True])
async def test_the_files_that_a_magnet_link_chooses_are_counted_without_pads(chosen, is_wanted, is_hybrid, tmp_path):
    seeder = Seeder(tmp_path / "seeds", speed=100_000)
    for path, size in SIZES.items():
        (seeder.folder / "t" / path).parent.mkdir(parents=True, exist_ok=True)
        (seeder.folder / "t" / path).write_bytes(os.urandom(10 * size))
    parameters = read_metainfo(hybrid_or_v1(seeder.folder / "t", lambda *_: None, 16384, hybrid=is_hybrid))
    link = f"{magnet_link(parameters)}&x.pe={seeder.address}&so={chosen}"
    seeder.start(parameters)
    async with daemon_here(tmp_path) as here:
        torrent, _ = await here.changes.add(parse_torrent(link), AddRequest(hops=0))
        await until(lambda: torrent.is_finished and not torrent.record.folder_when_done and not torrent.selections)
        row = await shown(here, "wanted", "files", "left_until_done", "size_when_done", "total_size")
        assert row["wanted"] == is_wanted
        large = max(range(3), key=lambda place: row["files"][place]["length"])
        is_whole = row["files"][large]["bytes_completed"] == row["files"][large]["length"]
        assert is_whole is bool(is_wanted[large])
        assert row["left_until_done"] == 0
        if is_hybrid:  # else files share pieces
            # On a machine with much to do, what is not wanted may have come before it was known.
            is_all_there = all(file["bytes_completed"] == file["length"] for file in row["files"])
            assert (row["size_when_done"] < row["total_size"]) is not is_all_there
            assert is_all_there or 0 in is_wanted


# Times, and what is not there


async def test_the_time_of_seeding_goes_on_while_nothing_else_does(tmp_path, monkeypatch):
    content = make_torrent(tmp_path, "t", SIZES)
    async with daemon_here(tmp_path) as here:
        torrent, _ = await here.changes.add(read_metainfo(content), AddRequest(hops=0))
        await until(lambda: torrent.is_finished and not torrent.is_paused)
        later = SimpleNamespace(monotonic=lambda: time.monotonic() + 1800)  # libtorrent says nothing of it meanwhile
        monkeypatch.setattr(fields, "time", later)
        row = await shown(here, "seconds_seeding", "seconds_downloading")
        assert 1800 <= row["seconds_seeding"] <= 1830
        assert row["seconds_downloading"] <= 30
        await here.changes.apply([torrent], Stop())
        await until(lambda: torrent.is_paused)
        assert (await shown(here, "seconds_seeding"))["seconds_seeding"] <= 30


async def test_all_torrents_are_removed_where_none_is_named_and_none_by_an_empty_list(tmp_path):
    async with daemon_here(tmp_path) as here, Rpc(here.address) as rpc:
        for name in "abc":
            await here.changes.add(parse_torrent(name * 40), AddRequest(hops=0, stopped=True))
        await rpc.call("torrent_remove", {"ids": []})
        assert len(here.library.torrents) == 3
        await rpc.call("torrent_remove", {})
        assert not here.library.torrents


async def test_a_category_that_is_not_there_is_a_conflict(tmp_path):
    async with daemon_here(tmp_path) as here:
        torrent, _ = await here.changes.add(parse_torrent("a" * 40), AddRequest(hops=0, stopped=True))
        client = qbittorrent(here)
        for hashes in (torrent.record.infohash, "all", "b" * 40):
            with pytest.raises(Conflict409Error):
                await asyncio.to_thread(
                    lambda hashes=hashes: client.torrents_set_category(category="none", torrent_hashes=hashes)
                )
        assert torrent.record.labels == []


def test_libtorrent_counts_files_that_pad():
    """Our own counting is needed no more once this has changed."""
    assert list(lt.parse_magnet_uri(f"magnet:?xt=urn:btih:{'a' * 40}&so=1").file_priorities) == [0, 4]


# Many files


@pytest.mark.slow
async def test_a_torrent_of_very_many_files_is_there_after_a_restart(tmp_path):
    """libtorrent's own bounds let it write resume data of 374,998 files that it then can't read."""
    count = 376_000
    files = [{b"length": 1, b"path": [b"%d" % number]} for number in range(count)]
    info = {b"name": b"many", b"piece length": 16384, b"pieces": bytes(20 * -(-count // 16384)), b"files": files}
    (tmp_path / "state").mkdir()
    wish = AddRequest(hops=0, stopped=True, file_priorities=[0, *[4] * (count - 1)])
    async with daemon_here(tmp_path / "state", tmp_path / "own") as here:
        await here.changes.add(read_metainfo(lt.bencode({b"info": info})), wish)
    async with daemon_here(tmp_path / "state", tmp_path / "own") as here:
        (torrent,) = here.library.torrents.values()
        assert torrent.handle.torrent_file().num_files() == count
        assert torrent.handle.get_file_priorities()[:2] == [0, 4]
