"""Tests the daemon's libtorrent sessions over real tunnels."""

import asyncio
import socket
from dataclasses import replace

import pytest

from tests.worlds.network import COMMUNITY_ID, address_of, network, tunnels, until, unused_host
from tunnel_pool.daemon.changes.edits import AddRequest, Remove, SetHops
from tunnel_pool.daemon.daemon import DaemonOptions, running
from tunnel_pool.daemon.errors import RequestError
from tunnel_pool.daemon.outside.urls import OutsideError, Way
from tunnel_pool.daemon.server.web import WebOptions
from tunnel_pool.daemon.torrents import sessions as daemon_sessions
from tunnel_pool.daemon.torrents.session import DaemonSession
from tunnel_pool.daemon.torrents.sessions import PLAIN_LANE, SessionOptions, Sessions
from tunnel_pool.overlay.ground.config import HostPort
from tunnel_pool.overlay.ground.lanes import Lane
from tunnel_pool.pool.scaling import WorkerRange
from tunnel_pool.torrent.metainfo import parse_torrent
from tunnel_pool.tunnels import NodeOptions

INFOHASH = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize("kind", ["plain", "pooled"])
async def test_it_is_told_when_peers_can_be_reached(kind):
    async with network(exits=2) as nodes, tunnels(kind, map(address_of, nodes), circuits=4) as client:
        sessions = Sessions(client, SessionOptions(private=True))
        told = asyncio.Event()
        sessions.on_reachable = told.set
        try:
            assert not sessions.is_reachable(Lane(1))
            sessions.ensure_open(Lane(1))
            assert not sessions.is_reachable(Lane(1))
            await asyncio.wait_for(told.wait(), 20)
            assert sessions.is_reachable(Lane(1))
            assert not sessions.is_reachable(Lane(2))
        finally:
            await sessions.stop()


async def test_a_session_may_end_with_its_last_torrent_and_with_the_daemon_at_one_time():
    async with network(exits=1) as nodes, tunnels("plain", map(address_of, nodes)) as client:
        sessions = Sessions(client, SessionOptions(private=True))
        for lane in (Lane(1), PLAIN_LANE):
            sessions.ensure_open(lane)
        stopping = asyncio.create_task(sessions.stop())
        await asyncio.gather(stopping, *(sessions.close(lane) for lane in (Lane(1), PLAIN_LANE)))
        assert not list(sessions._anonymous)


async def test_the_plain_session_ends_after_its_last_torrent(tmp_path, monkeypatch):
    monkeypatch.setattr(daemon_sessions, "PLAIN_LINGERS_S", 0.1)
    node = NodeOptions(WorkerRange(0, 0), tmp_path, listen=HostPort(unused_host(), 0), community_id=COMMUNITY_ID)
    sessions = SessionOptions(plain_listen=HostPort(unused_host(), 0))
    options = DaemonOptions(node, tmp_path, WebOptions(HostPort("127.0.0.1", 0)), sessions)
    async with running(options) as daemon:
        opened = daemon.library.sessions
        torrent, _ = await daemon.changes.add(parse_torrent(INFOHASH), AddRequest(hops=0))
        port = opened.plain_port()
        assert port
        await daemon.changes.apply([torrent], Remove())
        await until(lambda: PLAIN_LANE not in opened._sessions)
        await daemon.changes.add(parse_torrent(INFOHASH), AddRequest(hops=0))
        assert PLAIN_LANE in opened._sessions
        await asyncio.sleep(0.3)
        assert PLAIN_LANE in opened._sessions


async def test_the_plain_session_waits_for_a_torrent_that_is_just_leaving_it(tmp_path, monkeypatch):
    """The session was to end with another torrent, while the trackers of this one still hear of its end."""
    node = NodeOptions(WorkerRange(0, 0), tmp_path, listen=HostPort(unused_host(), 0), community_id=COMMUNITY_ID)
    plain = SessionOptions(plain_listen=HostPort(unused_host(), 0))
    monkeypatch.setattr(daemon_sessions, "PLAIN_LINGERS_S", 0.1)
    announced_last = DaemonSession.announced_last

    async def announced_late(session, handle):
        await asyncio.sleep(0.3)
        await announced_last(session, handle)

    monkeypatch.setattr(DaemonSession, "announced_last", announced_late)
    async with running(DaemonOptions(node, tmp_path, WebOptions(HostPort("127.0.0.1", 0)), plain)) as daemon:
        first, _ = await daemon.changes.add(parse_torrent(INFOHASH), AddRequest(hops=0))
        other, _ = await daemon.changes.add(parse_torrent("cd" * 20), AddRequest(hops=0))
        await daemon.changes.apply([first], Remove())
        await daemon.changes.apply([other], SetHops(1))
        assert (other.lane.hops, other.is_between_sessions) == (1, False)


async def test_on_a_device_torrents_without_hops_are_refused_and_those_of_before_stand_still(tmp_path, caplog):
    node = NodeOptions(WorkerRange(0, 0), tmp_path, listen=HostPort(unused_host(), 0), community_id=COMMUNITY_ID)
    plain = SessionOptions(plain_listen=HostPort(unused_host(), 0))
    options = DaemonOptions(node, tmp_path, WebOptions(HostPort("127.0.0.1", 0)), plain)
    async with running(options) as daemon:
        await daemon.changes.add(parse_torrent(INFOHASH), AddRequest(hops=0))
    caplog.clear()
    async with running(replace(options, node=replace(node, device="lo"))) as daemon:
        (torrent,) = daemon.library.torrents.values()
        daemon.library.scheduler.tick()
        assert torrent.is_paused
        assert "by the device lo" in torrent.notice
        session = daemon.library.sessions.ensure_open(PLAIN_LANE)
        daemon.library.apply_settings()  # by which a client turns the DHT on
        settings = session._session.get_settings()
        assert (session.listen_port(), settings["listen_interfaces"], settings["enable_dht"]) == (0, "", False)
        with pytest.raises(RequestError, match="by the device lo: give it hops"):
            await daemon.changes.add(parse_torrent("cd" * 20), AddRequest(hops=0))
        other, _ = await daemon.changes.add(parse_torrent("cd" * 20), AddRequest(hops=1))
        with pytest.raises(RequestError, match="by the device lo: give it hops"):
            await daemon.changes.apply([other], SetHops(0, confirmed=True))
        await daemon.changes.apply([torrent], SetHops(1))
        assert torrent.notice == ""
        with pytest.raises(OutsideError, match="all else goes by the device lo"):
            daemon.feeds._client.place_of("http://192.168.1.5:9696/feed")
        assert daemon.feeds._client.place_of("http://127.0.0.1:9696/feed").way is Way.DIRECT
        assert daemon.feeds._client.place_of("https://feeds.example.org/").way is Way.TUNNELS


async def test_a_daemons_torrent_begins_with_the_first_circuits_not_at_its_next_look(tmp_path):
    async with network() as nodes:
        node = NodeOptions(
            WorkerRange(0, 0),
            tmp_path,
            listen=HostPort(unused_host(), 0),
            bootstrap=(address_of(nodes[0]),),
            community_id=COMMUNITY_ID,
            allow_private=True,
        )
        options = DaemonOptions(node, tmp_path, WebOptions(HostPort("127.0.0.1", 0)))
        async with running(options) as daemon:  # the regular looks are made by until_stopped, which does not run here
            torrent, _ = await daemon.changes.add(parse_torrent(INFOHASH), AddRequest(hops=1))
            assert torrent.is_paused
            await until(lambda: not torrent.is_paused)


@pytest.mark.parametrize("has_run", [False, True])
async def test_the_plain_sessions_sockets_are_closed_before_the_answer_that_a_torrent_has_hops(has_run, tmp_path):
    """This also holds for a torrent added a moment ago that nobody knows of: the session's DHT would go on."""
    node = NodeOptions(WorkerRange(0, 0), tmp_path, listen=HostPort(unused_host(), 0), community_id=COMMUNITY_ID)
    place = HostPort(unused_host(), 0)
    options = DaemonOptions(node, tmp_path, WebOptions(HostPort("127.0.0.1", 0)), SessionOptions(plain_listen=place))
    async with running(options) as daemon:
        torrent, _ = await daemon.changes.add(parse_torrent(INFOHASH), AddRequest(hops=0))
        torrent.has_run = has_run
        await until(daemon.library.sessions.plain_port)
        port = daemon.library.sessions.plain_port()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock, pytest.raises(OSError, match="in use"):
            sock.bind((place.host, port))
        await daemon.changes.apply([torrent], SetHops(1))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.bind((place.host, port))
