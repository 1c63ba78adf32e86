"""Tests access to a daemon: without a password its own user alone; connections and guesses are bounded."""

import asyncio
import os
import socket
import subprocess
from functools import partial

import aiohttp
import pytest
from aiohttp import web

from tests.tunnel_pool.daemon.rpc import Rpc
from tests.tunnel_pool.daemon.running import daemon, daemon_here
from tests.worlds.network import until
from tunnel_pool.cli.arguments.rpc_options import rpc_address
from tunnel_pool.daemon.remote import Remote
from tunnel_pool.daemon.server.guard import GUESSES_AT_ONCE, Credentials, GuessLimit
from tunnel_pool.daemon.server.qbittorrent import server
from tunnel_pool.daemon.server.web import WebOptions
from tunnel_pool.overlay.ground.config import HostPort
from tunnel_pool.sandbox import connections
from tunnel_pool.system import http_server
from tunnel_pool.system.http_server import serving_app
from tunnel_pool.system.shares import Shares

NOBODY = 65534
# A program of another user, as small as can be: it needs nothing of our installation.
ASK = """
import http.client, sys
connection = http.client.HTTPConnection(sys.argv[1], int(sys.argv[2]))
connection.request(sys.argv[3], sys.argv[4], sys.argv[5])
response = connection.getresponse()
print(response.status, response.read().decode()[:300])
"""
SYSTEM_PYTHON = "/usr/bin/python3"


async def said_to(user, address, method, path, body=""):
    process = await asyncio.create_subprocess_exec(
        SYSTEM_PYTHON, "-I", "-c", ASK, address.host, str(address.port), method, path, body,
        stdout=subprocess.PIPE, user=user, group=user, extra_groups=[],
    )  # fmt: skip
    return (await process.communicate())[0].decode()


async def test_the_daemon_is_driven_at_an_ipv6_address_too(tmp_path):
    assert str(rpc_address("[::1]:9091")) == "[::1]:9091"
    web = WebOptions(HostPort("::1", 0))
    async with daemon_here(tmp_path, web=web) as here, aiohttp.ClientSession() as http:
        async with http.get(f"http://{here.address}/api/v2/app/version") as response:
            assert await response.text() == "v5.2.3"
        async with Remote(here.address, None) as remote:
            assert await remote.call("torrent_get", fields=["id"]) == {"torrents": []}


@pytest.mark.skipif(os.geteuid() != 0 or not os.access(SYSTEM_PYTHON, os.X_OK), reason="only root can be another user")
async def test_another_user_of_this_machine_drives_nothing_without_a_password(tmp_path):
    async with daemon(tmp_path, "--workers=0", "--hops=2") as (running, address), Rpc(address) as rpc:
        added = await rpc.call("torrent_add", {"filename": f"magnet:?xt=urn:btih:{'ab' * 20}", "paused": True})
        for method, path, body in (
            (
                "PATCH",
                f"/api/torrents/{added['torrent_added']['hash_string']}",
                '{"hops": 0, "confirm_fewer_hops": true}',
            ),
            ("POST", "/transmission/rpc", "{}"),
            ("GET", "/metrics", ""),
            ("GET", "/", ""),
            ("POST", "/api/v2/auth/login", ""),
            ("POST", "/api/v2/torrents/info", ""),
        ):
            said = await said_to(NOBODY, address, method, path, body)
            assert said.startswith(("401 ", "403 ")), said
            assert "--rpc-password-file" in said
        (torrent,) = (await rpc.call("torrent_get", {"fields": ["labels"]}))["torrents"]
        assert torrent["labels"] == ["hops:2"]
        assert (await said_to(0, address, "GET", "/metrics")).startswith("200 ")


async def test_the_user_at_the_other_end_of_a_connection():
    if not connections.is_supported():
        pytest.skip("no table of connections on this system")
    listening = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(listening.getsockname())
    accepted, place = listening.accept()
    assert connections.user_of(place, accepted.getsockname()) == os.geteuid()
    assert connections.user_of(("127.0.0.1", 1), accepted.getsockname()) is None
    # A client that speaks IPv6 to our IPv4 address is in another table.
    dual = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
    dual.connect(("::ffff:127.0.0.1", listening.getsockname()[1]))
    accepted_too, place = listening.accept()
    assert connections.user_of(place, accepted_too.getsockname()) == os.geteuid()
    for sock in (listening, client, accepted, dual, accepted_too):
        sock.close()


async def test_guesses_at_the_password(tmp_path):
    async with (
        daemon(tmp_path, "--workers=0", environment={"TUNNEL_POOL_RPC_PASSWORD": "right"}) as (running, address),
        aiohttp.ClientSession() as http,
    ):

        async def status(password):
            headers = {"X-Api-Key": password} if password else {}
            async with http.get(f"http://{address}/api/status", headers=headers) as response:
                return response.status

        assert [await status("") for _ in range(2 * GUESSES_AT_ONCE)] == [401] * 2 * GUESSES_AT_ONCE
        assert await status("right") == 200
        found = [await status(f"guess {number}") for number in range(100)]
        assert found.count(401) <= GUESSES_AT_ONCE + 2
        assert set(found) == {401, 429}
        # Then even the right password is refused.
        assert await status("right") == 429


def test_the_limit_of_guesses_is_each_clients_own_and_all_together():
    limit = GuessLimit()
    for _ in range(GUESSES_AT_ONCE):
        assert limit.wait_s("a", 100.0) == 0
        limit.failed("a", 100.0)
    limit.failed("a", 100.0)
    assert 0 < limit.wait_s("a", 100.0) <= 5.1
    assert limit.wait_s("a", 105.1) == 0
    assert limit.wait_s("b", 101.0) == 0
    limit.know("owner")
    for number in range(1000):
        limit.failed(f"client {number}", 110.0)
    assert limit.wait_s("z", 110.0) > 0
    # Who is known waits for his own guesses alone.
    assert limit.wait_s("owner", 110.0) == 0
    for _ in range(GUESSES_AT_ONCE + 1):
        limit.failed("owner", 110.0)
    assert limit.wait_s("owner", 110.0) > 0
    limit.forget_known()
    assert limit.wait_s("owner", 115.1) > limit.wait_s("client 1", 115.1) - 0.1


@pytest.mark.skipif(os.geteuid() != 0 or not os.access(SYSTEM_PYTHON, os.X_OK), reason="only root can be another user")
async def test_others_guesses_do_not_shut_the_owner_out(tmp_path):
    """A process of the owner is asked for its own guesses alone."""
    ask = "import sys, urllib.request, urllib.error\n"
    ask += "for number in range(40):\n"
    ask += " request = urllib.request.Request(sys.argv[1], headers={'X-Api-Key': str(number)})\n"
    ask += " try: urllib.request.urlopen(request)\n"
    ask += " except urllib.error.HTTPError as error: print(error.code)\n"
    environment = {"TUNNEL_POOL_RPC_PASSWORD": "right"}
    async with (
        daemon(tmp_path, "--workers=0", environment=environment) as (running, address),
        aiohttp.ClientSession(headers={"X-Api-Key": "right"}) as http,
    ):
        guessers = [
            await asyncio.create_subprocess_exec(
                SYSTEM_PYTHON, "-I", "-c", ask, f"http://{address}/api/status",
                user=user, group=user, extra_groups=[], stdout=subprocess.PIPE,
            )
            for user in range(NOBODY - 5, NOBODY)
        ]  # fmt: skip
        said = [(await guesser.communicate())[0].split() for guesser in guessers]
        assert all(b"429" in codes for codes in said)
        async with http.get(f"http://{address}/api/status") as response:
            assert response.status == 200


async def test_a_login_whose_body_does_not_come_is_ended(tmp_path, monkeypatch):
    """Anybody who may try a password could otherwise keep as many connections busy as all others have."""
    monkeypatch.setattr(server, "FIRST_REQUEST_S", 0.5)
    web = WebOptions(HostPort("127.0.0.1", 0), Credentials("owner", "right"))
    async with daemon_here(tmp_path, web=web) as here:
        reader, writer = await asyncio.open_connection(*here.address)
        head = f"POST /api/v2/auth/login HTTP/1.1\r\nHost: {here.address}\r\nContent-Length: 30\r\n"
        writer.write(head.encode() + b"Content-Type: application/x-www-form-urlencoded\r\n\r\nusername=")
        assert (await asyncio.wait_for(reader.readline(), 10)).startswith(b"HTTP/1.1 408 ")
        writer.close()


async def test_connections_without_a_request_are_ended(monkeypatch):
    monkeypatch.setattr(http_server, "Shares", partial(Shares, 40, 40, 40))
    monkeypatch.setattr(http_server, "FIRST_REQUEST_S", 1.0)
    app = web.Application()

    async def answer(request):
        return web.Response(text="here")

    app.router.add_get("/", answer)
    async with serving_app(app, HostPort("127.0.0.1", 0), "cannot") as address:
        streams = [await asyncio.open_connection(*address) for _ in range(100)]
        for _, writer in streams:
            writer.write(b"POST / HTTP/1.1\r\nContent-Le")
        # Others are served meanwhile, and keep their connection.
        async with aiohttp.ClientSession() as http:
            for _ in range(3):
                async with http.get(f"http://{address}/") as response:
                    assert await response.text() == "here"
            await until(lambda: all(reader.at_eof() or reader.exception() for reader, _ in streams), 10)
            async with http.get(f"http://{address}/") as response:
                assert response.status == 200
        for _, writer in streams:
            writer.close()
