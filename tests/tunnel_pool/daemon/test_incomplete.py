"""Tests the folder for incomplete torrents: files are downloaded there, and move to their own folder when complete."""

import asyncio
import os
import signal
from pathlib import Path

import msgspec
import pytest
from qbittorrentapi import Client

from tests.tunnel_pool.daemon.owner import Seeder
from tests.tunnel_pool.daemon.owners_program import owners_program
from tests.tunnel_pool.daemon.rpc import Rpc
from tests.tunnel_pool.daemon.running import daemon, daemon_here, make_torrent
from tests.worlds.network import until
from tunnel_pool.daemon.changes import moves
from tunnel_pool.daemon.changes.edits import AddRequest, Move, Relabel, Remove, Rename, Run, SetHops
from tunnel_pool.daemon.changes.moves import Moves
from tunnel_pool.daemon.errors import RequestError
from tunnel_pool.daemon.outside.urls import place_of
from tunnel_pool.daemon.server.qbittorrent.fields import info
from tunnel_pool.daemon.storage import disk
from tunnel_pool.daemon.upkeep import incomplete
from tunnel_pool.daemon.upkeep.alerts import AlertReader
from tunnel_pool.torrent.metainfo import parse_torrent, read_metainfo

SIZES = {"a": 300_000, "sub/b": 1000}


async def set_aside(here, folder):
    await here.changes.edit_settings(
        lambda settings: msgspec.structs.replace(settings, incomplete_dir=str(folder), incomplete_dir_enabled=True)
    )


async def test_a_torrent_comes_to_the_folder_for_incomplete_ones_and_goes_to_its_own_when_it_is_whole(seeder, tmp_path):
    aside, told = tmp_path / "aside", []
    async with daemon_here(tmp_path) as here:
        here.library.on_done.append(lambda torrent: told.append((torrent.record.folder, os.listdir(tmp_path / "own"))))
        await set_aside(here, aside)
        link = parse_torrent(seeder.link_to("t", SIZES))
        torrent, _ = await here.changes.add(link, AddRequest(hops=0, folder=str(tmp_path / "own")))
        assert (torrent.record.folder, torrent.record.final_folder) == (
            str(aside / torrent.record.infohash),
            str(tmp_path / "own"),
        )
        async with Rpc(here.address) as rpc:
            (shown,) = (await rpc.call("torrent_get", {"fields": ["download_dir"]}))["torrents"]
            assert shown["download_dir"] == str(tmp_path / "own")
        await until(lambda: torrent.record.folder == str(tmp_path / "own"))
        assert (tmp_path / "own" / "t" / "a").stat().st_size == 300_000
        assert torrent.record.folder_when_done == ""
        await until(lambda: told)
        assert not list(aside.rglob("*"))
        assert told == [(str(tmp_path / "own"), ["t"])]  # nobody was told before it was there


async def test_a_whole_torrent_is_shown_as_whole_once_it_is_home(seeder, tmp_path, monkeypatch):
    """Other programs take its files from there at once."""
    bring_home, may_go = Moves.bring_home, asyncio.Event()

    async def held(moves, torrent):
        await may_go.wait()
        await bring_home(moves, torrent)

    monkeypatch.setattr(Moves, "bring_home", held)
    async with daemon_here(tmp_path) as here:
        await set_aside(here, tmp_path / "aside")

        def shown():
            return info(torrent, here.library.records.settings, {})["state"], torrent.left_bytes > 0

        torrent, _ = await here.changes.add(
            parse_torrent(seeder.link_to("t", SIZES)), AddRequest(hops=0, folder=str(tmp_path / "own"))
        )
        await until(lambda: torrent.is_finished)
        assert shown() == ("moving", True)
        may_go.set()
        await until(lambda: torrent.record.folder == str(tmp_path / "own"))
        assert shown() == ("stalledUP", False)


async def test_a_torrent_whose_way_home_is_blocked_goes_on_seeding_and_goes_home_later(
    seeder, tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(incomplete, "AGAIN_AFTER_S", 0.3)
    own = tmp_path / "own"
    own.mkdir()
    (own / "t").write_text("a file where a folder has to be")
    async with daemon_here(tmp_path) as here:
        await set_aside(here, tmp_path / "aside")
        link = parse_torrent(seeder.link_to("t", SIZES))
        torrent, _ = await here.changes.add(link, AddRequest(hops=0, folder=str(own)))
        await until(lambda: "stays in the folder for incomplete ones" in caplog.text)
        assert torrent.notice.startswith(f"it stays in the folder for incomplete ones: {own / 't'} is there already")
        here.library.scheduler.tick()
        assert (torrent.error, torrent.record.final_folder) == ("", str(own))
        await until(lambda: not torrent.is_paused)
        (own / "t").unlink()
        await until(lambda: torrent.record.folder == str(own))


async def test_who_changes_a_torrent_whose_files_just_get_their_places_waits_for_that(seeder, tmp_path, monkeypatch):
    """An edit is not refused as "being moved already" if the torrent's files became known a moment ago."""
    held = []
    answer = AlertReader._storage_moved_alert
    monkeypatch.setattr(AlertReader, "_storage_moved_alert", lambda *told: held.append(told))
    async with daemon_here(tmp_path) as here:
        torrent, _ = await here.changes.add(parse_torrent(seeder.link_to("t", SIZES)), AddRequest(hops=0))
        await until(lambda: held)
        monkeypatch.setattr(AlertReader, "_storage_moved_alert", answer)
        renamed = asyncio.create_task(here.changes.apply([torrent], Rename("t", "u")))
        changed = asyncio.create_task(here.changes.apply([torrent], SetHops(1), Relabel.to(["x"])))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(renamed), 0.1)
        torrent.waiting.moved.set_result(str(tmp_path))
        async with asyncio.timeout(10):
            await renamed
            await changed
        assert (torrent.record.hops, torrent.record.labels) == (1, ["x"])
        assert (tmp_path / "u" / "a").exists()


async def test_nobody_waits_for_files_that_have_no_place(seeder, tmp_path):
    """They would be in the way of somebody else's: their torrent stands still until its owner does something."""
    own = tmp_path / "own"
    own.mkdir()
    (own / "t").write_text("a file where a folder has to be")
    async with daemon_here(tmp_path) as here:
        wish = AddRequest(hops=0, folder=str(own))
        torrent, _ = await here.changes.add(parse_torrent(seeder.link_to("t", SIZES)), wish)
        await until(lambda: torrent.error)
        async with asyncio.timeout(10):
            await here.changes.apply([torrent], Run())
            await here.changes.apply([torrent], Relabel.to(["x"]))
        assert torrent.record.labels == ["x"]


async def test_a_torrent_that_is_being_moved_is_given_no_other_place(tmp_path, monkeypatch):
    """Otherwise its move would never end, as libtorrent answers the later move alone."""
    held = []
    content = make_torrent(tmp_path / "here", "t", SIZES)
    async with daemon_here(tmp_path) as here:
        torrent, _ = await here.changes.add(read_metainfo(content), AddRequest(hops=0, folder=str(tmp_path / "here")))
        await until(lambda: torrent.is_finished)
        with monkeypatch.context() as patched:
            patched.setattr(AlertReader, "_storage_moved_alert", lambda *told: held.append(told))
            await here.changes.apply([torrent], Move(str(tmp_path / "there")))
            await until(lambda: held)
        for with_files in (True, False):
            with pytest.raises(RequestError, match="being moved already"):
                await here.changes.apply([torrent], Move(str(tmp_path / "other"), with_files))
        torrent.waiting.moved.set_result(str(tmp_path / "there"))
        await until(lambda: not torrent.is_moving)
        assert torrent.record.folder == str(tmp_path / "there")


@pytest.mark.parametrize("is_own", [True, False])
async def test_a_move_replaces_nothing_that_is_there(is_own, tmp_path):
    """Moving a torrent with one piece of a file replaces neither the whole file nor somebody else's."""
    there, folder = tmp_path / "there", tmp_path / "here"
    content = make_torrent(there, "t", SIZES)
    (folder / "t").mkdir(parents=True)
    (folder / "t" / "a").write_bytes((there / "t" / "a").read_bytes()[:100_000])
    if not is_own:
        (there / "t" / "a").write_bytes(b"a stranger's")
        (there / "t" / "sub" / "b").unlink()

    def files():
        return {path: path.read_bytes() for path in there.rglob("*") if path.is_file()}

    before = files()
    async with daemon_here(tmp_path) as here:
        torrent, _ = await here.changes.add(read_metainfo(content), AddRequest(hops=0, folder=str(folder)))
        await until(lambda: not torrent.record.taking_over)
        with pytest.raises(RequestError, match=r"/there/t/.* is there already, and is not replaced"):
            await here.changes.apply([torrent], Move(str(there)))
        assert files() == before
        assert torrent.record.folder == str(folder)
        if is_own:  # It is taken over where the owner says so.
            await here.changes.apply([torrent], Move(str(there), with_files=False))
            await until(lambda: torrent.is_finished)
            assert files() == before


async def test_libtorrent_replaces_nothing_that_has_come_since_the_look(tmp_path, monkeypatch):
    there = tmp_path / "there"
    content = make_torrent(tmp_path / "here", "t", SIZES)
    (there / "t").mkdir(parents=True)
    (there / "t" / "a").write_bytes(b"a stranger's")
    monkeypatch.setattr(moves, "_first_there", lambda torrent, folder: "")
    async with daemon_here(tmp_path) as here:
        torrent, _ = await here.changes.add(read_metainfo(content), AddRequest(hops=0, folder=str(tmp_path / "here")))
        await until(lambda: torrent.is_finished)
        await here.changes.apply([torrent], Move(str(there)))
        await until(lambda: not torrent.is_moving)
        assert "can't be moved" in torrent.error
        assert torrent.record.folder == str(tmp_path / "here")
        assert (there / "t" / "a").read_bytes() == b"a stranger's"
        assert (tmp_path / "here" / "t" / "sub" / "b").stat().st_size == 1000


def test_a_move_that_was_cut_short_is_ended_over_its_own_copy_alone(tmp_path):
    source, target = tmp_path / "source", tmp_path / "target"
    for folder in (source, target):
        (folder / "t").mkdir(parents=True)
    for name in ("a", "b", "c"):
        (source / "t" / name).write_bytes(name.encode() * 1000)
    (target / "t" / "a").write_bytes(b"a" * 10)  # a copy that has begun
    (target / "t" / "b").write_bytes(b"a stranger's")
    with pytest.raises(FileExistsError) as raised:
        disk.finish_move(["t/a", "t/b", "t/c"], str(source), str(target))
    assert raised.value.filename == str(target / "t" / "b")
    assert sorted(path.name for path in (source / "t").iterdir()) == ["a", "b", "c"]
    (target / "t" / "b").unlink()
    disk.finish_move(["t/a", "t/b", "t/c"], str(source), str(target))
    assert {path.name: path.read_bytes() for path in (target / "t").iterdir()} == {
        name: name.encode() * 1000 for name in ("a", "b", "c")
    }
    assert not (source / "t").exists()


async def test_a_torrent_that_is_there_already_stays_where_it_is(tmp_path):
    async with daemon_here(tmp_path) as here:
        await set_aside(here, tmp_path / "aside")
        content = make_torrent(tmp_path, "t", SIZES)
        torrent, _ = await here.changes.add(read_metainfo(content), AddRequest(hops=0))
        await until(lambda: torrent.is_finished)
        assert torrent.record.folder == str(tmp_path)


async def test_a_kill_between_the_last_piece_and_the_move_costs_nothing(seeder, tmp_path):
    own = tmp_path / "downloads"
    async with daemon(tmp_path, "--workers=0", "--hops=0") as (running, address), Rpc(address) as rpc:
        await rpc.call("session_set", {"incomplete_dir": str(tmp_path / "aside"), "incomplete_dir_enabled": True})
        await rpc.call("torrent_add", {"filename": seeder.link_to("t", SIZES)})
        await until(lambda: list((tmp_path / "aside").glob("*/t/a")) or (own / "t" / "a").exists())
        running.process.send_signal(signal.SIGKILL)
        await running.process.wait()
    async with daemon(tmp_path, "--workers=0", "--hops=0") as (_, address), Rpc(address) as rpc:
        await until(lambda: (own / "t" / "a").exists() and (own / "t" / "a").stat().st_size == 300_000, 60)
        fields = ["percent_done", "error_string", "download_dir"]

        async def shown():
            return (await rpc.call("torrent_get", {"fields": fields}))["torrents"]

        async with asyncio.timeout(30):  # it is whole once the move is told of
            while await shown() != [{"percent_done": 1.0, "error_string": "", "download_dir": str(own)}]:  # noqa: ASYNC110
                await asyncio.sleep(0.05)


async def test_it_is_set_by_both_apis_and_a_folder_that_is_none_is_refused(tmp_path):
    async with daemon_here(tmp_path) as here, Rpc(here.address) as rpc:
        for wrong in ({"incomplete_dir_enabled": True}, {"incomplete_dir": "relative"}):
            _, answer = await rpc.post({"jsonrpc": "2.0", "method": "session_set", "params": wrong, "id": 1})
            assert "error" in answer
        await rpc.call("session_set", {"incomplete_dir": "/aside", "incomplete_dir_enabled": True})
        client = Client(host=f"http://{here.address}", FORCE_SCHEME_FROM_HOST=True)
        shown = await asyncio.to_thread(client.app_preferences)
        assert (shown.temp_path, shown.temp_path_enabled) == ("/aside", True)
        await asyncio.to_thread(lambda: client.app_set_preferences({"temp_path_enabled": False}))
        assert (await rpc.call("session_get"))["incomplete_dir_enabled"] is False


async def test_two_torrents_with_files_of_one_name_do_not_meet_there(seeder, tmp_path_factory, tmp_path):
    other = Seeder(tmp_path_factory.mktemp("others"))
    async with daemon_here(tmp_path) as here:
        await set_aside(here, tmp_path / "aside")
        torrents = []
        for source, own in ((seeder, "one"), (other, "two")):
            link = parse_torrent(source.link_to("t", SIZES))
            torrents.append((await here.changes.add(link, AddRequest(hops=0, folder=str(tmp_path / own))))[0])
        await until(lambda: all(torrent.record.folder_when_done == "" and torrent.is_finished for torrent in torrents))
        for source, own in ((seeder, "one"), (other, "two")):
            assert (tmp_path / own / "t" / "a").read_bytes() == (source.folder / "t" / "a").read_bytes()
        await until(lambda: not list((tmp_path / "aside").iterdir()))


async def test_what_was_not_told_before_the_end_is_told_at_the_next_start(seeder, tmp_path):
    async with owners_program(lambda number: 200) as (url, told):
        async with daemon_here(tmp_path, webhook_done=place_of(url)) as here:
            torrent, _ = await here.changes.add(parse_torrent(seeder.link_to("t", SIZES)), AddRequest(hops=0))
            await until(lambda: told)
            async with here.library.records.changing:  # as it is kept while its files are moved
                await here.library.records.put(torrent, is_to_be_told=True)
        async with daemon_here(tmp_path, webhook_done=place_of(url)) as here:
            await until(lambda: len(told) == 2)
            assert not next(iter(here.library.torrents.values())).record.is_to_be_told


async def test_a_torrent_that_is_removed_with_its_files_leaves_nothing_there(tmp_path):
    async with daemon_here(tmp_path) as here:
        await set_aside(here, tmp_path / "aside")
        content = make_torrent(tmp_path / "elsewhere", "t", SIZES)
        torrent, _ = await here.changes.add(read_metainfo(content), AddRequest(hops=0, folder=str(tmp_path / "own")))
        part = Path(torrent.record.folder) / "t" / "a"
        part.parent.mkdir(parents=True)
        part.write_bytes(b"some of it")
        await here.changes.apply([torrent], Remove(delete_files=True))
        await until(lambda: not list((tmp_path / "aside").iterdir()))
