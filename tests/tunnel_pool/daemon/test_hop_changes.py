"""Tests hop counts that are set after a torrent was added, and changes of a torrent's hop count."""

import asyncio

import pytest

from tests.tunnel_pool.daemon.rpc import Rpc
from tests.tunnel_pool.daemon.running import daemon
from tests.worlds.swarms import http_tracker

LINK = "magnet:?xt=urn:btih:{}&tr=http://{}:{}/announce"


async def test_a_new_torrent_contacts_nobody_until_its_client_may_have_said_how_many_hops(tmp_path):
    """transmission-remote sends labels in a request of their own, and so does Flood."""
    async with (
        http_tracker() as (tracker, asked),
        daemon(tmp_path, "--hops=0", "--workers=0", "--settle=1") as (running, address),
        Rpc(address) as rpc,
    ):
        added = await rpc.call("torrent_add", {"filename": LINK.format("a" * 40, *tracker)})
        await asyncio.sleep(0.5)
        await rpc.call("torrent_set", {"ids": added["torrent_added"]["id"], "labels": ["iso", "hops:2"]})
        await asyncio.sleep(1.5)
        assert asked == []
        # A torrent without a hop count starts once it has settled, one with a hop count starts at once.
        await rpc.call("torrent_add", {"filename": LINK.format("b" * 40, *tracker)})
        assert asked == []
        await rpc.call("torrent_add", {"filename": LINK.format("c" * 40, *tracker), "hops": 0})
        async with asyncio.timeout(0.9):
            while len(asked) < 1:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        async with asyncio.timeout(10):
            while len(asked) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.02)


@pytest.mark.slow
async def test_a_torrent_that_was_just_added_waits_also_after_a_restart(tmp_path):
    arguments = ["--hops=0", "--workers=0", "--settle=4"]
    async with http_tracker() as (tracker, asked):
        async with daemon(tmp_path, *arguments) as (running, address), Rpc(address) as rpc:
            await rpc.call("torrent_add", {"filename": LINK.format("a" * 40, *tracker)})
            running.process.kill()
        async with daemon(tmp_path, *arguments) as (running, address), Rpc(address) as rpc:
            (torrent,) = (await rpc.call("torrent_get", {"fields": ["id"]}))["torrents"]
            await rpc.call("torrent_set", {"ids": torrent["id"], "labels": ["hops:2"]})
            await asyncio.sleep(4.5)
            assert asked == []


async def test_other_plain_torrents_go_on_when_one_gets_hops(tmp_path):
    async with (
        http_tracker() as (tracker, asked),
        daemon(tmp_path, "--hops=0", "--workers=0") as (running, address),
        Rpc(address) as rpc,
    ):
        numbers = []
        for name in "abc":
            added = await rpc.call("torrent_add", {"filename": LINK.format(name * 40, *tracker)})
            numbers.append(added["torrent_added"]["id"])
        async with asyncio.timeout(10):
            while len(asked) < 3:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        asked.clear()
        notice = (await rpc.call("torrent_set", {"ids": numbers[0], "hops": 1}))["notice"]
        assert "saw this machine's address" in notice
        # Both others left the old session, and came to the new one.
        async with asyncio.timeout(10):
            while len(asked) < 4:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        torrents = (await rpc.call("torrent_get", {"fields": ["labels", "status", "error"]}))["torrents"]
        assert sorted(torrent["labels"][0] for torrent in torrents) == ["hops:0", "hops:0", "hops:1"]
        assert {torrent["status"] for torrent in torrents} == {4}
