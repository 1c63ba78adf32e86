"""Tests the daemon behind a reverse proxy: whose word it takes, with nginx as docs/PROXY.md configures it."""

import asyncio
import re
import shutil
import socket
from base64 import b64encode
from contextlib import asynccontextmanager, suppress

import aiohttp
import pytest

from tests.tunnel_pool.daemon.running import daemon_here
from tests.worlds.commands import ROOT
from tests.worlds.network import until, unused_host
from tunnel_pool.daemon.server.guard import GUESSES_AT_ONCE, Credentials
from tunnel_pool.daemon.server.web import WebOptions
from tunnel_pool.overlay.ground.config import HostPort
from tunnel_pool.private_swarm.swarm import free_port
from tunnel_pool.system.proxies import forwarded, networks_in

PROXIES = networks_in("127.0.0.1, 172.18.0.0/16,fd00::/8,::ffff:10.0.0.1")
NGINX = shutil.which("nginx", path="/usr/sbin:/usr/bin")
RIGHT, WRONG = ({"Authorization": f"Basic {b64encode(pair).decode()}"} for pair in (b"u:right", b"u:wrong"))


@pytest.mark.parametrize(
    ("peer", "headers", "said"),
    [
        ("9.9.9.9", (["1.2.3.4"], "a"), None),
        ("127.0.0.1", ([], None), (None, None)),
        ("127.0.0.1", (["1.2.3.4"], None), ("1.2.3.4", None)),
        ("127.0.0.1", (["6.6.6.6, 1.2.3.4, 172.18.0.9"], None), ("1.2.3.4", None)),
        ("127.0.0.1", (["6.6.6.6", "1.2.3.4"], None), ("1.2.3.4", None)),
        ("127.0.0.1", (["6.6.6.6, 1.2.3.4:5678"], None), ("1.2.3.4", None)),
        ("127.0.0.1", (['6.6.6.6, "[2001:db8::1]:443"'], None), ("2001:db8::1", None)),
        ("::ffff:127.0.0.1", (["2001:db8::1"], None), ("2001:db8::1", None)),
        ("10.0.0.1", (["::ffff:1.2.3.4"], None), ("1.2.3.4", None)),
        ("fd00::1", (["1.2.3.4, nobody"], None), (None, None)),
        ("127.0.0.1", ([], "seed.example, other"), (None, "seed.example")),
        ("", (["1.2.3.4"], None), None),
    ],
)
def test_the_word_of_named_proxies_alone_counts_and_the_last_who_asked_them(peer, headers, said):
    assert forwarded(*headers, peer, PROXIES) == said


@pytest.mark.parametrize("text", ["", "proxy.example", "10.0.0.0/33", "10.0.0.1/8"])
def test_what_names_no_proxy(text):
    with pytest.raises(ValueError, match=r"network|host bits"):
        networks_in(text)


@asynccontextmanager
async def nginx(folder, upstream):
    """Run Debian's nginx with the recipe, but without TLS; yield its address."""
    (recipe,) = re.findall(r"```nginx\n(.*?)```", (ROOT / "docs/PROXY.md").read_text(), re.DOTALL)
    host = unused_host()
    place = f"{host}:{free_port(host)}"
    server = re.sub(r"    ssl_.*\n", "", recipe.replace("listen 443 ssl", f"listen {place}"))
    server = server.replace("127.0.0.1:9091", str(upstream))
    temporary = "".join(f"{kind}_temp_path {folder}/{kind};\n" for kind in (
        "client_body", "proxy", "fastcgi", "uwsgi", "scgi",
    ))  # fmt: skip
    (folder / "nginx.conf").write_text(
        f"daemon off;\nmaster_process off;\npid {folder}/pid;\nevents {{}}\n"
        f"http {{\naccess_log off;\n{temporary}{server}}}\n"
    )
    process = await asyncio.create_subprocess_exec(
        NGINX, "-e", folder / "error.log", "-c", folder / "nginx.conf", stderr=asyncio.subprocess.DEVNULL
    )
    try:
        yield place
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


async def status_of(session, place, headers=(), **more):
    async with session.get(f"http://{place}/api/torrents", headers={**dict(headers), **more}) as response:
        return response.status


async def until_there(place):
    host, _, port = place.partition(":")

    def is_there():
        with suppress(OSError), socket.create_connection((host, int(port))):
            return True
        return False

    await until(is_there, what="nginx")


@pytest.mark.slow
@pytest.mark.skipif(NGINX is None, reason="apt-get install nginx-light")
async def test_behind_nginx_pages_work_and_nobody_is_shut_out_by_anothers_guesses(tmp_path):
    web = WebOptions(
        HostPort("127.0.0.1", 0), Credentials("u", "right"), ("seed.example",), trusted_proxies=PROXIES[:1]
    )
    async with daemon_here(tmp_path, web=web) as here, nginx(tmp_path, here.address) as place:
        theirs, owners = (aiohttp.TCPConnector(local_addr=(unused_host(), 0)) for _ in range(2))
        async with aiohttp.ClientSession(connector=theirs) as they, aiohttp.ClientSession(connector=owners) as owner:
            page = {"Host": "seed.example", "Origin": "https://seed.example"}
            await until_there(place)
            assert await status_of(owner, place, RIGHT, **page) == 200
            assert await status_of(owner, place, RIGHT, **{**page, "Origin": "https://evil.example"}) == 403
            assert await status_of(owner, place, RIGHT, Host="evil.example") == 421
            for _ in range(2 * GUESSES_AT_ONCE):
                made_up = {"X-Forwarded-For": "1.2.3.4"}  # nginx adds who it is
                last = await status_of(they, place, WRONG, Host="seed.example", **made_up)
            assert last == 429
            assert await status_of(owner, place, RIGHT, **page) == 200


@pytest.mark.slow
@pytest.mark.skipif(NGINX is None, reason="apt-get install nginx-light")
async def test_without_a_password_nothing_that_a_proxy_sends_on_is_answered(tmp_path):
    async with (
        daemon_here(tmp_path) as here,
        nginx(tmp_path, here.address) as place,
        aiohttp.ClientSession() as session,
    ):
        await until_there(place)
        assert await status_of(session, place) == 401
        assert await status_of(session, here.address) == 200
