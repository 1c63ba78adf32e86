"""The daemon's configuration: file, environment, command line; and the folders that it watches."""

import asyncio
import os
import signal

import pytest

from tests.commands import ROOT, command
from tests.test_cli import fails
from tests.tunnel_pool.daemon.running import Rpc, daemon, make_torrent
from tunnel_pool.cli.arguments.layers import environment_arguments, named
from tunnel_pool.cli.daemon import options_of
from tunnel_pool.cli.main import make_parser
from tunnel_pool.daemon.config import read_config
from tunnel_pool.system.errors import UserError


def test_the_sample_configuration_is_one():
    config = read_config(ROOT / "docs" / "daemon.toml")
    assert config.rules(1).hops(None, ["private", "iso"], "/") == 3
    assert config.rules(1).hops(None, [], "/srv/downloads/anonymous/x") == 2
    assert config.watch[0].hops == 2
    text = (ROOT / "docs" / "daemon.toml").read_text()
    assert all(f"[{table}" in text for table in config.__struct_fields__)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[hops.labels]\nx = 4\n", "hop count"),
        ("[hops.folders]\nrelative = 1\n", "whole path"),
        ("[[watch]]\nfolder = 'x'\n", "whole path"),
        ("[[watch]]\nhops = 1\n", "folder"),
        ("[[watch]]\nfolder = '/w'\nhops = 0\nlabels = ['hops:2']\n", "the label says 2"),
        ("[hop]\n", "hop"),
        ("[daemon\n", "]"),
        (f"x = {'[' * 10_000}\n", "nested too deeply"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(text, said, tmp_path):
    path = tmp_path / "daemon.toml"
    path.write_text(text)
    with pytest.raises(UserError) as error:
        read_config(path)
    assert str(error.value).startswith(str(path))
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_variables_are_options():
    environment = {"TUNNEL_POOL_MIN_FREE": "2 GB", "TUNNEL_POOL_PORT": "x", "TUNNEL_POOL_HOPS": "", "MIN_FREE": "3"}
    assert environment_arguments(environment, ["hops", "min_free"], []) == ["--min-free=2 GB"]
    flag = {"TUNNEL_POOL_ALLOW_PRIVATE": "yes"}
    assert environment_arguments(flag, ["allow_private"], ["allow_private"]) == ["--allow-private"]
    assert environment_arguments({"TUNNEL_POOL_ALLOW_PRIVATE": "0"}, ["allow_private"], ["allow_private"]) == []
    with pytest.raises(UserError, match="must be true or false"):
        environment_arguments({"TUNNEL_POOL_ALLOW_PRIVATE": "maybe"}, ["allow_private"], ["allow_private"])


def test_words_name_options_whole_or_by_their_beginning():
    options = ["hops", "host_name", "min_free"]
    assert named(["--hops=2", "--min-f", "3", "--host-name", "x"], options) == ["hops", "min_free", "host_name"]
    assert named(["status", "-v", "--"], options) == []


def test_tables_are_options_too():
    watch = "--watch=/w;hops=2;labels=x+y;download_to=/d;stopped=true,/v"
    words = ["--hops-of-labels=iso=1,private=3", "--hops-of-folders=/a=2", "--folders-of-labels=iso=/b", watch]
    arguments = make_parser(["daemon"]).parse_args(["daemon", *words])
    options = options_of(arguments)
    assert options.rules.hops(None, ["private"], "/") == 3
    assert options.rules.hops(None, [], "/a/b") == 2
    assert options.folders_by_label == {"iso": "/b"}
    first, second = options.watches
    assert (first.folder, first.hops, first.labels, first.download_to, first.stopped) == (
        "/w",
        2,
        ["x", "y"],
        "/d",
        True,
    )
    assert (second.folder, second.hops, second.labels, second.stopped) == ("/v", None, [], None)


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--hops-of-labels=iso", "KEY=VALUE"),
        ("--hops-of-labels=iso=4", "hop count"),
        ("--watch=w", "whole path"),
        ("--hops-of-folders=w=1", "whole path"),
        ("--watch=/w;hops=x", "hops"),
        ("--watch=/w;surprise=1", "surprise"),
        ("--watch=/w;hops=1;labels=hops:2", "label says 2"),
    ],
)
def test_a_wrong_table_is_said(option, said, capsys):
    with pytest.raises(SystemExit):
        make_parser(["daemon"]).parse_args(["daemon", option])
    assert said in capsys.readouterr().err


@pytest.mark.slow
async def test_config_shows_checks_and_gives_a_file_to_begin_with(tmp_path):
    path = tmp_path / "daemon.toml"
    path.write_text('[daemon]\nhops = 2\nmin-free = "5 GB"\n')
    environment = {"TUNNEL_POOL_MIN_FREE": "6 GB"}

    async def config(*arguments):
        async with command("config", *arguments, "--json", environment=environment) as running:
            return await running.ended()

    code, report, _ = await config("show", f"--config={path}", "--hops=3")
    assert code == 0
    assert report["options"]["hops"] == [3, "command line"]
    assert report["options"]["min-free"] == [6_000_000_000, "environment"]
    assert report["options"]["circuits"] == [0, "default"]
    assert (await config("check", f"--config={path}"))[1] == {"ok": True, "file": str(path)}
    path.write_text("[daemon]\nhop = 2\nhops = 9\n")
    code, report, lines = await config("check", f"--config={path}")
    assert code == 2
    assert "--hops" in lines[-1]
    code, report, _ = await config("default")
    template = report["default"]
    whole = template.replace("# hops =", "hops =").replace("# workers =", "workers =")
    path.write_text(whole)
    assert read_config(path).daemon == {"hops": 1, "workers": "auto"}


async def test_sighup_reads_the_file_again(tmp_path):
    path = tmp_path / "daemon.toml"
    path.write_text("[daemon]\nhops = 2\nworkers = 1\n")
    async with daemon(tmp_path, f"--config={path}") as (running, address), Rpc(address) as rpc:

        async def hops_of(digit):
            await rpc.call("torrent_add", {"filename": digit * 40, "paused": True})
            return (await rpc.call("torrent_get", {"ids": digit * 40, "fields": ["hops"]}))["torrents"][0]["hops"]

        assert await hops_of("a") == 2
        path.write_text("[daemon]\nhops = 3\nworkers = 1\ncircuits = 9\n")
        running.process.send_signal(signal.SIGHUP)
        await running.until_line(lambda line: "read again; these hold after a restart: circuits" in line)
        assert await hops_of("b") == 3
        for digit, wrong in (("c", "[daemon\n"), ("d", "[daemon]\nhops = 9\n"), ("e", "[daemon]\nworkers = 0\n")):
            path.write_text(wrong)
            lines = len(running.lines)
            running.process.send_signal(signal.SIGHUP)
            await running.until_line(
                lambda line, lines=lines: any("stays as it was" in each for each in running.lines[lines:])
            )
            assert await hops_of(digit) == 3
        running.process.send_signal(signal.SIGTERM)
        assert await running.process.wait() == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--rpc=0.0.0.0:0"], 2, "set a password"),
        (["--web-root=/nonexistent"], 2, "no index.html"),
        (["--rpc-password-file=/nonexistent"], 1, "cannot read the password"),
        (["--config=/nonexistent.toml"], 1, "cannot read /nonexistent.toml"),
        (["--hops=4"], 2, "--hops"),
        (["--min-free=much"], 2, "--min-free"),
    ],
)
async def test_a_wrong_option_is_one_line(arguments, code, said, tmp_path):
    ended, _, line = await fails("daemon", "--bootstrap=none", f"--state={tmp_path / 's'}", *arguments)
    assert (ended, said in line) == (code, True), line


async def test_watched_folders_add_what_is_put_there_with_their_hops(tmp_path):
    watched = tmp_path / "watched"
    watched.mkdir()
    (watched / "a.torrent").write_bytes(make_torrent(tmp_path / "made", "a", {"x": 1000}))
    (watched / "b.magnet").write_text(f"magnet:?xt=urn:btih:{'b' * 40}\n")
    (watched / "c.torrent").write_text("no torrent")
    (watched / "d.txt").write_text("nothing to us")
    for path in watched.iterdir():
        os.utime(path, (1, 1))  # nobody writes to them any more
    (tmp_path / "daemon.toml").write_text(
        f"[daemon]\nworkers = 0\nhops = 3\n[[watch]]\nfolder = '{watched}'\nhops = 2\nlabels = ['w']\n"
        f"download_to = '{tmp_path / 'to'}'\nstopped = true\n"
    )
    # What the environment says holds over the file, the command line over both.
    environment = {"TUNNEL_POOL_HOPS": "1", "TUNNEL_POOL_CONFIG": str(tmp_path / "daemon.toml")}
    async with daemon(tmp_path, environment=environment) as (running, address), Rpc(address) as rpc:
        async with asyncio.timeout(20):
            while len(list(watched.glob("*.added"))) < 2 or not list(watched.glob("*.refused")):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        assert sorted(path.name for path in watched.iterdir()) == [
            "a.torrent.added", "b.magnet.added", "c.torrent.refused", "d.txt",
        ]  # fmt: skip
        fields = ["name", "labels", "download_dir", "status"]
        torrents = (await rpc.call("torrent_get", {"fields": fields}))["torrents"]
        assert {torrent["name"] for torrent in torrents} == {"a", "b" * 40}
        for torrent in torrents:
            assert torrent["labels"] == ["w", "hops:2"]
            assert (torrent["download_dir"], torrent["status"]) == (str(tmp_path / "to"), 0)
        link = f"magnet:?xt=urn:btih:{'c' * 40}"
        await rpc.call("torrent_add", {"filename": link, "paused": True})
        (torrent,) = (await rpc.call("torrent_get", {"fields": fields, "ids": ["c" * 40]}))["torrents"]
        assert torrent["labels"] == ["hops:1"]
