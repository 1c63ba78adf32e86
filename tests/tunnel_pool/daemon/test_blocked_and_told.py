"""Tests block lists of plain torrents, and the POST to the owner's program when a torrent is downloaded."""

import asyncio
import contextlib
from dataclasses import replace

import libtorrent as lt
from qbittorrentapi import Client

from tests.tunnel_pool.daemon.owner import Seeder, link_of
from tests.tunnel_pool.daemon.owners_program import owners_program
from tests.tunnel_pool.daemon.rpc import Rpc
from tests.tunnel_pool.daemon.running import daemon_here, make_torrent
from tests.worlds.network import until, unused_host
from tunnel_pool.daemon import done_webhook
from tunnel_pool.daemon.changes.edits import AddRequest
from tunnel_pool.daemon.outside.urls import place_of
from tunnel_pool.torrent.blocklist import parse
from tunnel_pool.torrent.metainfo import parse_torrent

SIZES = {"a": 100_000}


async def test_a_blocked_address_is_no_peer_until_the_list_changes(seeder, tmp_path):
    """The list blocks the faster of two seeders, so that the whole file comes from the slower one."""
    content = make_torrent(seeder.folder, "t", {"a": 400_000})
    slow = Seeder(seeder.folder, speed=400_000)
    for each in (seeder, slow):
        each.start(lt.load_torrent_buffer(content))
    link = f"{link_of(lt.load_torrent_buffer(content), seeder.address)}&x.pe={slow.address}"
    async with daemon_here(tmp_path, blocked=parse([seeder.address.host])) as here, Rpc(here.address) as rpc:
        torrent, _ = await here.changes.add(parse_torrent(link), AddRequest(hops=0))
        await until(lambda: torrent.is_finished)
        (fast,) = seeder.session.get_torrents()
        assert fast.status().total_payload_upload == 0
        shown = await rpc.call("session_get")
        assert (shown["blocklist_enabled"], shown["blocklist_size"]) == (True, 1)
        await rpc.call("session_set", {"blocklist_enabled": True})
        assert (await rpc.call("blocklist_update"))["blocklist_size"] == 1
        client = Client(host=f"http://{here.address}", FORCE_SCHEME_FROM_HOST=True)
        assert (await asyncio.to_thread(client.app_preferences)).ip_filter_enabled
        here.apply(replace(here.options, blocked=parse(["203.0.113.0/24"])))
        other, _ = await here.changes.add(parse_torrent(seeder.link_to("u", SIZES)), AddRequest(hops=0))
        await until(lambda: other.is_finished)


async def test_the_owners_program_is_told_once_of_what_was_downloaded(seeder, tmp_path, monkeypatch):
    monkeypatch.setattr(done_webhook, "AGAIN_AFTER_S", (0.05, 0.05))
    async with owners_program(lambda number: 500 if number == 1 else 200) as (url, told):
        async with daemon_here(tmp_path, webhook_done=place_of(url)) as here:
            wish = AddRequest(hops=0, labels=["x"])
            torrent, _ = await here.changes.add(parse_torrent(seeder.link_to("t", SIZES)), wish)
            await until(lambda: len(told) == 2)
            path, first = told[1]
            assert path == "/done"
            assert first | {"time_s": 0} == {
                "event": "done", "time_s": 0, "infohash": torrent.record.infohash, "number": 1, "name": "t",
                "folder": str(tmp_path), "labels": ["x"], "hops": 0, "size_bytes": 100_000,
                "downloaded_bytes": torrent.totals.downloaded,
            }  # fmt: skip
        assert len(told) == 2


async def test_a_redirection_is_not_followed(seeder, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(done_webhook, "AGAIN_AFTER_S", (0.05, 0.05))
    async with (
        owners_program(lambda number: 307) as (url, told),
        daemon_here(tmp_path, webhook_done=place_of(url)) as here,
    ):
        await here.changes.add(parse_torrent(seeder.link_to("t", SIZES)), AddRequest(hops=0))
        await until(lambda: len(told) == 3)
        await until(lambda: sum("the server answers 307" in line for line in caplog.messages) == 3)
        assert {path for path, _ in told} == {"/done"}


async def test_a_program_that_never_answers_keeps_nobody_from_stopping(seeder, tmp_path):
    asked, hung = asyncio.Event(), asyncio.get_running_loop().create_future()

    async def silent(reader, writer):
        asked.set()
        with contextlib.suppress(asyncio.CancelledError):
            await hung
        writer.close()

    server = await asyncio.start_server(silent, unused_host(), 0)
    host, port = server.sockets[0].getsockname()
    async with server, daemon_here(tmp_path, webhook_done=place_of(f"http://{host}:{port}/")) as here:
        await here.changes.add(parse_torrent(seeder.link_to("t", SIZES)), AddRequest(hops=0))
        await until(asked.is_set)
        hung.cancel()
