"""tunnel-pool status, add, remove, pause and resume against a running daemon."""

import asyncio
import os
import signal

import pytest

from tests.commands import MODULE, command
from tests.test_cli import fails
from tests.tunnel_pool.daemon.running import daemon, make_torrent

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


@pytest.mark.slow
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
