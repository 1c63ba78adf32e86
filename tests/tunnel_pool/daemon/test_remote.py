"""Tests `tunnel-pool status`, `add`, `set`, `info` and the like against a running daemon."""

import argparse
import asyncio
import os
import signal

import libtorrent as lt
import pytest

from tests.tunnel_pool.daemon.rpc import Rpc
from tests.tunnel_pool.daemon.running import daemon, daemon_here, make_torrent
from tests.whole.test_cli import fails
from tests.worlds.commands import MODULE, command
from tests.worlds.network import until
from tunnel_pool.cli.main import make_parser, module_of
from tunnel_pool.cli.remote.details import numbers
from tunnel_pool.daemon.changes.edits import AddRequest
from tunnel_pool.daemon.record import LimitMode
from tunnel_pool.system.errors import UserError
from tunnel_pool.torrent.metainfo import read_metainfo

MAGNET = f"magnet:?xt=urn:btih:{'b' * 40}&dn=b%1b[2J"


async def said(name, *arguments, environment=None):
    """Run a command that must succeed, and return its report and the lines of its stderr."""
    async with command(name, *arguments, environment=environment) as running:
        code, report, lines = await running.ended()
    assert code == 0, lines
    return report, lines


@pytest.mark.slow
async def test_a_daemon_is_driven_from_the_command_line(tmp_path):
    path = tmp_path / "a.torrent"
    path.write_bytes(make_torrent(tmp_path / "downloads", "a", {"x": 100_000}))
    async with daemon(tmp_path, "--workers=0") as (running, address):
        rpc = f"--rpc={address}"
        report, _ = await said("add", path, MAGNET, "--hops=2", "--label=iso", f"--to={tmp_path / 'to'}", rpc, "--json")
        assert [(torrent["name"], torrent["new"]) for torrent in report["added"]] == [("a", True), ("b\x1b[2J", True)]
        report, _ = await said("add", MAGNET, rpc, "--json")
        assert [torrent["new"] for torrent in report["added"]] == [False]
        _, _, line = await fails("add", MAGNET, "--hops=3", rpc)
        assert "with 2 hops" in line
        await said("pause", "b" * 40, rpc, "--json")
        report, _ = await said("status", rpc, "--json")
        first, second = report["torrents"]
        assert (first["labels"], first["download_dir"]) == (["iso", "hops:2"], str(tmp_path / "to"))
        assert (second["status"], second["hops"]) == ("stopped", 2)
        await said("resume", "all", rpc, "--json")
        report, _ = await said("status", rpc, "--json")
        assert [torrent["status"] for torrent in report["torrents"]] == ["downloading", "downloading"]
        async with command("status", rpc) as status:
            output = await status.process.stdout.read()
        assert "b?[2J" in output.decode()  # escape sequences in a stranger's name of a torrent are not printed
        assert "\x1b" not in output.decode()
        _, _, line = await fails("remove", "77", rpc)
        assert "there is no torrent 77" in line
        await said("remove", str(first["id"]), "--delete-data", rpc, "--json")
        await said("remove", "all", rpc, "--json")
        report, _ = await said("status", rpc, "--json")
        assert report["torrents"] == []


async def told(here, *words):
    """Run a command in this process; return its report, and what it prints."""
    argv = [*words, f"--rpc={here.address}"]
    arguments = make_parser(argv).parse_args(argv)
    report = await arguments.run(arguments)
    return report, module_of(words[0]).describe(report)


async def test_torrents_are_changed_and_shown_from_the_command_line(tmp_path):
    made = make_torrent(tmp_path, "two", {"a.bin": 100_000, "sub/b.bin": 50_000})
    (tmp_path / "state").mkdir()
    async with daemon_here(tmp_path / "state", tmp_path) as here:
        torrent, _ = await here.changes.add(read_metainfo(made), AddRequest(hops=0, stopped=True))
        _, shown = await told(here, "set", "1", "--hops=2", "--label=x", "--label=y", "--down=none", "--up=50")
        assert shown == "1 torrents"
        await told(here, "set", "all", "--ratio=1.5", "--idle=none", "--peers=9")
        record = torrent.record
        assert (record.hops, record.labels, record.peer_limit) == (2, ["x", "y"], 9)
        assert (record.download_limited, record.upload_limited, record.upload_limit_kb) == (False, True, 50)
        assert (record.ratio_mode, record.ratio_limit) == (LimitMode.SINGLE, 1.5)
        assert record.idle_mode is LimitMode.UNLIMITED
        await told(here, "set", "1", "--ratio=usual", "--up=none")
        assert (torrent.record.ratio_mode, torrent.record.upload_limited) == (LimitMode.GLOBAL, False)
        with pytest.raises(UserError, match="fewer than the 2"):
            await told(here, "set", "1", "--hops=0")
        await told(here, "set", "1", "--hops=0", "--fewer-hops")
        assert torrent.record.hops == 0
        with pytest.raises(UserError, match="say what to change"):
            await told(here, "set", "1")
        _, shown = await told(here, "files", "1", "--skip=0", "--high=1")
        assert "skipped" in shown
        assert "high" in shown
        assert "two/sub/b.bin" in shown
        assert [torrent.priority(index) for index in torrent.file_indexes()] == [0, 7]
        await told(here, "files", "1", "--want=all", "--normal=0-1")
        _, shown = await told(here, "info", "1")
        assert "state       stopped" in shown
        assert "labels      x, y, hops:0" in shown
        _, shown = await told(here, "peers", "1")
        assert shown.startswith("two\naddress")
        (tmp_path / "to").mkdir()
        with pytest.raises(UserError, match="verify it first"):
            await told(here, "move", "1", f"--to={tmp_path / 'to'}")
        await told(here, "verify", "1")
        await until(lambda: not torrent.record.taking_over)
        await told(here, "move", "1", f"--to={tmp_path / 'to'}")
        await until(lambda: torrent.record.folder == str(tmp_path / "to") and not torrent.is_moving)
        assert (tmp_path / "to/two/a.bin").exists()
        (tmp_path / "to/two").rename(tmp_path / "two")
        await told(here, "move", "1", f"--to={tmp_path}", "--find")
        await told(here, "verify", "1")
        await until(lambda: torrent.is_finished and not torrent.is_verifying)


@pytest.mark.parametrize("wrong", ["--down=x", "--ratio=-1", "--ratio=much", "--idle=-1", "--hops=4", "--peers=0"])
def test_what_can_not_be_set_is_wrong_usage(wrong, capsys):
    with pytest.raises(SystemExit) as ended:
        make_parser(["set"]).parse_args(["set", "1", wrong])
    assert ended.value.code == 2
    assert wrong.partition("=")[0] in capsys.readouterr().err


def test_numbers_of_files():
    assert numbers("0,3-5") == [0, 3, 4, 5]
    assert numbers("all") == []
    for wrong in ("", "x", "5-3", "-1", "1-", "1,,2", "0-9999999"):
        with pytest.raises(argparse.ArgumentTypeError):
            numbers(wrong)


@pytest.mark.slow
async def test_a_peer_is_named_for_a_torrent_that_has_no_tracker(seeder, tmp_path):
    content = make_torrent(seeder.folder, "t", {"a": 100_000})
    seeder.start(lt.load_torrent_buffer(content))
    (tmp_path / "t.torrent").write_bytes(content)
    async with daemon_here(tmp_path) as here:
        words = ["add", str(tmp_path / "t.torrent"), f"--peer={seeder.address}", "--hops=0", f"--rpc={here.address}"]
        arguments = make_parser(words).parse_args(words)
        assert (await arguments.run(arguments))["ok"]
        (torrent,) = here.library.torrents.values()
        await until(lambda: torrent.is_finished)
        async with Rpc(here.address) as rpc:
            for peers in (
                ["example.org:1"],
                ["127.0.0.1"],
                ["127.0.0.1:0"],
                ["1.2.3.4:99999999"],
                ["1.2.3.4:1"] * 101,
                "x",
            ):
                _, answer = await rpc.post(
                    {
                        "jsonrpc": "2.0",
                        "method": "torrent_add",
                        "params": {"filename": "c" * 40, "peers": peers},
                        "id": 1,
                    }
                )
                assert "peers" in str(answer["error"])
                assert len(here.library.torrents) == 1


async def test_top_shows_processes_and_torrents_once_and_in_a_terminal(tmp_path):
    async with daemon(tmp_path, "--workers=1") as (running, address):
        rpc = f"--rpc={address}"
        await said("add", MAGNET, "--hops=2", "--paused", rpc, "--json")
        report, _ = await said("top", rpc, "--json")
        assert [child["slot"] for child in report["state"]["pool"]["children"]] == [None, 0]
        assert [torrent["hops"] for torrent in report["torrents"]] == [2]
        async with command("top", rpc) as top:
            output = (await top.process.stdout.read()).decode()
        assert "child 0" in output
        assert "b?[2J" in output
        ours, theirs = os.openpty()
        process = await asyncio.create_subprocess_exec(
            *MODULE, "top", rpc, stdout=theirs, env={**os.environ, "TERM": "xterm"}
        )
        os.close(theirs)
        shown = b""
        while b"child 0" not in shown:
            shown += await asyncio.wait_for(asyncio.to_thread(os.read, ours, 65536), 20)
        process.send_signal(signal.SIGINT)
        assert await asyncio.wait_for(process.wait(), 20) == 130
        os.close(ours)


@pytest.mark.slow
async def test_what_is_no_daemon_or_not_ours_is_one_line(tmp_path):
    ended, _, line = await fails("status", "--rpc=127.0.0.1:9")
    assert (ended, "no daemon answers" in line) == (1, True), line
    password = {"TUNNEL_POOL_RPC_PASSWORD": "correct horse"}
    async with daemon(tmp_path, "--workers=0", environment=password) as (running, address):
        ended, _, line = await fails("status", f"--rpc={address}")
        assert (ended, "another user or password" in line) == (1, True), line
        report, _ = await said("status", f"--rpc={address}", "--json", environment=password)
        assert report["torrents"] == []
