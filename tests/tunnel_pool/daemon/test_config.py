"""Tests the daemon's configuration by file, environment and command line, and the folders that it watches."""

import asyncio
import os
import re
import signal

import pytest

from tests.tunnel_pool.daemon.rpc import Rpc
from tests.tunnel_pool.daemon.running import daemon, make_torrent
from tests.whole.test_cli import fails
from tests.worlds.commands import ROOT, command
from tests.worlds.network import until
from tunnel_pool.cli import config as config_command
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


def test_words_name_options_whole():
    options = ["hops", "host_name", "min_free"]
    assert named(["--hops=2", "--min-f", "3", "--host-name", "x"], options) == ["hops", "host_name"]
    with pytest.raises(SystemExit):
        make_parser(["daemon"]).parse_args(["daemon", "--min-f", "3"])
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
    path.write_text("[[watch]]\nfolder = '/nowhere/at/all'\n")
    code, _, lines = await config("check", f"--config={path}")
    assert code == 1
    assert lines[-1].endswith("the watched folder /nowhere/at/all is not there")


async def config_of(*arguments):
    """Return what `tunnel-pool config` prints."""
    words = ["config", *arguments]
    parser = make_parser(words)
    parsed = parser.parse_args(words)
    parsed = config_command.with_config(parsed, lambda more: parser.parse_args(["config", *more, *words[1:]]), words)
    return config_command.describe(await config_command.run(parsed))


WATCH = "--watch={0};hops=2;labels=x+y;download_to=/d;stopped=true"
OPTIONS = [
    "--hops=2", "--rpc=127.0.0.2:9092", "--workers=2..3", "--bootstrap=127.0.0.3:1,127.0.0.4:2", "--dht=none",
    "--host-name=a,b", "--folder=/a b/\u00e4\U0001f600\"\\", "--min-free=7 GB", "--hops-of-labels=iso=1,private=3",
    "--hops-of-folders=/x=2", "--folders-of-labels=iso=/y", "--no-relay",
]  # fmt: skip


@pytest.mark.parametrize("options", [[], OPTIONS])
async def test_what_config_shows_is_a_file_that_says_the_same(options, tmp_path):
    for name in ("v", "w"):
        (tmp_path / name).mkdir()
    watches = [WATCH.format(tmp_path / "v"), f"--watch={tmp_path / 'w'}"] if options else []
    said = await config_of("show", *options, *watches)
    path = tmp_path / "daemon.toml"
    path.write_text(said)
    assert await config_of("check", f"--config={path}") == f"{path} is right"
    again = await config_of("show", f"--config={path}")
    source = re.compile(r"(^# config = .*|  # (default|file|command line)$)", re.MULTILINE)
    assert source.sub("", again) == source.sub("", said)
    assert said.count("[[watch]]") == len(watches)


async def test_what_is_the_default_may_be_said(tmp_path):
    """Each line that `config default` leaves to be uncommented is right as it is, but for names in capitals."""
    template = await config_of("default")
    lines = [line[2:] for line in template.splitlines() if re.match(r"# [a-z-]+ = (?!\"[A-Z])", line)]
    assert len(lines) > 20
    path = tmp_path / "daemon.toml"
    path.write_text("\n".join(["[daemon]", *lines]))
    assert await config_of("check", f"--config={path}") == f"{path} is right"


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


async def test_what_was_taken_from_a_folder_that_can_not_be_written_to_comes_no_second_time(tmp_path):
    watched = tmp_path / "watched"
    watched.mkdir()
    (watched / "a.magnet").write_text(f"magnet:?xt=urn:btih:{'a' * 40}")
    os.utime(watched / "a.magnet", (1, 1))
    (watched / "a.magnet.added").mkdir()  # so that it can't be renamed
    arguments = ["--workers=0", f"--watch={watched}"]
    async with daemon(tmp_path, *arguments) as (running, address), Rpc(address) as rpc:
        await running.until_line(lambda line: "can't be renamed, and is left alone" in line)
        await rpc.call("torrent_remove", {"ids": ["a" * 40]})
    (watched / "b.magnet").write_text(f"magnet:?xt=urn:btih:{'b' * 40}")
    os.utime(watched / "b.magnet", (1, 1))
    async with daemon(tmp_path, *arguments) as (_, address), Rpc(address) as rpc:
        await until((watched / "b.magnet.added").exists)
        torrents = (await rpc.call("torrent_get", {"fields": ["hash_string"]}))["torrents"]
        assert [torrent["hash_string"] for torrent in torrents] == ["b" * 40]


async def test_watched_folders_add_what_is_put_there_with_their_hops(tmp_path):
    watched = tmp_path / "watched"
    watched.mkdir()
    (watched / "a.torrent").write_bytes(make_torrent(tmp_path / "made", "a", {"x": 1000}))
    (watched / "b.magnet").write_text(f"MAGNET:?xt=urn:btih:{'b' * 40}\n", "utf-16")
    (watched / "c.torrent").write_text("no torrent")
    (watched / "d.txt").write_text("nothing to us")
    (watched / "f.magnet").write_text(f"magnet:?xt=urn:btih:{'f' * 40}\nmagnet:?xt=urn:btih:{'9' * 40}")
    for path in watched.iterdir():
        os.utime(path, (1, 1))  # nobody writes to them any more
    os.utime(watched / "f.magnet", (2e9, 2e9))  # a time to come
    (tmp_path / "daemon.toml").write_text(
        f"[daemon]\nworkers = 0\nhops = 3\n[[watch]]\nfolder = '{watched}'\nhops = 2\nlabels = ['w']\n"
        f"download_to = '{tmp_path / 'to'}'\nstopped = true\n"
    )
    # What the environment says holds over the file, the command line over both.
    environment = {"TUNNEL_POOL_HOPS": "1", "TUNNEL_POOL_CONFIG": str(tmp_path / "daemon.toml")}
    late = [f"--watch={tmp_path / name}" for name in ("late", "never")]
    async with daemon(tmp_path, *late, environment=environment) as (running, address), Rpc(address) as rpc:
        for name in ("late", "never"):
            await running.until_line(lambda line, name=name: "until it can be read" in line and name in line)
        (tmp_path / "late").mkdir()
        (tmp_path / "late" / "e.magnet").write_text(f"magnet:?xt=urn:btih:{'e' * 40}\n")
        os.utime(tmp_path / "late" / "e.magnet", (1, 1))
        await until(lambda: list((tmp_path / "late").glob("*.added")))
        async with asyncio.timeout(20):
            while len(list(watched.glob("*.added"))) < 3 or not list(watched.glob("*.refused")):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        assert sorted(path.name for path in watched.iterdir()) == [
            "a.torrent.added", "b.magnet.added", "c.torrent.refused", "d.txt", "f.magnet.added",
        ]  # fmt: skip
        fields = ["name", "labels", "download_dir", "status"]
        torrents = (await rpc.call("torrent_get", {"fields": fields}))["torrents"]
        assert {torrent["name"] for torrent in torrents} == {"a", *(digit * 40 for digit in "bef9")}
        await running.until_line(lambda line: line.endswith("it is no torrent file, or no magnet link"))
        for torrent in (torrent for torrent in torrents if torrent["name"] != "e" * 40):
            assert torrent["labels"] == ["w", "hops:2"]
            assert (torrent["download_dir"], torrent["status"]) == (str(tmp_path / "to"), 0)
        link = f"magnet:?xt=urn:btih:{'c' * 40}"
        await rpc.call("torrent_add", {"filename": link, "paused": True})
        (torrent,) = (await rpc.call("torrent_get", {"fields": fields, "ids": ["c" * 40]}))["torrents"]
        assert torrent["labels"] == ["hops:1"]
