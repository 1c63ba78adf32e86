"""Tests which torrent owns which path: a torrent never writes to an existing file that is not its own."""

import contextlib
import dataclasses
import hashlib
import os
import sqlite3
import time
from pathlib import Path

import libtorrent as lt
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tunnel_pool.daemon.owner import Seeder, link_of
from tests.tunnel_pool.daemon.running import daemon_here, make_torrent
from tests.worlds.network import until
from tunnel_pool.daemon.changes.edits import AddRequest, Move, Remove, Rename, Run, Select, Stop, Verify
from tunnel_pool.daemon.errors import RequestError
from tunnel_pool.daemon.record import INCOMING
from tunnel_pool.daemon.rules.life import State
from tunnel_pool.daemon.rules.path_registry import PathRegistry
from tunnel_pool.daemon.rules.paths import Layout, Spellings, clash, final_paths, first_clash, spellings_of
from tunnel_pool.daemon.rules.queue import Activity
from tunnel_pool.daemon.storage import disk
from tunnel_pool.daemon.storage.store import STORE_FILE, Store
from tunnel_pool.daemon.torrents.torrent import Torrent
from tunnel_pool.daemon.upkeep import incomplete
from tunnel_pool.torrent.entries import Entry
from tunnel_pool.torrent.metainfo import parse_torrent, read_metainfo

PIECE_BYTES = 16384
ALIKE = {
    "x": ["A.txt", "a.txt", "ReadMe.txt", "readme.txt"],
    "y": ["a", "A/b"],
    "z": ["Sub/x.bin", "sub/x.bin", "sub/y.bin"],
    "deep": ["é/f", "É/f"],
}


def torrent_of(name, files, *, folder=None, piece_bytes=PIECE_BYTES):
    """Return a torrent (BEP 3) of a folder of these paths and contents, which are written below `folder`."""
    content = b"".join(files.values())
    pieces = [content[at : at + piece_bytes] for at in range(0, len(content), piece_bytes)]
    listed = [{b"length": len(each), b"path": [p.encode() for p in path.split("/")]} for path, each in files.items()]
    info = {b"piece length": piece_bytes, b"pieces": b"".join(hashlib.sha1(each).digest() for each in pieces)}
    what = {b"length": len(content)} if "" in files else {b"files": listed}
    for path, each in files.items() if folder is not None else ():
        place = folder / name / path if path else folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(each)
    return lt.bencode({b"info": {b"name": name.encode(), **info, **what}})


def contents(paths, size=20_000):
    return {path: os.urandom(size) for path in paths}


def files_below(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def plain(folder, **more):
    return AddRequest(hops=0, folder=str(folder), **more)


async def add(here, torrent, folder, **more):
    parameters = read_metainfo(torrent) if isinstance(torrent, bytes) else parse_torrent(torrent)
    return (await here.changes.add(parameters, plain(folder, **more)))[0]


async def begun(here, torrent, folder, **more):
    """Add a torrent, and return it once its places were looked at, so that what is there from now on may be its own."""
    added = await add(here, torrent, folder, **more)
    await until(lambda: not added.record.untouched)
    return added


async def left_in_part(here, tmp_path):
    """Return a torrent that was removed after it had written half of its file, in the folder `own`."""
    files, place = contents(["a"], 20_000), tmp_path / "own" / "t" / "a"
    torrent = torrent_of("t", files, folder=tmp_path / "seeds")
    added = await begun(here, torrent, tmp_path / "own")
    place.parent.mkdir(parents=True)
    place.write_bytes(files["a"][:10_000])
    await here.changes.apply([added], Remove())
    return torrent


@pytest.fixture
def state(tmp_path_factory):
    return tmp_path_factory.mktemp("state")


# Names


@pytest.mark.parametrize("name", ALIKE)
async def test_files_whose_names_differ_in_case_alone_are_found_as_they_are(name, tmp_path):
    torrent = torrent_of(name, contents(ALIKE[name]), folder=tmp_path / "own")
    before = files_below(tmp_path / "own")
    async with daemon_here(tmp_path) as here:
        added = await add(here, torrent, tmp_path / "own")
        await until(lambda: added.is_finished)
        assert files_below(tmp_path / "own") == before


@pytest.mark.parametrize("portable", ["x/a.1.txt", "x/a.txt"])
async def test_files_are_found_under_libtorrents_own_names_too(portable, tmp_path):
    torrent = torrent_of("x", contents(["A.txt", "a.txt"]), folder=tmp_path)
    (tmp_path / "x" / "a.txt").rename(tmp_path / portable)
    async with daemon_here(tmp_path) as here:
        added = await add(here, torrent, tmp_path)
        await until(lambda: added.is_finished)
        assert [added.file_path(index) for index in (0, 1)] == ["x/A.txt", portable]


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("paths", [*ALIKE.values(), ["f", "f", "F"], ["f", "f/g"], ["t", "t/t"]], ids=" ".join)
def test_no_two_files_of_a_torrent_have_one_path(paths, layout):
    """This holds on file systems, too, that do not tell capital letters from small ones."""
    listed = [{b"length": 1, b"path": [part.encode() for part in path.split("/")]} for path in paths]
    info = {b"name": b"t", b"piece length": PIECE_BYTES, b"pieces": bytes(20), b"files": listed}
    parameters = read_metainfo(lt.bencode({b"info": info}))
    spellings = spellings_of(parameters.ti, parameters.renamed_files, layout, "")
    for is_case_sensitive in (True, False):
        found = final_paths(spellings, {}, lambda path: True, is_case_sensitive)
        if found is None:  # libtorrent numbers names by the letters of ASCII alone: such a torrent is refused there
            assert (is_case_sensitive, "".join(paths).isascii()) == (False, False)
            continue
        assert not clash(found, is_case_sensitive)
        assert all(
            ("/" in path) is (layout is not Layout.NO_SUBFOLDER or "/" in paths[at]) for at, path in enumerate(found)
        )


@given(st.lists(st.sampled_from(["a", "A", "a/b", "a/B", "b", "a/b/c", "B/c"]), max_size=6))
def test_final_paths_never_clash(paths):
    portable = [f"{index}/{path}" for index, path in enumerate(paths)]
    for is_case_sensitive in (True, False):
        found = final_paths(Spellings(paths, portable, {}), {}, lambda path: False, is_case_sensitive)
        assert found is not None
        assert not clash(found, is_case_sensitive)


def test_wishes_that_would_give_two_files_one_path_are_refused():
    spellings = Spellings(["t/a", "t/b"], ["t/a", "t/b"], {})
    assert final_paths(spellings, {0: "t/b"}, lambda path: False, True) is None
    assert final_paths(spellings, {0: "t/B"}, lambda path: False, False) is None
    assert final_paths(spellings, {0: "t/b", 1: "t/a"}, lambda path: False, True) == ["t/b", "t/a"]


@pytest.mark.parametrize("name", ["n" * 247 + ".mkv", "ä" * 120 + ".mkv", "turned\u202eround.bin"])
@pytest.mark.parametrize("is_folder", [False, True])
async def test_names_that_libtorrent_changes_are_found_as_other_programs_write_them(name, is_folder, tmp_path, state):
    files = contents([f"{name}/{name}"] if is_folder else [""])
    torrent = torrent_of(name, files, folder=tmp_path)
    before = files_below(tmp_path)
    async with daemon_here(state, tmp_path) as here:
        added = await add(here, torrent, tmp_path)
        await until(lambda: added.is_finished)
    async with daemon_here(state, tmp_path) as here:
        (added,) = here.library.torrents.values()
        await until(lambda: added.is_finished)
        assert {path: each for path, each in files_below(tmp_path).items() if path in before} == before


# Two torrents, one path


@pytest.fixture
def two(tmp_path_factory):
    """Return two seeders, each with a torrent of one file `data.bin`, of two sizes."""
    links = []
    for size in (65_536, 98_304):
        seeder = Seeder(tmp_path_factory.mktemp("seeds"))
        parameters = read_metainfo(torrent_of("data.bin", contents([""], size), folder=seeder.folder))
        seeder.start(parameters)
        links.append((seeder, f"{lt.make_magnet_uri(parameters)}&x.pe={seeder.address}"))
    return links


async def test_a_torrent_whose_path_is_anothers_stands_still(two, tmp_path, state):
    (one, first), (other, second) = two
    async with daemon_here(state) as here:
        owner = await add(here, first, tmp_path / "own")
        await until(lambda: owner.is_finished and not owner.record.folder_when_done)
        guest = await add(here, second, tmp_path / "own")
        await until(lambda: guest.error)
        assert guest.error == f"{tmp_path}/own/data.bin is a file of torrent 1, data.bin: choose another folder"
        assert (tmp_path / "own" / "data.bin").read_bytes() == (one.folder / "data.bin").read_bytes()
        await here.changes.apply([guest], Move(str(tmp_path / "other")))
        await until(lambda: guest.is_finished and guest.record.folder == str(tmp_path / "other"))
        assert (tmp_path / "other" / "data.bin").read_bytes() == (other.folder / "data.bin").read_bytes()
        await until(lambda: os.listdir(tmp_path / "own") == ["data.bin"])  # the guest's folder goes last


async def test_one_comes_home_and_the_other_stays_in_the_folder_for_incomplete_ones(two, tmp_path, state, monkeypatch):
    monkeypatch.setattr(incomplete, "AGAIN_AFTER_S", 0.3)
    async with daemon_here(state) as here:
        await here.changes.edit_settings(
            lambda settings: msgspec.structs.replace(
                settings, incomplete_dir=str(tmp_path / "aside"), incomplete_dir_enabled=True
            )
        )
        torrents = [await add(here, link, tmp_path / "own") for _, link in two]
        await until(lambda: all(torrent.is_finished for torrent in torrents))
        await until(lambda: any(not torrent.record.folder_when_done for torrent in torrents))
        (home,) = [torrent for torrent in torrents if not torrent.record.folder_when_done]
        (away,) = [torrent for torrent in torrents if torrent is not home]
        await until(lambda: "stays in the folder for incomplete ones" in away.notice and not away.is_moving)
        for torrent, (seeder, _) in zip(torrents, two, strict=True):
            place = Path(torrent.record.folder) / "data.bin"
            assert place.read_bytes() == (seeder.folder / "data.bin").read_bytes()
        await here.changes.apply([home], Remove(delete_files=True))
        await until(lambda: not away.record.folder_when_done)
        assert away.notice == ""


async def test_a_torrent_file_whose_path_is_anothers_is_refused(tmp_path, state):
    async with daemon_here(state) as here:
        await add(here, torrent_of("t", contents(["a", "b"])), tmp_path / "own")
        with pytest.raises(RequestError, match=r"/own/t/b is a file of torrent 1, t: choose another folder"):
            await add(here, torrent_of("t", {"b": os.urandom(10)}), tmp_path / "own")
        with pytest.raises(RequestError, match=r"/own/t is a file of torrent 1|/own/t/a is a file"):
            await add(here, torrent_of("own", {"t": os.urandom(10)}), tmp_path)
        with pytest.raises(RequestError, match=r"/own/t/a/c is a file of torrent 1"):
            await add(here, torrent_of("a", {"c": os.urandom(10)}), tmp_path / "own" / "t")
        (tmp_path / "link").symlink_to(tmp_path / "own")
        with pytest.raises(RequestError, match=r"/own/t/b is a file of torrent 1"):
            await add(here, torrent_of("t", {"b": os.urandom(10)}), tmp_path / "link")
        await add(here, torrent_of("t", {"B": os.urandom(10)}), tmp_path / "own")
        assert len(here.library.torrents) == 2


async def test_no_file_is_renamed_or_moved_to_where_anothers_is_to_be(tmp_path, state):
    own = tmp_path / "own"
    async with daemon_here(state) as here:
        absent = await add(here, torrent_of("p5.bin", contents([""])), own)
        torrent = await add(here, torrent_of("p6.bin", contents([""]), folder=own), own)
        await until(lambda: torrent.is_finished)
        with pytest.raises(RequestError, match=r"p5.bin is a file of torrent 1"):
            await here.changes.apply([torrent], Rename("p6.bin", "p5.bin"))
        elsewhere = await add(here, torrent_of("p5.bin", contents([""]), folder=tmp_path / "two"), tmp_path / "two")
        await until(lambda: elsewhere.is_finished)
        with pytest.raises(RequestError, match=r"p5.bin is a file of torrent 1"):
            await here.changes.apply([elsewhere], Move(str(own)))
        await here.changes.apply([absent], Remove())
        await here.changes.apply([elsewhere], Move(str(own)))
        await until(lambda: elsewhere.record.folder == str(own))
        assert sorted(os.listdir(own)) == ["p5.bin", "p6.bin"]


async def test_torrents_of_the_same_files_may_share_them(tmp_path, state):
    files = contents(["a", "b"])
    async with daemon_here(state) as here:
        for piece_bytes in (16384, 32768):
            torrent = await add(here, torrent_of("t", files, folder=tmp_path, piece_bytes=piece_bytes), tmp_path)
            await until(lambda torrent=torrent: torrent.is_finished and not torrent.record.taking_over)
        await here.changes.apply([torrent], Remove(delete_files=True))
        await here.changes.removals.ended()
        assert {path.name for path in files_below(tmp_path / "t")} == {"a", "b"}


async def test_a_torrent_of_files_like_anothers_waits_and_is_looked_at_again_when_they_are_whole(
    seeder, tmp_path, state
):
    files = contents(["a", "b"])
    first, second = (torrent_of("t", files, piece_bytes=size) for size in (16384, 32768))
    async with daemon_here(state) as here:
        owner = await add(here, first, tmp_path / "own")
        guest = await add(here, second, tmp_path / "own")
        await until(lambda: "is a file of torrent 1, t, too" in guest.error)
        torrent_of("t", files, folder=seeder.folder)
        parameters = read_metainfo(first)
        seeder.start(parameters)
        owner.handle.connect_peer(seeder.address)
        await until(lambda: owner.is_finished)
        await until(lambda: guest.is_finished and not guest.error)
        await until(lambda: not guest.record.taking_over)
        assert {path.name: each for path, each in files_below(tmp_path / "own").items()} == files


# What is nobody's


async def test_a_file_that_is_too_long_for_the_torrent_is_refused(tmp_path, state):
    (tmp_path / "own" / "t").mkdir(parents=True)
    (tmp_path / "own" / "t" / "a").write_bytes(bytes(20_001))
    async with daemon_here(state) as here:
        for name in ("t", "own"):
            paths = {"t": ["a", "b"], "own": ["t"]}[name]
            folder = {"t": tmp_path / "own", "own": tmp_path}[name]
            with pytest.raises(RequestError, match="is there already, and is no file of this torrent"):
                await add(here, torrent_of(name, contents(paths)), folder)
        assert not here.library.torrents


@pytest.mark.parametrize("size", [100, 20_000])
async def test_a_file_that_holds_nothing_of_the_torrent_is_not_written_to(size, seeder, tmp_path, state):
    own = tmp_path / "own"
    torrent = torrent_of("t", contents(["a", "b"]), folder=seeder.folder)
    parameters = read_metainfo(torrent)
    seeder.start(parameters)
    (own / "t").mkdir(parents=True)
    stranger = own / "t" / "a"
    stranger.write_bytes(b"s" * size)

    async def is_kept(added):
        await until(lambda: "/t/a is there already, and holds nothing of this torrent" in added.error)
        await until(lambda: added.is_paused)
        assert files_below(own) == {stranger: b"s" * size}

    async with daemon_here(state) as here:
        added = await add(here, torrent, own)
        added.handle.connect_peer(seeder.address)
        await is_kept(added)
        await here.changes.apply([added], Run())
        await until(lambda: not added.error)
        await is_kept(added)
    async with daemon_here(state) as here:
        (added,) = here.library.torrents.values()
        await is_kept(added)
        stranger.rename(own / "kept")
        await here.changes.apply([added], Verify())
        await until(lambda: not added.record.taking_over)
        await until(lambda: not added.is_paused)
        added.handle.connect_peer(seeder.address)
        await until(lambda: added.is_finished)
        assert (own / "kept").read_bytes() == b"s" * size


@pytest.mark.parametrize(
    "came",
    [
        (b"s" * 30_000, "/t/a is there already, and is no file of this torrent"),
        (b"s" * 20_000, "/t/a is there already, and holds nothing of this torrent"),
    ],
    ids=["longer", "as long"],
)
@pytest.mark.parametrize("restarts", [False, True])
async def test_a_file_that_came_while_a_torrent_waited_is_not_written_over(came, restarts, seeder, tmp_path, state):
    own = tmp_path / "own"
    torrent = torrent_of("t", contents(["a", "b"]), folder=seeder.folder)
    seeder.start(read_metainfo(torrent))
    async with daemon_here(state) as here:
        await add(here, torrent, own, stopped=True)
        if not restarts:
            await is_left_alone(here, own, *came)
    if restarts:
        async with daemon_here(state) as here:
            (added,) = here.library.torrents.values()
            await is_left_alone(here, own, *came)
            (own / "t" / "a").unlink()
            await here.changes.apply([added], Run())
            added.handle.connect_peer(seeder.address)
            await until(lambda: added.is_finished)
            assert not added.record.untouched


async def is_left_alone(here, own, there, why):
    """Write a stranger's file to the torrent's place, start the torrent, and check that it stands still."""
    (added,) = here.library.torrents.values()
    (own / "t").mkdir(parents=True)
    (own / "t" / "a").write_bytes(there)
    await here.changes.apply([added], Run())
    await until(lambda: why in added.error)
    await until(lambda: added.is_paused)
    assert files_below(own) == {own / "t" / "a": there}


async def test_a_torrent_that_waited_uses_what_came_and_is_its_own(seeder, tmp_path, state):
    files = contents(["a", "b"])
    torrent = torrent_of("t", files, folder=seeder.folder)
    seeder.start(read_metainfo(torrent))
    async with daemon_here(state) as here:
        verified = await add(here, torrent_of("v", files), tmp_path / "own", stopped=True)
        started = await add(here, torrent_of("s", files), tmp_path / "own", stopped=True)
        for name in ("v", "s"):
            torrent_of(name, files, folder=tmp_path / "own")
        await here.changes.apply([verified], Verify())
        await until(lambda: verified.is_finished and not verified.record.untouched)
        assert not verified.record.taking_over
        await here.changes.apply([started], Run())
        await until(lambda: started.is_finished and not started.record.taking_over)
        assert verified.totals.downloaded == started.totals.downloaded == 0


async def test_torrents_that_wait_in_the_queue_are_looked_at_when_their_turn_comes(seeder, tmp_path, state):
    own = tmp_path / "own"
    torrents = [torrent_of(name, contents(["a"]), folder=seeder.folder) for name in ("first", "second", "third")]
    async with daemon_here(state) as here:
        await here.changes.edit_settings(
            lambda old: msgspec.structs.replace(old, download_queue_enabled=True, download_queue_size=1)
        )
        first, second, third = [await add(here, torrent, own) for torrent in torrents]
        await until(lambda: not first.record.untouched)
        assert [each.record.untouched for each in (second, third)] == [True, True]
        (own / "second").mkdir(parents=True)
        (own / "second" / "a").write_bytes(b"a stranger's")
        await here.changes.apply([first], Remove(delete_files=False))
        await until(lambda: "holds nothing of this torrent" in second.error)
        assert files_below(own) == {own / "second" / "a": b"a stranger's"}
        await here.changes.apply([second], Stop())
        third.handle.connect_peer(seeder.address)
        await until(lambda: not third.record.untouched)


async def test_a_file_that_comes_to_be_wanted_is_not_written_over_anothers(tmp_path, state):
    own = tmp_path / "own"
    async with daemon_here(state) as here:
        added = await begun(here, torrent_of("t", contents(["a", "b"], 32_768)), own, file_priorities=[4, 0])
        (own / "t").mkdir(parents=True)
        (own / "t" / "b").write_bytes(b"a stranger's")
        with pytest.raises(RequestError, match="a file of that name is there already"):
            await here.changes.apply([added], Select(lambda _: [4, 4]))
        assert added.record.file_priorities == [4, 0]
        (own / "t" / "b").unlink()
        await here.changes.apply([added], Select(lambda _: [4, 4]))


async def test_removing_a_torrent_with_its_files_keeps_those_that_were_not_found_to_be_its_own(tmp_path, state):
    (tmp_path / "own" / "t").mkdir(parents=True)
    (tmp_path / "own" / "t" / "a").write_bytes(b"a stranger's")
    async with daemon_here(state) as here:
        added = await add(here, torrent_of("t", contents(["a", "b"])), tmp_path / "own")
        await until(lambda: added.error)
        await here.changes.apply([added], Remove(delete_files=True))
        await here.changes.removals.ended()
        assert files_below(tmp_path / "own") == {tmp_path / "own" / "t" / "a": b"a stranger's"}


@pytest.mark.parametrize("restarts", [False, True])
async def test_removing_a_torrent_with_its_files_keeps_what_came_to_places_that_it_never_wrote_to(
    restarts, seeder, tmp_path, state
):
    own = tmp_path / "own"
    torrent = torrent_of("t", contents(["a", "b", "c", "sub/d"], 65_536), folder=seeder.folder)
    seeder.start(read_metainfo(torrent))
    async with daemon_here(state) as here:
        added = await add(here, torrent, own, file_priorities=[4, 0, 4, 0])
        added.handle.connect_peer(seeder.address)
        await until(lambda: added.is_finished)
        await here.changes.apply([added], Select(lambda _: [4, 0, 0, 0]))
        waiting = await add(here, torrent_of("w", contents(["a", "b"])), own, stopped=True)
        (own / "w").mkdir()
        strangers = [own / "t" / "b", own / "t" / "sub" / "d", own / "w" / "a"]
        for path in strangers:
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(b"a stranger's")
        if not restarts:
            await here.changes.apply([added, waiting], Remove(delete_files=True))
            await here.changes.removals.ended()
    if restarts:
        async with daemon_here(state) as here:
            await here.changes.apply(list(here.library.torrents.values()), Remove(delete_files=True))
            await here.changes.removals.ended()
    assert files_below(own) == dict.fromkeys(strangers, b"a stranger's")


async def test_a_torrent_that_was_removed_does_not_take_strangers_files_for_its_own(tmp_path, state):
    own = tmp_path / "own"
    torrent = torrent_of("t", contents(["a", "b"], 65_536), folder=own)
    async with daemon_here(state) as here:
        (own / "t" / "b").unlink()
        added = await add(here, torrent, own, file_priorities=[4, 0])
        await until(lambda: added.is_finished)
        (own / "t" / "b").write_bytes(b"a stranger's")
        await here.changes.apply([added], Remove(delete_files=False))
        added = await add(here, torrent, own)
        await until(lambda: "/t/b is there already, and holds nothing of this torrent" in added.error)


@pytest.mark.slow
async def test_a_torrent_that_took_files_over_goes_on_once_that_can_be_kept(tmp_path, state, caplog):
    own = tmp_path / "own"
    torrent = torrent_of("t", contents(["a"], 64 << 20), folder=own)  # so that checking takes a moment
    async with daemon_here(state) as here:
        added = await add(here, torrent, own, stopped=True)
        with contextlib.closing(sqlite3.connect(state / STORE_FILE)) as other:
            await here.changes.apply([added], Run())
            other.execute("BEGIN EXCLUSIVE")  # which has the daemon's own changes fail, as a full disk does
            await until(lambda: "A torrent whose files were there already waits" in caplog.text)
            assert added.record.taking_over
        await until(lambda: added.state is State.SEEDING and not added.record.taking_over)


def test_a_new_file_with_the_inode_of_one_that_was_left_is_not_taken_for_it(tmp_path):
    place = Entry(str(tmp_path / "a"), 0)
    (tmp_path / "a").write_bytes(b"left")
    left = disk.left_at([place], {})
    assert disk.are_left([place], left)
    before = dict.fromkeys(left, time.time() - 2 * disk.CLOSED_WITHIN_S)
    os.utime(tmp_path / "a", (1e9, 1e9))  # as archives do
    assert not disk.are_left([place], before)


def test_a_file_that_comes_as_a_torrent_is_removed_is_left_by_it_until_libtorrent_has_closed_it(tmp_path):
    place = Entry(str(tmp_path / "a"), 0)
    left = disk.left_at([place], {}, may_come=True)  # and the process is killed after that
    (tmp_path / "a").write_bytes(b"the first blocks of a piece")
    assert disk.are_left([place], left)
    others = [Entry(str(tmp_path / f"{number}"), 0) for number in range(2 * disk.MOST_LEFT)]
    assert disk.are_left([place], disk.left_at([place, *others], {}, may_come=True)), "what is there is kept first"
    assert not disk.are_left([place], dict.fromkeys(left, time.time() - 2 * disk.CLOSED_WITHIN_S))
    (tmp_path / "a").unlink()
    left = disk.left_at([place], left)
    (tmp_path / "a").write_bytes(b"a stranger's")
    assert not disk.are_left([place], left)


async def test_what_a_kill_left_in_the_folder_of_a_magnet_link_is_the_torrents_own(tmp_path, state):
    files, own = contents(["a"], 20_000), tmp_path / "own"
    torrent = torrent_of("t", files, folder=tmp_path / "seeds")
    async with daemon_here(state) as here:
        await add(here, torrent, own, stopped=True)
    store = Store(state)
    await store.open()
    ((_, record, resume),) = await store.torrents()
    aside = own / f".{record.infohash}{INCOMING}"
    record.folder, record.folder_when_done, record.untouched = str(aside), str(own), False
    await store.put(record, resume)
    await store.close()
    (aside / "t").mkdir(parents=True)
    (aside / "t" / "a").write_bytes(files["a"][:10_000])
    async with daemon_here(state) as here:
        (added,) = here.library.torrents.values()
        await until(lambda: added.record.folder == str(own))
        await here.changes.apply([added], Run())
        await until(lambda: added.state is State.DOWNLOADING and not added.record.untouched)
        assert (added.error, added.record.taking_over) == ("", False)
    assert files_below(own) == {own / "t" / "a": files["a"][:10_000]}


async def test_what_the_torrent_left_before_goes_with_it_though_it_is_wanted_no_more(tmp_path, state):
    own = tmp_path / "own"
    torrent = torrent_of("t", contents(["a", "b"], 65_536), folder=own)
    async with daemon_here(state) as here:
        added = await add(here, torrent, own)
        await until(lambda: added.is_finished)
        for _ in range(2):  # also when it is left by one that never wrote to it
            await here.changes.apply([added], Remove(delete_files=False))
            added = await add(here, torrent, own, file_priorities=[4, 0], stopped=True)
        await here.changes.apply([added], Remove(delete_files=True))
        await here.changes.removals.ended()
    assert files_below(own) == {}


async def test_a_torrent_that_has_no_way_out_yet_is_looked_at_when_it_has(tmp_path, state):
    own = tmp_path / "own"
    async with daemon_here(state) as here:
        parameters = read_metainfo(torrent_of("t", contents(["a"])))
        added, _ = await here.changes.add(parameters, AddRequest(hops=1, folder=str(own)))
        (own / "t").mkdir(parents=True)
        (own / "t" / "a").write_bytes(b"a stranger's")
        assert (added.activity, added.record.untouched) == (Activity.RUNNING, True)
        await here.changes.apply([added], Remove(delete_files=True))
        await here.changes.removals.ended()
    assert files_below(own) == {own / "t" / "a": b"a stranger's"}


@pytest.mark.parametrize("edit", [Move("other"), Rename("t", "u"), Rename("t/b", "u")], ids=["move", "folder", "file"])
@pytest.mark.parametrize("is_begun", [False, True])
async def test_what_is_at_a_place_that_was_never_written_to_is_neither_moved_nor_renamed(
    edit, is_begun, seeder, tmp_path, state
):
    own = tmp_path / "own"
    torrent = torrent_of("t", contents(["a", "b"], 65_536), folder=seeder.folder)
    seeder.start(read_metainfo(torrent))
    edit = dataclasses.replace(edit, folder=str(tmp_path / "other")) if isinstance(edit, Move) else edit
    async with daemon_here(state) as here:
        added = await add(here, torrent, own, file_priorities=[4, 0], stopped=not is_begun)
        if is_begun:
            added.handle.connect_peer(seeder.address)
            await until(lambda: added.is_finished)
        (own / "t").mkdir(parents=True, exist_ok=True)
        (own / "t" / "b").write_bytes(b"a stranger's")
        with pytest.raises(RequestError, match="/t/b is there, and is no file of this torrent"):
            await here.changes.apply([added], edit)
        assert (own / "t" / "b").read_bytes() == b"a stranger's"
        (own / "t" / "b").unlink()
        await here.changes.apply([added], edit)


def test_a_copy_that_was_cut_short_goes_with_its_torrent_and_a_strangers_file_stays(tmp_path):
    source, target = tmp_path / "source", tmp_path / "target"
    begun = b"1" * 100_000 + bytes(900_000)  # libtorrent gives a copy its whole length first
    there = {"a": b"123456", "b": b"123456", "d": b"1" * 1_000_000}
    for folder, files in ((source, there), (target, {"a": b"123", "b": b"??", "c": b"1", "d": begun})):
        folder.mkdir()
        for name, content in files.items():
            (folder / name).write_bytes(content)
    found = [
        file.path for file in disk.files_in(str(target), "abcd") if disk.is_in_the_way(file, str(source), str(target))
    ]
    assert found == [str(target / "b")]
    assert not any(disk.is_in_the_way(file, str(source), "") for file in disk.files_in(str(target), "abc"))


async def test_what_is_broken_in_a_torrents_own_files_is_mended(seeder, tmp_path, state):
    files = contents(["a", "b", "c"], 65_536)
    torrent = torrent_of("t", files, folder=seeder.folder)
    torrent_of("t", {**files, "b": files["b"][:40_000] + os.urandom(25_536)}, folder=tmp_path / "own")
    seeder.start(read_metainfo(torrent))
    async with daemon_here(state) as here:
        added = await add(here, torrent, tmp_path / "own")
        await until(lambda: not added.record.taking_over)
        added.handle.connect_peer(seeder.address)
        await until(lambda: added.is_finished)  # libtorrent writes what it has checked a moment later
        await until(lambda: {path.name: each for path, each in files_below(tmp_path / "own").items()} == files)


async def test_a_torrent_that_is_added_again_knows_the_files_that_it_has_left(seeder, tmp_path, state):
    """Files without a whole piece count, too; a file that has replaced one since then is a stranger's."""
    files, place = contents(["a"], 20_000), tmp_path / "own" / "t" / "a"
    torrent = torrent_of("t", files, folder=seeder.folder)
    seeder.start(read_metainfo(torrent))
    async with daemon_here(state) as here:
        added = await begun(here, torrent, tmp_path / "own")
        place.parent.mkdir(parents=True)
        place.write_bytes(files["a"][:10_000])  # as far as it had come
        await here.changes.apply([added], Remove())
    async with daemon_here(state) as here:
        added = await add(here, torrent, tmp_path / "own")
        assert not added.record.taking_over
        added.handle.connect_peer(seeder.address)
        await until(lambda: added.is_finished)
        await here.changes.apply([added], Remove())
        os.utime(place, (2e9, 2e9))
        added = await add(here, torrent, tmp_path / "own")
        assert added.record.taking_over


async def test_files_that_come_while_a_torrent_is_removed_are_its_own(tmp_path, state, monkeypatch):
    """This also holds once it was added and removed again, before its files were known."""
    files, place = contents(["a", "b"], 20_000), tmp_path / "own" / "t"
    torrent = torrent_of("t", files, folder=tmp_path / "seeds")
    link = lt.make_magnet_uri(read_metainfo(torrent))
    async with daemon_here(state) as here:
        added = await add(here, torrent, tmp_path / "own", stopped=True)
        close = here.library.close

        def write_and_close(closed):
            place.mkdir(parents=True)
            (place / "b").write_bytes(files["b"][:10_000])
            return close(closed)

        with monkeypatch.context() as patched:
            patched.setattr(here.library, "close", write_and_close)
            await here.changes.apply([added], Remove())
        await here.changes.apply([await add(here, link, tmp_path / "own")], Remove())
        assert not (await add(here, torrent, tmp_path / "own")).record.taking_over


async def test_a_stopped_torrent_that_waits_for_its_check_is_not_saved_again_and_again(tmp_path, state):
    torrent = torrent_of("t", contents(["a"], 20_000), folder=tmp_path / "own")
    async with daemon_here(state) as here:
        added = await add(here, torrent, tmp_path / "own", stopped=True)
        assert added.saved.mark == added.summary.kept


async def test_a_torrent_knows_the_files_that_it_has_left_before_it_was_elsewhere(tmp_path, state):
    """It may have been added and removed in several folders since."""
    async with daemon_here(state) as here:
        torrent = await left_in_part(here, tmp_path)
        for folder, edit in (("other", Remove()), ("another", Remove(delete_files=True))):
            await here.changes.apply([await add(here, torrent, tmp_path / folder)], edit)
        assert not (await add(here, torrent, tmp_path / "own")).record.taking_over


async def test_a_file_that_is_wanted_again_is_the_torrents_where_it_was_there_before(tmp_path, state):
    """After a restart, libtorrent knows nothing more of a file of which no piece is whole."""
    files, place = contents(["a", "b", "c"], 20_000), tmp_path / "own" / "t"
    torrent = torrent_of("t", files, folder=tmp_path / "seeds")
    async with daemon_here(state) as here:
        added = await begun(here, torrent, tmp_path / "own")
        place.mkdir(parents=True)
        (place / "b").write_bytes(files["b"][:10_000])
        await here.changes.apply([added], Select(lambda torrent: [4, 0, 0]))
        await until(lambda: added.record.written == [1])
    (place / "c").write_bytes(b"the owner's")
    async with daemon_here(state) as here:
        (added,) = here.library.torrents.values()
        with pytest.raises(RequestError, match="a file of that name is there already"):
            await here.changes.apply([added], Select(lambda torrent: [4, 4, 4]))
        await here.changes.apply([added], Select(lambda torrent: [4, 4, 0]))
        assert added.record.written == []
        assert (place / "c").read_bytes() == b"the owner's"


@pytest.mark.parametrize("is_known", [True, False])
async def test_a_file_that_comes_while_it_is_unwanted_is_the_torrents(is_known, tmp_path, state, monkeypatch):
    """libtorrent writes what it has in memory, and what it was told before, until it has carried out the change."""
    seeder = Seeder(tmp_path / "seeds")
    torrent = torrent_of("t", {"a": os.urandom(20_000), "b": os.urandom(100)}, folder=seeder.folder)
    seeder.start(parameters := lt.load_torrent_buffer(torrent))
    select = Torrent.select

    def write_and_select(torrent, priorities):
        place = Path(torrent.record.folder, "t", "b")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes((seeder.folder / "t" / "b").read_bytes())
        select(torrent, priorities)

    async with daemon_here(state) as here:
        if is_known:
            added = await begun(here, torrent, tmp_path / "own")
            monkeypatch.setattr(Torrent, "select", write_and_select)
            await here.changes.apply([added], Select(lambda torrent: [4, 0]))
        else:
            monkeypatch.setattr(Torrent, "select", write_and_select)
            added = await add(here, f"{link_of(parameters, seeder.address)}&so=0", tmp_path / "own")
        await until(lambda: added.layout is not None and not added.selections and not added.record.is_incoming)
        await until(lambda: added.record.written == [1])
        await here.changes.apply([added], Remove(delete_files=True))
        await here.changes.removals.ended()
        assert not (tmp_path / "own" / "t").exists()


async def test_a_torrent_finds_the_files_that_it_has_left_in_another_folder(tmp_path, state):
    """They are its own also where no piece is whole, as nobody else can have made them."""
    async with daemon_here(state) as here:
        torrent = await left_in_part(here, tmp_path)
        added = await add(here, torrent, tmp_path / "other")
        await here.changes.apply([added], Move(str(tmp_path / "own"), with_files=False))
        await until(lambda: not added.is_verifying)
        assert (added.error, added.record.taking_over, added.record.folder) == ("", False, str(tmp_path / "own"))


async def test_a_magnet_link_finds_what_is_there(tmp_path, state):
    seeder = Seeder(tmp_path / "seeds", speed=200_000)
    link = seeder.link_to("t", {"a": 1_500_000, "b": 1000})
    own = tmp_path / "own"
    make_torrent(own, "unrelated", {"f": 10})
    os.symlink(seeder.folder / "t", own / "t")
    async with daemon_here(state) as here:
        added = await add(here, link, own)
        await until(lambda: added.is_finished and added.record.folder == str(own))
        assert added.totals.downloaded < 1_000_000  # it has begun when its files become known
        await until(lambda: sorted(os.listdir(own)) == ["t", "unrelated"])  # its own folder goes last


# Pure parts


def test_files_are_in_each_others_way_where_a_path_is_one_or_is_above_another():
    mine = [Entry("/d/t/a", 1), Entry("/d/t/b", 2)]
    assert first_clash(mine, [Entry("/d/t/c", 1)], may_share=False) == ""
    assert first_clash(mine, [Entry("/d/t/b", 2)], may_share=False) == "/d/t/b"
    assert first_clash(mine, [Entry("/d/t/b", 2)], may_share=True) == ""
    assert first_clash(mine, [Entry("/d/t/b", 3)], may_share=True) == "/d/t/b"
    assert first_clash(mine, [Entry("/d/t/b/x", 3)], may_share=True) == "/d/t/b"
    assert first_clash(mine, [Entry("/d/t", 3)], may_share=True) == "/d/t/a"


def test_owners_near_a_path_are_those_at_it_above_it_and_below_it():
    registry = PathRegistry()
    registry.put("one", ["/d/t"])
    registry.put("two", ["/d/t/x/y", "/e"])
    registry.put("three", ["/d/tt"])
    assert registry.near(["/d/T"]) == {"one", "two"}
    assert registry.near(["/d/t/x/y/z"]) == {"one", "two"}
    assert registry.near(["/d"]) == {"one", "two", "three"}
    registry.put("two", ["/f"])
    assert registry.near(["/d/t", "/e"]) == {"one"}
    for owner in ("one", "two", "three", "four"):
        registry.drop(owner)
    assert registry.near(["/d", "/f"]) == set()
    assert not registry._owners_at
    assert not registry._owners_below
