"""Downloads that stand still: what is tried, when, and that they go on."""

import asyncio
import contextlib
import itertools
import subprocess

import libtorrent as lt
import pytest

from tests.network import COMMUNITY_ID, until, unused_host
from tests.tunnel_pool.daemon.owner import Seeder, link_of
from tests.tunnel_pool.daemon.running import Rpc, connected, daemon, make_torrent, seen
from tunnel_pool.daemon.daemon import DaemonOptions, running
from tunnel_pool.daemon.rules import standstill
from tunnel_pool.daemon.rules.standstill import Standstill, Step
from tunnel_pool.daemon.server.web import WebOptions
from tunnel_pool.daemon.storage import disk
from tunnel_pool.daemon.storage.room import Room
from tunnel_pool.daemon.torrents.changes import AddRequest
from tunnel_pool.daemon.torrents.session import DaemonSession
from tunnel_pool.overlay.config import HostPort
from tunnel_pool.pool.scaling import WorkerRange
from tunnel_pool.private_swarm.swarm import same_bytes
from tunnel_pool.torrent.metainfo import parse_torrent
from tunnel_pool.tunnels import NodeOptions

FILES = {"a.bin": 20_000_000}


@contextlib.asynccontextmanager
async def daemon_here(folder):
    node = NodeOptions(
        WorkerRange(0, 0),
        folder,
        listen=HostPort(unused_host(), 0),
        bootstrap=(),
        community_id=COMMUNITY_ID,
        allow_private=True,
    )
    async with running(DaemonOptions(node, folder, WebOptions(HostPort("127.0.0.1", 0)))) as here:
        ticking = asyncio.create_task(here.until_stopped())
        yield here
        here.stopping.set()
        await ticking


@pytest.fixture
def seeder(tmp_path_factory):
    return Seeder(tmp_path_factory.mktemp("seeds"))


@pytest.fixture
def link(seeder):
    """A magnet link that names the seeder."""
    parameters = lt.load_torrent_buffer(make_torrent(seeder.folder, "big", FILES))
    seeder.start(parameters)
    return link_of(parameters, seeder.address)


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
        await here.changes.change([torrent], download_limited=False)
        await until(lambda: torrent.is_finished, 30)
    assert same_bytes(seeder.folder / "big/a.bin", tmp_path / "big/a.bin")


async def test_the_watchdog_gets_a_download_going_that_libtorrent_forgot(seeder, monkeypatch, tmp_path):
    """libtorrent counts nobody as a candidate after its first part was finished."""
    monkeypatch.setattr(standstill, "FIRST_S", 0.5)
    parameters = lt.load_torrent_buffer(make_torrent(seeder.folder, "two", {"a.bin": 400_000, "b.bin": 400_000}))
    seeder.start(parameters)
    async with daemon_here(tmp_path) as here:
        link = parse_torrent(link_of(parameters, seeder.address))
        torrent, _ = await here.changes.add(link, AddRequest(hops=0, file_priorities=[4, 0]))
        await until(lambda: torrent.is_finished and not torrent.summary.num_peers, 30)
        await asyncio.sleep(2)  # until libtorrent has looked for peers once more
        with monkeypatch.context() as forgetting:
            forgetting.setattr(DaemonSession, "reconsider_peers", lambda session, torrent: None)
            await here.changes.change([torrent], lambda torrent: [4, 4])
            await until(lambda: not torrent.is_finished)
        await until(lambda: torrent.standing)
        assert "no peer is found" in torrent.standing
        await until(lambda: torrent.is_finished, 30)
        await until(lambda: not torrent.standing)


@pytest.mark.slow
async def test_a_download_whose_disk_was_full_goes_on_when_there_is_room(seeder, link, small_disk, tmp_path_factory):
    state = tmp_path_factory.mktemp("state")
    arguments = ["--workers=0", "--hops=0", f"--listen={unused_host()}:0", "--min-free=1"]
    async with daemon(state, *arguments) as (running, address), Rpc(address) as rpc:
        await rpc.call("torrent_add", {"filename": link, "download_dir": str(small_disk)})
        client = await connected(address)
        torrent = await seen(client, 1, lambda torrent: torrent.error)
        assert "too little room on the disk" in torrent.error_string
        subprocess.run(["mount", "-o", "remount,size=60m", small_disk], check=True)
        await seen(client, 1, lambda torrent: torrent.percent_done == 1, timeout_s=60)
        assert "Traceback" not in "\n".join(running.lines)
    assert same_bytes(seeder.folder / "big/a.bin", small_disk / "big/a.bin")


async def test_a_disk_is_full_before_it_is_at_the_rate_at_which_it_fills(monkeypatch):
    free = 1_300_000_000
    monkeypatch.setattr(disk, "free_bytes", lambda folder: free)
    room = Room(1_000_000_000)
    await room.look({"/a": 90_000_000, "/b": 110_000_000})
    assert room.is_in("/a")
    assert not room.is_in("/b")
    await room.look({"/a": 0, "/b": 0})
    assert not room.is_in("/b")
    free = 1_500_000_000
    await room.look({"/a": 0, "/b": 0})
    assert room.is_in("/b")


async def test_a_folder_in_which_libtorrent_found_no_room_waits_for_some(monkeypatch):
    free = 4096
    monkeypatch.setattr(disk, "free_bytes", lambda folder: free)
    room = Room(0)
    room.found_none("/a")
    await room.look({"/a": 0})
    assert not room.is_in("/a")
    free = 20 << 20
    await room.look({"/a": 0})
    assert room.is_in("/a")


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
    assert still.sentence(31, 0, True) == "nothing has come for 31 s: no peer is found; they were asked again once"
    assert still.look(40, (7, 1)) is None
    assert still.sentence(40, 0, True) == ""
    assert still.look(69, (7, 1)) is None
    assert still.look(70, (7, 1)) is Step.ASK_AGAIN
