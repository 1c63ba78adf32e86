"""Tests the owner's program that runs when a torrent is downloaded: its environment, and that it can do no harm."""

import asyncio
import os

import psutil
import pytest

from tests.tunnel_pool.daemon.rpc import Rpc
from tests.tunnel_pool.daemon.running import daemon, daemon_here, make_torrent
from tests.worlds.network import until
from tunnel_pool.cli.daemon import options_of
from tunnel_pool.cli.main import make_parser
from tunnel_pool.daemon.changes.edits import AddRequest, Rename
from tunnel_pool.daemon.done_script import DoneScript
from tunnel_pool.private_swarm.swarm import same_bytes
from tunnel_pool.system.errors import UsageError
from tunnel_pool.torrent.metainfo import parse_torrent, read_metainfo

NASTY = "$(touch hacked); `touch hacked` \"'&|\n*"


def script_at(path, text):
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o700)
    return path


def is_running(pid):
    """Return whether a process runs; an ended one may be a zombie until its new parent reaps it."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def downloaded(here, seeder, name):
    wish = AddRequest(hops=0, labels=["mine", "x"], others={"bandwidth_priority": 1})
    link = parse_torrent(seeder.link_to("t", {"a": 100_000}))
    torrent, _ = await here.changes.add(link, wish)
    await until(lambda: torrent.is_finished)
    if name is not None:
        await here.changes.apply([torrent], Rename("t", name))
    return torrent


async def test_whoever_hears_that_a_torrent_is_whole_finds_its_files(seeder, tmp_path):
    """libtorrent 2.1 says so before it has written them."""
    sizes, seen = {f"{number}": 1000 for number in range(1000)}, []
    torrent = make_torrent(seeder.folder, "t", sizes, piece_bytes=1 << 20)
    seeder.start(read_metainfo(torrent))
    parameters = read_metainfo(torrent)
    parameters.peers = [tuple(seeder.address)]

    def are_there():
        return all(same_bytes(seeder.folder / "t" / name, tmp_path / "own" / "t" / name) for name in sizes)

    async with daemon_here(tmp_path) as here, Rpc(here.address) as rpc:
        here.library.on_done.append(lambda torrent: seen.append(are_there()))
        await here.changes.add(parameters, AddRequest(hops=0, folder=str(tmp_path / "own")))
        async with asyncio.timeout(30):
            while True:
                fields = ["percent_done", "left_until_done", "status"]
                (row,) = (await rpc.call("torrent_get", {"fields": fields}))["torrents"]
                if row["percent_done"] == 1 or row["status"] == 6 or not row["left_until_done"]:
                    break
        assert are_there()
        await until(lambda: seen)
        assert seen == [True]


async def test_the_environment_tells_of_the_torrent_and_of_nothing_else(seeder, tmp_path, monkeypatch):
    monkeypatch.setenv("TUNNEL_POOL_RPC_PASSWORD", "secret")
    said = tmp_path / "said"
    script = script_at(tmp_path / "done", f"env -0 > {said}.new && mv {said}.new {said}")
    async with daemon_here(tmp_path, script_done=script) as here:
        torrent = await downloaded(here, seeder, None)
        await until(said.exists)
        told = dict(line.split("=", 1) for line in said.read_text().split("\0") if line)
        assert told["TR_TORRENT_NAME"] == "t"
        assert told["TR_TORRENT_DIR"] == str(tmp_path)
        assert told["TR_TORRENT_HASH"] == torrent.record.infohash
        assert (told["TR_TORRENT_ID"], told["TR_TORRENT_LABELS"]) == ("1", "mine,x")
        assert told["TR_TORRENT_PRIORITY"] == "1"
        assert int(told["TR_TORRENT_BYTES_DOWNLOADED"]) >= 100_000
        assert {"TR_APP_VERSION", "TR_TIME_LOCALTIME", "TR_TORRENT_TRACKERS", "PATH"} <= told.keys()
        assert "secret" not in told.values()
        said.unlink()
        again = make_torrent(tmp_path, "there", {"a": 50_000})  # whole from the beginning
        other, _ = await here.changes.add(read_metainfo(again), AddRequest(hops=0))
        await until(lambda: other.is_finished and other.record.done_s)
        assert not said.exists()


async def test_a_name_is_no_command(seeder, tmp_path):
    said = tmp_path / "said"
    script = script_at(tmp_path / "done", f'printf %s "$TR_TORRENT_NAME" > {said}.new && mv {said}.new {said}')
    async with daemon_here(tmp_path) as here:
        torrent = await downloaded(here, seeder, NASTY)
        runs = DoneScript(script, 10)
        runs.run_for(torrent)
        await until(said.exists)
        await runs.close()
    assert said.read_text() == NASTY
    assert not list(tmp_path.glob("**/hacked"))


async def test_a_program_that_hangs_is_ended_with_what_it_has_started(seeder, tmp_path, caplog):
    pids = tmp_path / "pids"
    text = f"trap '' TERM; sleep 600 & echo $$ $! > {pids}.new; mv {pids}.new {pids}; wait; sleep 600"
    script = script_at(tmp_path / "done", text)
    async with daemon_here(tmp_path, script_done=script, script_limit_s=1) as here:
        await downloaded(here, seeder, None)
        await until(pids.exists)
        started = [int(pid) for pid in pids.read_text().split()]
        await until(lambda: not any(map(is_running, started)), 20)
        assert [line for line in caplog.messages if "did not end within 1 s" in line]
        assert (await here.changes.add(parse_torrent("ab" * 20), AddRequest(hops=0)))[0]  # all else goes on


async def test_at_the_end_of_the_daemon_it_is_ended_too(seeder, tmp_path):
    pids = tmp_path / "pids"
    script = script_at(tmp_path / "done", f"echo $$ > {pids}.new; mv {pids}.new {pids}; exec sleep 600")
    async with daemon_here(tmp_path, script_done=script) as here:
        await downloaded(here, seeder, None)
        await until(pids.exists)
    assert not is_running(int(pids.read_text()))


@pytest.mark.parametrize("how", ["relative", "missing", "no program"])
def test_what_is_no_program_is_refused_at_the_start(how, tmp_path):
    (tmp_path / "text").write_text("hello")
    path = {"relative": "done", "missing": tmp_path / "missing", "no program": tmp_path / "text"}[how]
    with pytest.raises(UsageError, match="is no program"):
        options_of(make_parser(["daemon"]).parse_args(["daemon", f"--script-done={path}"]))


async def test_files_are_readable_by_whom_the_umask_lets(seeder, tmp_path):
    link = seeder.link_to("t", {"a": 100_000})
    path = tmp_path / "downloads/t/a"
    before = os.umask(0o077)
    try:
        async with daemon(tmp_path, "--workers=0", "--hops=0", "--umask=0027") as (_, address):
            async with Rpc(address) as rpc:
                await rpc.call("torrent_add", {"filename": link})
                await until(lambda: path.exists() and path.stat().st_size == 100_000)
            assert path.stat().st_mode & 0o777 == 0o640
            assert path.parent.stat().st_mode & 0o777 == 0o750
            assert (tmp_path / "daemon.db").stat().st_mode & 0o777 == 0o600
    finally:
        os.umask(before)
