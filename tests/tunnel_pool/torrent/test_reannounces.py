"""Tests repeated announces to trackers and the DHT; a tracker is told again only after its answer to the last one."""

import asyncio
import time
from contextlib import asynccontextmanager

import libtorrent as lt
from aiohttp import web

from tests.worlds.network import until, unused_host
from tunnel_pool.torrent.announces.reannounces import Reannounces
from tunnel_pool.torrent.sessions.session_settings import ASK_ALL_TIERS


class SlowTracker:
    """Stands in for a tracker that answers when it may, and wants to be asked again after `INTERVAL_S`."""

    INTERVAL_S, LEAST_S = 1800, 3

    def __init__(self):
        self.asked = []  # the events of announces
        self.at_s = []  # when they came
        self.may_answer = asyncio.Event()
        self.status = 200
        self.url = ""

    ANSWER = {b"interval": INTERVAL_S, b"min interval": LEAST_S, b"peers": b""}  # noqa: RUF012

    async def answer(self, request):
        self.asked.append(request.query.get("event", ""))
        self.at_s.append(time.monotonic())
        await self.may_answer.wait()
        return web.Response(status=self.status, body=lt.bencode(self.ANSWER))


@asynccontextmanager
async def slow_tracker():
    tracker = SlowTracker()
    app = web.Application()
    app.router.add_get("/announce", tracker.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, unused_host(), 0)
    await site.start()
    tracker.url = f"http://{runner.addresses[0][0]}:{runner.addresses[0][1]}/announce"
    try:
        yield tracker
    finally:
        tracker.may_answer.set()
        await runner.cleanup()


@asynccontextmanager
async def announced_to(*trackers, tmp_path):
    """Yield the handle of a torrent that these trackers are told of."""
    session = lt.session(
        {
            "listen_interfaces": f"{unused_host()}:0", "enable_dht": False, "enable_lsd": False,
            "enable_upnp": False, "enable_natpmp": False, "stop_tracker_timeout": 0, **ASK_ALL_TIERS,
        }
    )  # fmt: skip
    parameters = lt.add_torrent_params()
    parameters.info_hashes = lt.info_hash_t(lt.sha1_hash(bytes(range(20))))
    parameters.save_path = str(tmp_path)
    parameters.trackers = [tracker.url for tracker in trackers]
    parameters.tracker_tiers = list(range(len(trackers)))
    yield session.add_torrent(parameters)


def known(handle, url):
    return next(tracker for tracker in handle.trackers() if tracker["url"] == url)


async def test_a_tracker_that_is_being_told_is_told_again_once_it_has_answered(tmp_path):
    reannounces = Reannounces()
    async with slow_tracker() as tracker, announced_to(tracker, tmp_path=tmp_path) as handle:
        await until(lambda: tracker.asked, what="the first announce")
        reannounces.add([handle], to_trackers=True)
        assert reannounces.some(5, {handle})
        assert reannounces.some(5, {handle})
        assert tracker.asked == ["started"]

        tracker.may_answer.set()
        await until(lambda: not reannounces.some(5, {handle}), what="the answer")
        await until(lambda: tracker.asked == ["started", ""], what="the second announce")


async def test_a_tracker_that_has_answered_is_told_when_it_wants_to_be_and_no_more_than_that(tmp_path):
    reannounces = Reannounces()
    async with slow_tracker() as tracker, announced_to(tracker, tmp_path=tmp_path) as handle:
        tracker.may_answer.set()
        await until(lambda: known(handle, tracker.url)["verified"], what="the first answer")
        reannounces.add([handle], to_trackers=True)
        assert not reannounces.some(5, {handle})
        await until(lambda: tracker.asked == ["started", ""], what="the second announce")
        assert tracker.at_s[1] - tracker.at_s[0] >= tracker.LEAST_S - 1  # libtorrent counts whole seconds


async def test_a_tracker_that_is_told_already_and_one_that_fails_are_left_to_libtorrent(tmp_path):
    reannounces = Reannounces()
    async with (
        slow_tracker() as told, slow_tracker() as failing, slow_tracker() as other,
        announced_to(told, failing, other, tmp_path=tmp_path) as handle,
    ):  # fmt: skip
        failing.status = 404
        for tracker in (told, failing, other):
            tracker.may_answer.set()
        await until(lambda: known(handle, failing.url)["fails"] == 1 and known(handle, other.url)["verified"])
        reannounces.add([handle], to_trackers=True, is_told=lambda infohashes, url: url == told.url)
        assert not reannounces.some(5, {handle})
        await until(lambda: other.asked == ["started", ""], what="the second announce")
        assert (told.asked, failing.asked) == (["started"], ["started"])


async def test_a_tracker_that_fails_is_told_again_at_once_and_then_left_to_libtorrent(tmp_path):
    reannounces = Reannounces()
    async with slow_tracker() as tracker, announced_to(tracker, tmp_path=tmp_path) as handle:
        tracker.status = 500
        await until(lambda: tracker.asked, what="the first announce")
        reannounces.add([handle], to_trackers=True)
        assert reannounces.some(5, {handle})
        tracker.may_answer.set()
        await until(lambda: not reannounces.some(5, {handle}), what="the failure")
        await until(lambda: known(handle, tracker.url)["fails"] == 2, what="the second failure")
        assert not reannounces.some(5, {handle})
        assert tracker.asked == ["started", "started"]


async def test_only_some_are_announced_at_a_time_and_torrents_that_are_gone_are_not(tmp_path):
    reannounces = Reannounces()
    async with announced_to(tmp_path=tmp_path) as handle:
        reannounces.add([handle], to_trackers=False)
        assert reannounces.some(0, {handle})
        assert not reannounces.some(1, {handle})
        reannounces.add([handle], to_trackers=True)
        assert not reannounces.some(1, ())
