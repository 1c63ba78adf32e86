"""Tests downloads from TCP-only peers of other programs, HTTPS trackers and web seeds, and from hidden peers."""

import asyncio
import shutil
import socket
import time
from contextlib import asynccontextmanager, suppress

import libtorrent as lt
import pytest
from aiohttp import web

from tests.worlds.commands import command
from tests.worlds.https import HTTPS_PORT, authority, needs_https
from tests.worlds.network import until, unused_host
from tunnel_pool.packet_engine import is_built
from tunnel_pool.private_swarm.seeder import seeder_settings
from tunnel_pool.private_swarm.swarm import LocalSwarm, free_port, same_bytes
from tunnel_pool.torrent.metainfo import parse_torrent, swarm_hash_of
from tunnel_pool.torrent.sessions.libtorrent_session import open_session

SIZE_BYTES = 2 << 20
WATCHED_S, LATER_S, MOST_LATER = 75, 45, 8
HOPS = [1, pytest.param(2, marks=pytest.mark.slow), pytest.param(3, marks=pytest.mark.slow)]

pytestmark = pytest.mark.skipif(not is_built(), reason="only the native engine carries streams")


needs_aria2 = pytest.mark.skipif(shutil.which("aria2c") is None, reason="apt-get install aria2")


@asynccontextmanager
async def swarm(hops, seeders=0):
    async with LocalSwarm(SIZE_BYTES, seeders=seeders, exits=2, relays=hops - 1, log_level="error") as opened:
        yield opened


async def downloads(opened, tmp_path, link, hops, *more):
    """Download, compare the bytes, and return the report."""
    arguments = [
        f"--hops={hops}",
        "--workers=2",
        f"--save={tmp_path}",
        f"--state={tmp_path / 'state'}",
        "--json",
        *more,
    ]
    arguments += [f"--listen={opened.client_host}:0", f"--bootstrap={','.join(map(str, opened.nodes))}"]
    async with command("download", link, f"--community-id={opened.community_id.hex()}", *arguments) as download:
        code, report, lines = await download.ended()
    assert code == 0, lines
    assert same_bytes(opened.file, tmp_path / opened.file.name)
    return report


def streams(report, kind="DATA"):
    return sum(circuit["streams"] for circuit in report["circuits"] if circuit["type"] == kind)


def torrent_with(opened, folder, **more):
    """Write a torrent of the swarm's file that names more: trackers and web seeds."""
    decoded = lt.bdecode(opened.torrent.read_bytes())
    decoded.update({key.replace("_", "-").encode(): value for key, value in more.items()})
    path = folder / "more.torrent"
    path.write_bytes(lt.bencode(decoded))
    return path


BY_TCP = {"enable_incoming_utp": False, "enable_outgoing_utp": False}
BY_UTP = {"enable_incoming_tcp": False, "enable_outgoing_tcp": False}
ENCRYPTED = dict.fromkeys(("in_enc_policy", "out_enc_policy"), int(lt.enc_policy.forced))


@asynccontextmanager
async def plain_peer(opened, **more):
    """Run a libtorrent seeder, and yield its address."""
    settings = {**seeder_settings(host := unused_host()), **more}
    session = open_session(settings)
    parameters = lt.load_torrent_file(str(opened.torrent))
    parameters.save_path = str(opened.file.parent)
    parameters.flags |= lt.torrent_flags.seed_mode
    parameters.flags &= ~(lt.torrent_flags.paused | lt.torrent_flags.auto_managed)
    handle = session.add_torrent(parameters)
    try:
        await until(session.listen_port, what="the seeder")
        yield f"{host}:{session.listen_port()}", handle
    finally:
        session.pause()
        holder = [session]
        del session, handle
        await asyncio.to_thread(holder.clear)


@pytest.mark.parametrize("hops", HOPS)
async def test_a_peer_that_speaks_tcp_alone(hops, tmp_path):
    async with swarm(hops) as opened, plain_peer(opened, **BY_TCP) as (peer, handle):
        report = await downloads(opened, tmp_path, opened.torrent, hops, f"--peer={peer}")
        assert streams(report) > 0
        assert {info.ip[0] for info in handle.get_peer_info()} <= {exit_.host for exit_ in opened.exits}


@pytest.mark.slow
@pytest.mark.parametrize("hops", [1, 2])
@pytest.mark.parametrize("settings", [ENCRYPTED, ENCRYPTED | BY_UTP, BY_UTP], ids=["encrypted", "both", "utp"])
async def test_a_peer_that_requires_encryption_or_utp_though_another_says_nothing(settings, hops, tmp_path):
    silent = await asyncio.start_server(lambda reader, writer: None, unused_host(), 0)
    host, port = silent.sockets[0].getsockname()
    async with silent, swarm(hops) as opened, plain_peer(opened, **settings) as (peer, _):
        began_s = time.monotonic()
        await downloads(opened, tmp_path, opened.torrent, hops, f"--peer={host}:{port}", f"--peer={peer}")
        print(f"{hops} hops: {time.monotonic() - began_s:.1f} s")


@pytest.mark.slow
async def test_a_peer_that_refuses_is_asked_less_and_less_often_and_not_given_up(tmp_path):
    asked_s = []

    def refuse(reader, writer):
        asked_s.append(time.monotonic())
        writer.close()

    refusing = await asyncio.start_server(refuse, unused_host(), 0)
    host, port = refusing.sockets[0].getsockname()
    async with refusing, swarm(1) as opened:
        arguments = ["--hops=1", "--workers=2", f"--save={tmp_path}", f"--state={tmp_path / 'state'}"]
        arguments += [f"--listen={opened.client_host}:0", f"--bootstrap={','.join(map(str, opened.nodes))}"]
        arguments += [f"--community-id={opened.community_id.hex()}", f"--peer={host}:{port}"]
        async with command("download", opened.torrent, *arguments):
            await until(lambda: asked_s and time.monotonic() - asked_s[0] > WATCHED_S, WATCHED_S + 30)
    print(f"{len(asked_s)} in {WATCHED_S} s: {[round(each - asked_s[0], 1) for each in asked_s]}")
    # libtorrent alone would give it up for good after a few seconds.
    assert 0 < len([each for each in asked_s if each > asked_s[0] + WATCHED_S - LATER_S]) <= MOST_LATER


@asynccontextmanager
async def aria2(opened, folder):
    """Run Debian's aria2 as a seeder, which speaks TCP alone; yield its address and torrent."""
    host = unused_host()
    port = free_port(host)
    files = lt.file_storage()
    lt.add_files(files, str(opened.file))
    of_v1 = lt.create_torrent(files, flags=lt.create_torrent.v1_only)  # aria2 knows no others
    lt.set_piece_hashes(of_v1, str(opened.file.parent))
    torrent = folder / "v1.torrent"
    torrent.write_bytes(lt.bencode(of_v1.generate()))
    process = await asyncio.create_subprocess_exec(
        "aria2c", "--seed-ratio=0", "--check-integrity=true",
        f"--dir={opened.file.parent}", f"--listen-port={port}", "--enable-dht=false", "--bt-enable-lpd=false",
        "--enable-peer-exchange=false", f"--interface={host}", "--no-conf", str(torrent),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, cwd=folder,
    )  # fmt: skip
    try:
        await until(lambda: _listens(port), what="aria2")
        yield f"{host}:{port}", torrent
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


def _listens(port):
    with open("/proc/net/tcp") as table:
        return any(line.split()[1].endswith(f":{port:04X}") and line.split()[3] == "0A" for line in table)


@pytest.mark.slow
@needs_aria2
@pytest.mark.parametrize("hops", [1, 3])
async def test_a_peer_of_another_program(hops, tmp_path):
    async with swarm(hops) as opened, aria2(opened, tmp_path) as (peer, torrent):
        report = await downloads(opened, tmp_path, torrent, hops, f"--peer={peer}")
        assert streams(report) > 0


@asynccontextmanager
async def https_server(folder, monkeypatch, peer, file):
    """Serve a tracker that knows this peer, and the file as a web seed; yield the host and a list of who asked."""
    host = unused_host()
    trusted, context = authority(folder, host)
    monkeypatch.setenv("SSL_CERT_FILE", str(trusted))
    asked = []

    async def answer(request):
        asked.append((request.path, request.remote))
        ip, port = peer
        packed = socket.inet_aton(ip) + port.to_bytes(2, "big")
        return web.Response(body=lt.bencode({b"interval": 60, b"peers": packed}))

    async def seed(request):
        asked.append((request.path, request.remote))
        return web.FileResponse(file)

    app = web.Application()
    app.router.add_get("/announce", answer)
    app.router.add_get("/files/{name}", seed)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, host, HTTPS_PORT, ssl_context=context).start()
    try:
        yield host, asked
    finally:
        await runner.cleanup()


@needs_https
@pytest.mark.parametrize("hops", HOPS)
async def test_peers_from_an_https_tracker(hops, tmp_path, monkeypatch):
    async with swarm(hops, seeders=1) as opened:
        async with https_server(tmp_path, monkeypatch, opened.seeders[0], opened.file) as (host, asked):
            link = f"magnet:?xt=urn:btih:{swarm_hash_of(parse_torrent(str(opened.torrent))).hex()}"
            await downloads(opened, tmp_path, f"{link}&tr=https://{host}/announce", hops)
        assert {path for path, _ in asked} == {"/announce"}
        assert {remote for _, remote in asked} <= {exit_.host for exit_ in opened.exits}


@needs_https
@pytest.mark.parametrize("hops", HOPS)
async def test_a_web_seed_over_https(hops, tmp_path, monkeypatch):
    async with swarm(hops) as opened:
        nobody = ("127.0.0.1", 9)
        async with https_server(tmp_path, monkeypatch, nobody, opened.file) as (host, asked):
            path = torrent_with(opened, tmp_path, url_list=f"https://{host}/files/".encode())
            await downloads(opened, tmp_path, path, hops)
        assert {path for path, _ in asked} == {f"/files/{opened.file.name}"}
        assert {remote for _, remote in asked} <= {exit_.host for exit_ in opened.exits}
