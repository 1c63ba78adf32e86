"""Tests unmounted, full and read-only disks, and truncated files: no data is lost, and downloads go on."""

import asyncio
import contextlib
import os
import shutil
import subprocess

import libtorrent as lt
import pytest

from tests.tunnel_pool.daemon.running import daemon_here, make_torrent
from tests.worlds.network import until
from tunnel_pool.daemon.changes.edits import AddRequest, Move, Rename, Run, SetFields, Stop, Verify
from tunnel_pool.daemon.errors import RequestError
from tunnel_pool.daemon.record import Record
from tunnel_pool.daemon.rules.queue import Activity
from tunnel_pool.daemon.rules.room import AHEAD_BYTES, Budget, FreeSpace
from tunnel_pool.daemon.storage import disk as disk_module
from tunnel_pool.daemon.storage import room
from tunnel_pool.daemon.storage.disk import undo_move
from tunnel_pool.daemon.storage.presence import Part, Presence, expected_parts, presence_of
from tunnel_pool.daemon.storage.room import Room
from tunnel_pool.daemon.upkeep import alerts
from tunnel_pool.private_swarm.swarm import same_bytes
from tunnel_pool.torrent.metainfo import parse_torrent

SLOWLY = {"download_limited": True, "download_limit_kb": 4000}
TMPFS = ("-t", "tmpfs", "none", "-o")


@pytest.fixture
def state(tmp_path):
    (tmp_path / "state").mkdir()
    return tmp_path / "state"


@pytest.fixture
def big(seeder):
    """Return a magnet link of one file, which names its seeder."""
    return seeder.link_to("big", {"a.bin": 20_000_000})


@pytest.fixture
def two(seeder):
    return seeder.link_to("two", {"a.bin": 4_000_000, "b.bin": 20_000_000})


async def added(here, link, file_priorities=(), **others):
    wish = AddRequest(hops=0, file_priorities=file_priorities, others=others)
    torrent, _ = await here.changes.add(parse_torrent(link), wish)
    return torrent


async def finished(torrent):
    await until(lambda: torrent.is_finished and not torrent.error, 60)


def is_right(seeder, folder, path="big/a.bin"):
    return same_bytes(seeder.folder / path, folder / path)


async def test_a_torrent_whose_folder_is_gone_waits_until_it_is_back(seeder, big, two, state, tmp_path):
    """Neither while the daemon runs nor at its start is anything made or downloaded in its place."""
    disk, away = tmp_path / "disk", tmp_path / "away"
    folder = disk / "downloads"
    folder.mkdir(parents=True)
    async with daemon_here(state, folder) as here:
        torrent = await added(here, big)
        await finished(torrent)
        disk.rename(away)
        await until(lambda: torrent.is_missing)
        assert torrent.error.startswith(f"no data found in {folder}: connect its disk")
        await here.changes.apply([torrent], Run())
        assert torrent.error
        away.rename(disk)
        await finished(torrent)
    disk.rename(away)
    async with daemon_here(state, folder) as here:
        (torrent,) = here.library.torrents.values()
        assert torrent.is_missing
        assert torrent.progress == 1
        another = await added(here, two)
        await asyncio.sleep(3)  # it is looked for each second, and then for more
        assert another.is_missing
        assert not disk.exists()
        away.rename(disk)
        await finished(torrent)
        await finished(another)
        assert torrent.summary.total_payload_download == 0
    assert is_right(seeder, folder)


@pytest.mark.slow
async def test_a_disk_is_unmounted_in_mid_download(seeder, big, mount, state, tmp_path):
    (tmp_path / "behind").mkdir()
    disk = mount("disk", "--bind", tmp_path / "behind")
    async with daemon_here(state, disk) as here:
        torrent = await added(here, big, **SLOWLY)
        await until(lambda: torrent.summary.total_done > 4_000_000)
        subprocess.run(["umount", "-l", disk], check=True)
        await until(lambda: torrent.is_missing)
        await until(lambda: torrent.is_paused)
        mount("disk", "--bind", tmp_path / "behind")
        await here.changes.apply([torrent], SetFields({"download_limited": False}))
        await finished(torrent)
        assert torrent.summary.total_payload_download < 20_000_000
    assert is_right(seeder, tmp_path / "behind")


async def test_a_torrent_whose_files_were_deleted_is_downloaded_again_when_it_is_verified(seeder, big, state, tmp_path):
    async with daemon_here(state, tmp_path) as here:
        torrent = await added(here, big)
        await finished(torrent)
        shutil.rmtree(tmp_path / "big")
        await here.changes.apply([torrent], Stop())
        await here.changes.apply([torrent], Run())
    async with daemon_here(state, tmp_path) as here:
        (torrent,) = here.library.torrents.values()
        assert torrent.is_missing
        await here.changes.apply([torrent], Verify())
        await until(lambda: not torrent.is_finished)
        await finished(torrent)
    assert is_right(seeder, tmp_path)


async def test_a_file_that_was_cut_short_while_the_daemon_was_away_is_downloaded_again(seeder, two, state, tmp_path):
    """libtorrent looks at the sizes of finished torrents alone, and fills a file of others up with zeros."""
    async with daemon_here(state, tmp_path) as here:
        torrent = await added(here, two, file_priorities=[7, 1], **SLOWLY)
        await until(lambda: torrent.layout is not None and torrent.file_bytes()[0] == 4_000_000)
        assert not torrent.is_finished
    os.truncate(tmp_path / "two/a.bin", 1_000_000)
    async with daemon_here(state, tmp_path) as here:
        (torrent,) = here.library.torrents.values()
        await until(lambda: torrent.is_checking or torrent.file_bytes()[0] < 4_000_000)
        await here.changes.apply([torrent], SetFields({"download_limited": False}))
        await finished(torrent)
    assert is_right(seeder, tmp_path, "two/a.bin")
    assert is_right(seeder, tmp_path, "two/b.bin")


@pytest.mark.slow
async def test_so_much_stays_free_as_is_asked_for(seeder, big, mount, state):
    disk = mount("disk", *TMPFS, "size=40m")
    least = shutil.disk_usage(disk).free
    async with daemon_here(state, disk, min_free_bytes=25 << 20) as here:
        torrent = await added(here, big)
        await until(lambda: torrent.activity is Activity.NO_ROOM)
        for _ in range(30):
            least = min(least, shutil.disk_usage(disk).free)
            await asyncio.sleep(0.05)
        assert least >= 25 << 20
        subprocess.run(["mount", "-o", "remount,size=60m", disk], check=True)
        await finished(torrent)
        assert shutil.disk_usage(disk).free >= 25 << 20
    assert is_right(seeder, disk)


async def test_a_download_goes_on_when_a_disk_that_others_filled_has_room_again(seeder, big, mount, state):
    disk = mount("disk", *TMPFS, "size=40m")
    async with daemon_here(state, disk, min_free_bytes=0) as here:
        torrent = await added(here, big, **SLOWLY)
        await until(lambda: torrent.summary.total_done > 2_000_000)
        filler = disk / "filler"
        with contextlib.suppress(OSError):  # the download takes some of it meanwhile
            filler.write_bytes(bytes(shutil.disk_usage(disk).free))
        await until(lambda: torrent.activity is Activity.NO_ROOM)
        filler.unlink()
        await here.changes.apply([torrent], SetFields({"download_limited": False}))
        await finished(torrent)
    assert is_right(seeder, disk)


async def test_a_download_goes_on_when_its_disk_can_be_written_to_again(seeder, big, mount, state, monkeypatch):
    monkeypatch.setattr(alerts, "TRY_AGAIN_S", 0.5)
    disk = mount("disk", *TMPFS, "size=60m,ro")
    async with daemon_here(state, disk, min_free_bytes=0) as here:
        torrent = await added(here, big)
        await until(lambda: torrent.error)
        assert torrent.error.startswith(f"Read-only file system: {disk}/")
        subprocess.run(["mount", "-o", "remount,rw", disk], check=True)
        await finished(torrent)
        await until(lambda: not torrent.record.folder_when_done)
    assert is_right(seeder, disk)


async def test_a_folder_that_is_renamed_leaves_nothing_behind(seeder, two, state, tmp_path):
    async with daemon_here(state, tmp_path / "to") as here:
        torrent = await added(here, two)
        await finished(torrent)
        (tmp_path / "to/two/notes").write_text("the owner's")
        await here.changes.apply([torrent], Rename("two", "second"))
        assert sorted(path.name for path in (tmp_path / "to/two").iterdir()) == ["notes"]
        (tmp_path / "to/two/notes").unlink()
        await here.changes.apply([torrent], Rename("second", "two"))
        assert [path.name for path in (tmp_path / "to").iterdir()] == ["two"]
    assert same_bytes(seeder.folder / "two/b.bin", tmp_path / "to/two/b.bin")


async def test_a_torrent_is_not_looked_for_where_nothing_of_it_is(big, state, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    async with daemon_here(state, tmp_path / "to") as here:
        torrent = await added(here, big)
        await finished(torrent)
        with pytest.raises(RequestError, match=r"none of its files is in .*/elsewhere: it stays where it is"):
            await here.changes.apply([torrent], Move(str(tmp_path / "elsewhere"), with_files=False))
        assert torrent.progress == 1
        (tmp_path / "to/big").rename(tmp_path / "elsewhere/big")
        await here.changes.apply([torrent], Move(str(tmp_path / "elsewhere"), with_files=False))
        await finished(torrent)
        assert torrent.record.folder == str(tmp_path / "elsewhere")


@pytest.mark.parametrize(("is_quota", "again_s", "quota_again_s"), [(False, 0.0, 1000.0), (True, 1000.0, 0.0)])
async def test_where_libtorrent_found_no_room_it_is_left_alone_for_a_while(
    is_quota, again_s, quota_again_s, monkeypatch
):
    """The free space of a folder does not show a quota, so that libtorrent's error decides for a while."""
    monkeypatch.setattr(disk_module, "free_spaces", lambda folders: {"/a": FreeSpace(1, 1 << 40)})
    watched = Room(0)
    watched.found_none("/a", is_quota)
    await watched.look(["/a"])
    assert not watched.budget().allot("/a", 1, True)
    monkeypatch.setattr(room, "AGAIN_S", again_s)
    monkeypatch.setattr(room, "QUOTA_AGAIN_S", quota_again_s)
    watched.found_none("/a", is_quota)
    await watched.look(["/a"])
    assert watched.budget().allot("/a", 1, True)


def test_room_is_shared_out_to_those_first_in_the_queue():
    budget = Budget({"/a": FreeSpace(1, 1000), "/b": FreeSpace(1, 1000), "/c": FreeSpace(2, 1000)}, ["/full"], 200)
    assert budget.allot("/a", 500, False)
    assert not budget.allot("/b", 400, False)
    assert budget.allot("/b", 300, False)
    assert budget.allot("/c", 800, False)
    assert budget.allot("/unknown", 10**12, False)
    assert not budget.allot("/full", 1, False)
    assert budget.allot("/full", 0, False)


def test_what_does_not_fit_stops_early_and_goes_on_late():
    def may_write(free_bytes, left_bytes, is_waiting):
        return Budget({"/a": FreeSpace(1, free_bytes)}, (), 0).allot("/a", left_bytes, is_waiting)

    assert may_write(AHEAD_BYTES, 10 * AHEAD_BYTES, False)
    assert not may_write(AHEAD_BYTES - 1, 10 * AHEAD_BYTES, False)
    assert not may_write(2 * AHEAD_BYTES - 1, 10 * AHEAD_BYTES, True)
    assert may_write(2 * AHEAD_BYTES, 10 * AHEAD_BYTES, True)
    assert may_write(AHEAD_BYTES - 1, AHEAD_BYTES - 1, True)


@pytest.mark.parametrize(
    ("has", "priorities", "least"),
    [
        ([True] * 4, [], {"a": 40000, "d/b": 20000}),
        ([True, False, True, True], [], {"a": 40000, "d/b": 20000}),
        ([True, True, False, False], [], {"a": 32768}),
        ([False] * 4, [], {}),
        ([], [], {}),
        ([True] * 4, [0, 4], {"d/b": 20000}),
    ],
)
def test_a_file_is_as_long_as_its_last_piece_says(has, priorities, least, tmp_path):
    info = lt.torrent_info(lt.bdecode(make_torrent(tmp_path, "t", {"a": 40000, "d/b": 20000})))
    record = Record("ab", 1, 0, "t", "/f", 0, 0.0, file_priorities=priorities)
    parts = expected_parts(record, info.layout(), info.layout().file_path, has)
    assert parts == [Part(f"/f/t/{name}", size) for name, size in least.items()]


def test_what_is_there_is_told_by_sizes(tmp_path):
    (tmp_path / "a").write_bytes(bytes(10))
    there, short, gone = Part(str(tmp_path / "a"), 10), Part(str(tmp_path / "a"), 11), Part(str(tmp_path / "a/b"), 1)
    assert presence_of([there]) is Presence.THERE
    assert presence_of([there, short]) is Presence.SHORT
    assert presence_of([there, gone]) is Presence.SHORT
    assert presence_of([gone, gone]) is Presence.GONE
    assert presence_of([]) is Presence.THERE


def test_what_a_failed_move_left_goes_and_what_it_has_moved_comes_back(tmp_path):
    source, target = tmp_path / "source", tmp_path / "target"
    for path, content in (("t/a", b"whole"), ("t/b", b"another"), ("t/c", b"third")):
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        (source / path).write_bytes(content)
    for path, content in (("t/a", b"whole"), ("t/b", b"ano\0\0\0\0"), ("t/c", b"a stranger's"), ("t/d/e", b"moved")):
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        (target / path).write_bytes(content)
    undo_move(["t/a", "t/b", "t/c", "t/d/e", "t/f", "../g"], str(source), str(target))
    assert {path: path.read_bytes() for path in target.rglob("*") if path.is_file()} == {
        target / "t/c": b"a stranger's"
    }
    assert not (target / "t/d").exists()
    left = {path.relative_to(source).as_posix(): path.read_bytes() for path in source.rglob("*") if path.is_file()}
    assert left == {"t/a": b"whole", "t/b": b"another", "t/c": b"third", "t/d/e": b"moved"}


@pytest.mark.slow
async def test_a_move_that_finds_no_room_leaves_nothing_where_it_was_to_go(seeder, two, mount, state, tmp_path):
    target = mount("disk", *TMPFS, "size=10m")
    home = tmp_path / "home"
    async with daemon_here(state, home) as here:
        torrent = await added(here, two)
        await finished(torrent)
        await here.changes.apply([torrent], Move(str(target)))
        await until(lambda: torrent.error and not torrent.is_moving)
        assert "No space left" in torrent.error
        assert [path for path in target.rglob("*") if path.is_file()] == []
        assert is_right(seeder, home, "two/a.bin")
        assert is_right(seeder, home, "two/b.bin")
        await here.changes.apply([torrent], Verify())
        await finished(torrent)
        assert torrent.summary.total_payload_download < 25_000_000, "nothing is fetched anew"
