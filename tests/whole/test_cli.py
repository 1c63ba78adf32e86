"""Tests wrong input on the command line: one clear line, the right exit code, nothing left running."""

import asyncio
import socket
import sys

import pytest

from tests.worlds.commands import GONE_WITHIN_S, command
from tests.worlds.network import until, unused_host
from tunnel_pool.cli.main import make_parser

INFOHASH = "0123456789abcdef0123456789abcdef01234567"
QUIET = ["--bootstrap=none", "--workers=1"]


async def fails(*arguments, **options):
    async with command(*arguments, **options) as run:
        code, report, lines = await run.ended(40)
    assert len(lines) == 1, lines
    assert "Traceback" not in lines[0]
    return code, report, lines[0]


WRONG = [
    ([], "COMMAND"),
    (["nonsense"], "nonsense"),
    (["demo", "--workers", "-1"], "'-1' is not a number from 0 to 256 or MIN..MAX or auto"),
    (["demo", "--workers", "many"], "'many' is not a number"),
    (["demo", "--hops", "0"], "'0' is not a number from 1 to 3"),
    (["demo", "--hops", "4"], "'4' is not"),
    (["demo", "--size", "0"], "--size"),
    (["demo", "--unknown"], "--unknown"),
    (
        ["feeds", "list", "--unknown"],
        "tunnel-pool feeds list: unrecognized arguments: --unknown (see tunnel-pool feeds list",
    ),
    (["download"], "WHAT"),
    (["download", INFOHASH, "--community-id", "xyz"], "'xyz' is not 40 hexadecimal digits"),
    (["download", INFOHASH, "--peer", "1.2.3.4"], "'1.2.3.4' is not IPV4:PORT"),
    (["download", INFOHASH, "--peer", "1.2.3.4:0"], "no port"),
    (["download", INFOHASH, "--peer", "example.org:6881"], "is not IPV4:PORT"),
    (["download", INFOHASH, "--listen", "1.2.3.4:65536"], "65535"),
    (["download", INFOHASH, "--bootstrap", "somewhere"], "--bootstrap"),
    (["download", INFOHASH, "--state", ""], "an empty path"),
    (["node", "--log-level", "loud"], "loud"),
]


@pytest.mark.parametrize("module", ["twisted", "rich.console"])
async def test_what_the_command_needs_and_is_not_installed_is_said_in_one_line(module):
    """`pip install tunnel-pool` brings what a program that embeds the pool needs, and no more."""
    code = f"import sys; sys.modules[{module!r}] = None; from tunnel_pool.__main__ import main; sys.exit(main())"
    code, _, line = await fails("demo", program=[sys.executable, "-c", code])
    assert code == 1
    assert line == f"tunnel-pool: {module} is not installed: pip install 'tunnel-pool[cli]'"


async def test_wrong_usage_is_2():
    """The commands run side by side, a few at a time, as each takes a process to start."""
    gate = asyncio.Semaphore(4)

    async def failed(arguments):
        async with gate:
            return await fails(*arguments)

    answers = await asyncio.gather(*(failed(arguments) for arguments, _ in WRONG))
    for (arguments, said), (code, _, line) in zip(WRONG, answers, strict=True):
        assert code == 2, arguments
        assert said in line
        assert "--help" in line


async def test_what_tribler_can_not_be_measured(tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / "src/run_tribler.py").touch()
    for arguments, said in (
        ([], "name the folder of Tribler's source: --tribler DIR"),
        (["--tribler=/no/such"], "there is no src/run_tribler.py"),
        ([f"--tribler={tmp_path}", "--tribler-python=/no/python"], "no Python to run Tribler with: /no/python"),
        ([f"--tribler={tmp_path}", "--tribler-python=/bin/false"], "/bin/false can't run Tribler: exit code 1"),
    ):
        code, _, line = await fails("bench", "tribler", *arguments)
        assert (code, said in line) == (1, True), line


async def test_what_is_no_torrent(tmp_path):
    (tmp_path / "x.torrent").write_text("not a torrent")
    for what in ("magnet:?nothing", "/no/such/file.torrent", tmp_path / "x.torrent"):
        code, report, line = await fails("download", what, f"--state={tmp_path}", *QUIET, "--json")
        assert code == 1
        assert report == {"ok": False, "error": line.removeprefix("tunnel-pool download: ")}
        assert str(what) in line


async def test_folders_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    inside = tmp_path / "file" / "folder"
    code, _, line = await fails("download", INFOHASH, f"--save={inside}", f"--state={tmp_path}", *QUIET)
    assert code == 1
    assert line == f"tunnel-pool download: cannot save in {inside}: Not a directory"
    code, _, line = await fails("download", INFOHASH, f"--save={tmp_path}", f"--state={inside}", *QUIET)
    assert code == 1
    assert "--state" in line


async def test_only_an_exit_is_a_backup():
    code, _, line = await fails("node", "--backup")
    assert (code, line) == (2, "tunnel-pool node: --backup is for an exit: add --exit")


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("name", ["download", "node"])
async def test_a_port_in_use(tmp_path, name, workers):
    host = unused_host()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind((host, 0))
        address = f"{host}:{taken.getsockname()[1]}"
        what = [INFOHASH] if name == "download" else ["--log-level=error"]
        arguments = [name, *what, f"--listen={address}", f"--state={tmp_path}", "--bootstrap=none"]
        if name == "download":
            arguments += ["--log-level=error", f"--save={tmp_path}"]
        code, _, line = await fails(*arguments, f"--workers={workers}")
    assert code == 1
    assert line == f"tunnel-pool {name}: cannot listen on UDP {address}: Address already in use"


@pytest.mark.slow
async def test_a_state_is_one_programs_at_a_time(tmp_path):
    common = [f"--state={tmp_path}", "--bootstrap=none", "--workers=0", f"--listen={unused_host()}:0"]
    async with command("node", *common) as first:
        await first.until_line(lambda line: "listening on" in line)
        for name, *more in (("node",), ("download", INFOHASH, f"--save={tmp_path}")):
            code, _, line = await fails(name, *more, *common, "--log-level=error")
            assert code == 1
            assert (
                line == f"tunnel-pool {name}: another tunnel-pool has its state in {tmp_path}; give each one a --state"
            )
        first.process.terminate()
        await first.process.wait()
    async with command("node", *common) as again:
        await again.until_line(lambda line: "listening on" in line)


@pytest.mark.slow
async def test_too_few_ports_or_nodes():
    for name in ("node", "demo"):
        code, _, line = await fails(
            name, "--listen=127.0.0.1:65535", "--workers=2", "--steering=off", "--bootstrap=none"
        )
        assert code == 2
        assert "65535" in line
    code, _, line = await fails("demo", "--hops=3", "--exits=1", "--relays=1")
    assert code == 2
    assert "--relays" in line


async def test_the_demo_never_leaves_this_machine():
    code, _, line = await fails("demo", "--bootstrap=default")
    assert code == 2
    assert "stays on this machine" in line


async def test_a_damaged_key(tmp_path):
    (tmp_path / "member_key.bin").write_bytes(b"damaged")
    code, _, line = await fails("node", f"--state={tmp_path}", *QUIET)
    assert code == 1
    assert "not a member key" in line


async def test_the_key_is_kept_and_private(tmp_path):
    for _ in range(2):
        async with command("node", f"--state={tmp_path}", "--listen=127.0.0.1:0", "--bootstrap=none") as node:
            await node.until_line(lambda line: "listening on UDP 127.0.0.1:" in line)
            key = (tmp_path / "member_key.bin").read_bytes()
            assert (tmp_path / "member_key.bin").stat().st_mode & 0o777 == 0o600
            node.process.terminate()
            await node.process.wait()
    assert (tmp_path / "member_key.bin").read_bytes() == key


@pytest.mark.parametrize(("workers", "number", "expected"), [(0, 15, 0), (2, 15, 0), (0, 2, 130), (1, 2, 130)])
async def test_a_node_that_is_told_to_stop_ends_well(tmp_path, workers, number, expected):
    arguments = [f"--workers={workers}", f"--state={tmp_path}", "--bootstrap=none", "--listen=127.0.0.1:0", "--json"]
    async with command("node", *arguments) as node:
        await node.until_line(lambda line: "listening" in line)
        family = node.family()
        assert len(family) == 1 + workers
        node.process.send_signal(number)
        code, report, _ = await node.ended(10)
        assert code == expected
        assert report["ok"]
        assert report["relayed_bytes"] == 0
        await until(lambda: not any(process.is_running() for process in family), GONE_WITHIN_S)


async def test_a_peer_that_is_not_there_is_waited_for_until_ctrl_c(tmp_path):
    """The command has no circuit and no peer; it says what it waits for, and Ctrl-C ends it."""
    arguments = [INFOHASH, "--peer=127.0.0.1:1", f"--save={tmp_path}", f"--state={tmp_path}", *QUIET]
    async with command("download", *arguments, "--listen=127.0.0.1:0") as download:
        await download.until_line(lambda line: "building circuits: 0 ready, 0 nodes known" in line)
        download.process.send_signal(2)
        code, _, lines = await download.ended(10)
    assert code == 130
    assert lines[-1] == "tunnel-pool download: interrupted"


@pytest.mark.parametrize("name", ["demo", "download", "seed", "node", "daemon"])
def test_help_names_every_option(name, capsys):
    with pytest.raises(SystemExit) as ended:
        make_parser([name]).parse_args([name, "--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    options = ["--workers", "--json", "--log-level"]
    options += ["--listen", "--bootstrap", "--community-id", "--state", "--allow-private"]
    assert all(option in text for option in options)
    assert "with-parent" not in text


@pytest.mark.slow
async def test_a_reader_that_leaves_early_is_no_traceback(tmp_path):
    async with command("demo", "--size=1", "--workers=0", "--json") as demo:
        demo.process.stdout._transport.close()
        await asyncio.wait_for(demo.process.wait(), 40)
        await demo._reader
    assert "Traceback" not in "\n".join(demo.lines)
