"""Tests a node as its operator runs it: the command, its status, its metrics, its signals, systemd."""

import asyncio
import os
import signal
import socket
from contextlib import asynccontextmanager

import aiohttp
import pytest

from tests.whole.test_cli import fails
from tests.worlds.commands import ROOT, command
from tests.worlds.network import COMMUNITY_ID, Echo, dht_like, make_config, metrics_in, until, unused_host
from tunnel_pool.node.config import read_config
from tunnel_pool.node.server import ask_status
from tunnel_pool.overlay.ground.config import HostPort
from tunnel_pool.overlay.node import open_overlay
from tunnel_pool.packet_engine import is_built
from tunnel_pool.private_swarm.swarm import free_port
from tunnel_pool.system.web_rules import ALWAYS

NOWHERE = ("0.0.0.0", 0)


@asynccontextmanager
async def node(tmp_path, *more):
    host = unused_host()
    address = HostPort(host, free_port(host))
    arguments = ["node", f"--listen={address}", f"--state={tmp_path / 's'}", "--bootstrap=none", "--allow-private"]
    async with command(*arguments, f"--community-id={COMMUNITY_ID.hex()}", *more) as running:
        await running.until_line(lambda line: "listening" in line)
        yield running, address


async def status_of(tmp_path):
    async with command("node", "status", f"--state={tmp_path / 's'}", "--json") as asking:
        code, report, lines = await asking.ended()
    assert code == 0, lines
    return report


async def scraped(address):
    async with aiohttp.ClientSession() as session, session.get(f"http://{address}/metrics") as response:
        return metrics_in(await response.text())


async def pages_learn_nothing(metrics):
    """A name that somebody points at us (DNS rebinding) and a page of another site are refused, and all say COOP."""
    async with aiohttp.ClientSession() as session:
        for path, headers, status in (
            ("/metrics", {"Host": f"evil.example:{metrics.port}"}, 421),
            ("/metrics", {"Origin": "http://evil.example"}, 403),
            ("/metrics", {"Sec-Fetch-Site": "cross-site"}, 403),
            ("/other", {}, 404),
            ("/metrics", {"Host": f"scraped.example:{metrics.port}"}, 200),
            ("/metrics", {"Host": f"{socket.gethostname()}:{metrics.port}"}, 200),
        ):
            async with session.get(f"http://{metrics}{path}", headers=headers) as response:
                assert response.status == status, headers
                assert ALWAYS.items() <= response.headers.items()


def test_the_sample_configuration_is_one():
    config = read_config(ROOT / "docs" / "node.toml")
    assert config.limits.circuits == 4000
    text = (ROOT / "docs" / "node.toml").read_text()
    for section in (config.limits, config.exit):
        assert all(
            f"{name} " in text or f"{name}." in text or f".{name}]" in text for name in section.__struct_fields__
        )


@pytest.mark.parametrize("workers", [pytest.param(0, marks=pytest.mark.slow), 2])
async def test_status_and_metrics_tell_what_is_carried(tmp_path, workers):
    metrics = HostPort(host := unused_host(), free_port(host))
    more = [
        f"--workers={workers}",
        "--exit=dht,bittorrent,udp-trackers",
        f"--metrics={metrics}",
        "--host-name=scraped.example",
    ]
    async with node(tmp_path, *more) as (running, address):
        client = await open_overlay(make_config(frozenset(), [address]))
        client.settings.max_circuits = 1
        client.build_tunnels(1)
        circuit = (await until(lambda: client.find_circuits(hops=1)))[0]
        answers = []
        client.on_raw_data = lambda circuit, origin, data: answers.append(data)
        with Echo() as echo:
            client.send_data(circuit.hop.address, circuit.circuit_id, echo.address, NOWHERE, dht_like(b"hello"))
            await until(lambda: answers)
            client.send_data(circuit.hop.address, circuit.circuit_id, echo.address, NOWHERE, b"junk")
        expected = {"joined": 1, "relayed": 0, "exits": 1, "own": 0}
        async with asyncio.timeout(15):
            while (status := await ask_status(tmp_path / "s"))["circuits"] != expected or not status["dropped"]:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        status = await status_of(tmp_path)
        assert status["dropped"]["exit_content_refused"] == 1
        assert status["exit"] == ["bittorrent", "dht", "udp-trackers"]
        assert [child["slot"] for child in status["children"]] == [None, *range(workers)]
        assert all(child["rss_bytes"] > 1 << 20 for child in status["children"])
        values = await scraped(metrics)
        assert values["tunnel_pool_circuits", ("role", "exits")] == 1
        assert values["tunnel_pool_dropped_total", ("reason", "exit_content_refused")] == 1
        if is_built():
            assert status["bytes"]["exited"]["up"] > 0
            assert values["tunnel_pool_bytes_total", ("direction", "up"), ("role", "exited")] > 0
        await pages_learn_nothing(metrics)
        known = {"127.", str(address.port), client.my_peer.mid.hex()}
        assert not any(text in repr([*values]) for text in known)
        # A port may be a part of another number by chance.
        assert address.port not in values.values()
        await client.unload()
        running.process.send_signal(signal.SIGTERM)
        assert await running.process.wait() == 0
    assert not (tmp_path / "s" / "node.sock").exists()


@pytest.mark.slow
@pytest.mark.skipif(not is_built(), reason="limits need the native engine")
async def test_sighup_reads_limits_and_policy_again_and_an_error_changes_nothing(tmp_path):
    path = tmp_path / "node.toml"
    path.write_text("[node]\nworkers = 1\nexit = 'all'\n[limits]\ntotal.up = '5 MB/s'\n")
    async with node(tmp_path, f"--config={path}") as (running, _):
        assert (await status_of(tmp_path))["limits"]["total"] == {"up": 5_000_000, "down": None}
        path.write_text("[limits]\ntotal.up = '7 MB/s'\n[exit]\ndeny_ports = [25]\n")
        running.process.send_signal(signal.SIGHUP)
        await running.until_line(lambda line: "was read again" in line)
        assert (await status_of(tmp_path))["limits"]["total"] == {"up": 7_000_000, "down": None}
        path.write_text("[limits]\ntotal.up = '8'\n")
        running.process.send_signal(signal.SIGHUP)
        await running.until_line(lambda line: "stays as it was" in line and "limits.total.up" in line)
        assert (await status_of(tmp_path))["limits"]["total"] == {"up": 7_000_000, "down": None}
        running.process.send_signal(signal.SIGUSR1)
        await running.until_line(lambda line: "Status: {" in line)


async def test_systemd_hears_that_it_is_ready_lives_and_stops(tmp_path, monkeypatch):
    path = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(path))
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        monkeypatch.setenv("NOTIFY_SOCKET", str(path))
        monkeypatch.setenv("WATCHDOG_USEC", "400000")
        async with node(tmp_path, "--workers=0") as (running, _):
            assert await asyncio.wait_for(loop.sock_recv(sock, 100), 10) == b"READY=1"
            for _ in range(3):
                assert await asyncio.wait_for(loop.sock_recv(sock, 100), 2) == b"WATCHDOG=1"
            running.process.send_signal(signal.SIGTERM)
            heard = b""
            while heard != b"STOPPING=1":
                heard = await asyncio.wait_for(loop.sock_recv(sock, 100), 5)


@pytest.mark.slow
async def test_one_that_was_killed_leaves_no_socket_that_matters(tmp_path):
    for _ in range(2):
        async with node(tmp_path, "--workers=0") as (running, _):
            assert (await status_of(tmp_path))["uptime_s"] > 0
            os.kill(running.pid, signal.SIGKILL)
            await running.process.wait()


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["status"], 1, "no node runs with the state in"),
        (["--config=/no/such.toml"], 1, "cannot read /no/such.toml: No such file or directory"),
        (["--exit=smtp", "--show-policy"], 2, "'smtp' is none of bittorrent, dht"),
        (["--test-destination=nowhere"], 2, "'nowhere' is not IP:PORT"),
        (["--metrics=127.0.0.1:0"], 2, "has no port"),
    ],
)
async def test_what_is_wrong_is_said_in_one_line(tmp_path, arguments, code, said):
    ended, _, line = await fails("node", *arguments, f"--state={tmp_path}")
    assert (ended, said in line) == (code, True), line


async def test_a_metrics_port_that_is_taken_is_said(tmp_path):
    with socket.socket() as taken:
        taken.bind((host := unused_host(), 0))
        taken.listen()
        where = f"{host}:{taken.getsockname()[1]}"
        ended, _, line = await fails(
            "node", f"--metrics={where}", f"--state={tmp_path}", "--bootstrap=none", "--log-level=error",
            f"--listen={unused_host()}:0",
        )  # fmt: skip
    assert (ended, line) == (1, f"tunnel-pool node: cannot serve metrics on {where}: Address already in use")


@pytest.mark.slow
async def test_destinations_are_tested_without_a_packet(tmp_path):
    for where, allowed in (("8.8.8.8:53", True), ("10.0.0.1:53", False), ("[2001:db8::1]:53", False)):
        async with command("node", "--exit", f"--test-destination={where}", "--json") as asking:
            code, report, _ = await asking.ended()
        assert (code, report["allowed"]) == (int(not allowed), allowed)


async def test_an_exit_at_an_ipv4_address_says_that_ipv6_is_out_of_its_reach():
    asked = ["--listen=127.0.0.1:0", "--test-destination=[2606:4700::1111]:53", "--json"]
    async with command("node", "--exit", *asked) as asking:
        code, report, _ = await asking.ended()
    assert (code, report["reason"]) == (1, "exit_from_ipv4")
    async with command("node", "--exit", "--exit-from=0.0.0.0", *asked) as asking:
        _, report, _ = await asking.ended()
    assert report["reason"] in (None, "no_way_to_ipv6")  # by what this machine has
