"""Tests the remedies for downloads that stand still: their kinds, their timing, and that the downloads resume."""

import asyncio
import itertools

import pytest

from tests.tunnel_pool.daemon.running import daemon_here
from tests.worlds.network import until
from tunnel_pool.daemon.changes.edits import AddRequest, Select, SetFields
from tunnel_pool.daemon.rules import standstill
from tunnel_pool.daemon.rules.standstill import Standstill, Step
from tunnel_pool.daemon.torrents.session import DaemonSession
from tunnel_pool.private_swarm.swarm import same_bytes
from tunnel_pool.torrent.metainfo import parse_torrent

FILES = {"a.bin": 20_000_000}


@pytest.fixture
def link(seeder):
    """Return a magnet link that names the seeder."""
    return seeder.link_to("big", FILES)


def there_without_download(torrent):
    """Return the bytes that a torrent has and that its present handle has not downloaded."""
    status = torrent.handle.status()
    return status.total_done - status.total_payload_download


async def test_a_torrent_that_is_opened_anew_goes_on_where_it_was(seeder, link, tmp_path):
    async with daemon_here(tmp_path) as here:
        torrent, _ = await here.changes.add(
            parse_torrent(link), AddRequest(hops=0, others={"download_limited": True, "download_limit_kb": 4000})
        )
        await until(lambda: torrent.summary.total_done > 4_000_000)
        before = torrent.handle
        await here.changes.hops.open_anew(torrent)
        assert torrent.handle != before
        await until(lambda: there_without_download(torrent) > 3_000_000)
        await here.changes.apply([torrent], SetFields({"download_limited": False}))
        await until(lambda: torrent.is_finished, 30)
    assert same_bytes(seeder.folder / "big/a.bin", tmp_path / "big/a.bin")


@pytest.mark.slow
async def test_the_watchdog_gets_a_download_going_that_libtorrent_forgot(seeder, monkeypatch, tmp_path):
    """libtorrent counts nobody as a candidate after its first part was finished."""
    monkeypatch.setattr(standstill, "FIRST_S", 0.5)
    async with daemon_here(tmp_path) as here:
        link = parse_torrent(seeder.link_to("two", {"a.bin": 400_000, "b.bin": 400_000}))
        torrent, _ = await here.changes.add(link, AddRequest(hops=0, file_priorities=[4, 0]))
        await until(lambda: torrent.is_finished and not torrent.summary.num_peers, 30)
        await asyncio.sleep(2)  # until libtorrent has looked for peers once more
        with monkeypatch.context() as forgetting:
            forgetting.setattr(DaemonSession, "reconsider_peers", lambda session, torrent: None)
            await here.changes.apply([torrent], Select(lambda torrent: [4, 4]))
            await until(lambda: not torrent.is_finished)
        await until(lambda: torrent.standing)
        assert "no peer is found" in torrent.standing
        await until(lambda: torrent.is_finished, 30)
        await until(lambda: not torrent.standing)


def test_a_download_that_stands_still_is_helped_less_and_less_often():
    still = Standstill(0.0)
    steps = [(now_s, step) for now_s in range(0, 20_000, 10) if (step := still.look(now_s, (7, 0)))]
    times = [now_s for now_s, _ in steps]
    assert times[:5] == [30, 90, 210, 450, 930]
    assert max(later - sooner for sooner, later in itertools.pairwise(times)) <= 3600
    assert [step for _, step in steps[:8]] == 2 * [*3 * [Step.ASK_AGAIN], Step.OPEN_ANEW]


def test_any_byte_ends_a_standstill():
    still = Standstill(0.0)
    still.look(0, (7, 0))
    assert still.look(31, (7, 0)) is Step.ASK_AGAIN
    assert still.sentence(31, 0, True) == "nothing has come for 31 s: no peer is found (asked again: 1)"
    assert still.look(40, (7, 1)) is None
    assert still.sentence(40, 0, True) == ""
    assert still.look(69, (7, 1)) is None
    assert still.look(70, (7, 1)) is Step.ASK_AGAIN
