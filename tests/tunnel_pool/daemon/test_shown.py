"""Tests the torrent fields that clients see: trackers, speeds, and why a torrent waits for the network."""

import asyncio
import logging
import time
from contextlib import AsyncExitStack

from tests.tunnel_pool.daemon.owner import Seeder
from tests.tunnel_pool.daemon.rpc import Rpc
from tests.tunnel_pool.daemon.running import daemon_here
from tests.worlds.network import until, unused_host
from tests.worlds.recording_tracker import recording_tracker
from tunnel_pool.daemon.changes.edits import AddRequest, Run, Stop
from tunnel_pool.daemon.network_watch import SAID_AFTER_S, SAID_AGAIN_S, NetworkWatch
from tunnel_pool.torrent.metainfo import parse_torrent


async def stats_of(rpc):
    (torrent,) = (await rpc.call("torrent_get", {"fields": ["tracker_stats"]}))["torrents"]
    return torrent["tracker_stats"][0]


async def test_a_trackers_answer_is_shown_with_its_time_and_an_unheard_one_as_such(tmp_path):
    host = unused_host()
    async with recording_tracker(host) as tracker, daemon_here(tmp_path) as here, Rpc(here.address) as rpc:
        link = f"magnet:?xt=urn:btih:{'ab' * 20}&tr=udp://{host}:{tracker.port}"
        before_s = int(time.time())
        torrent, _ = await here.changes.add(parse_torrent(link), AddRequest(hops=0, stopped=True))
        stats = await stats_of(rpc)
        assert (stats["has_announced"], stats["last_announce_time"]) == (False, 0)
        await here.changes.apply([torrent], Run())
        await until(lambda: torrent.trackers)
        stats = await stats_of(rpc)
        assert stats["has_announced"]
        assert stats["last_announce_succeeded"]
        assert before_s <= stats["last_announce_time"] <= time.time()
        assert stats["next_announce_time"] > time.time()
        assert len(tracker.told) == 1


async def test_one_tracker_of_each_tier_is_asked_although_the_first_one_answers(tmp_path):
    host = unused_host()
    async with AsyncExitStack() as stack:
        trackers = [await stack.enter_async_context(recording_tracker(host)) for _ in range(4)]
        here = await stack.enter_async_context(daemon_here(tmp_path))
        urls = [f"http://{host}:{each.port}/announce" for each in trackers]
        tiers = [[urls[0]], urls[1:3], [f"udp://{host}:{trackers[3].port}"]]
        link = parse_torrent(f"magnet:?xt=urn:btih:{'ab' * 20}")
        link.trackers, link.tracker_tiers = [url for tier in tiers for url in tier], [0, 1, 1, 2]
        torrent, _ = await here.changes.add(link, AddRequest(hops=0))
        assert torrent.record.trackers == tiers
        await until(lambda: all(any(trackers[i].told for i in tier) for tier in ((0,), (1, 2), (3,))))
        assert [told.event for each in trackers for told in each.told] == ["started"] * 3


async def test_a_torrent_that_is_stopped_has_no_speed(tmp_path, tmp_path_factory):
    seeder = Seeder(tmp_path_factory.mktemp("seeds"))
    async with daemon_here(tmp_path) as here:
        link = parse_torrent(seeder.link_to("t", {"a": 30_000_000}))
        torrent, _ = await here.changes.add(link, AddRequest(hops=0))
        await until(lambda: torrent.down_rate > 100_000)
        await here.changes.apply([torrent], Stop())
        await until(lambda: not torrent.down_rate, 2)
        await asyncio.sleep(1.5)
        assert not torrent.down_rate


def test_what_keeps_torrents_from_the_network_is_said_when_it_lasts(caplog):
    caplog.set_level(logging.INFO)
    why = "nobody answers"
    watch = NetworkWatch(lambda: why)
    for now_s in range(int(SAID_AFTER_S + SAID_AGAIN_S)):
        watch.look(float(now_s))
    assert caplog.messages == ["nobody answers"]
    watch.look(SAID_AFTER_S + SAID_AGAIN_S)
    why = ""
    watch.look(SAID_AFTER_S + SAID_AGAIN_S + 1)
    watch.look(SAID_AFTER_S + SAID_AGAIN_S + 2)
    assert caplog.messages == ["nobody answers"] * 2 + ["Torrents with hops have their way out again"]
