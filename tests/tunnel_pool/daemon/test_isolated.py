"""Tests which of the daemon's torrents share a libtorrent session and circuits, while they come, change and go."""

from contextlib import asynccontextmanager

import pytest

from tests.worlds.network import COMMUNITY_ID, address_of, network, until, unused_host
from tunnel_pool.daemon.changes.edits import AddRequest, Relabel, Remove
from tunnel_pool.daemon.daemon import DaemonOptions, running
from tunnel_pool.daemon.server.web import WebOptions
from tunnel_pool.daemon.torrents.sessions import SessionOptions
from tunnel_pool.overlay.ground.config import HostPort
from tunnel_pool.overlay.ground.lanes import group_of
from tunnel_pool.pool.scaling import WorkerRange
from tunnel_pool.torrent.isolation import Isolation
from tunnel_pool.torrent.metainfo import parse_torrent
from tunnel_pool.torrent.sessions.lockdown import LockdownMode
from tunnel_pool.tunnels import NodeOptions

A, B, C = (digit * 40 for digit in "abc")


@asynccontextmanager
async def daemon(tmp_path, isolation):
    async with network(exits=2) as nodes:
        node = NodeOptions(
            WorkerRange(0, 0),
            tmp_path,
            listen=HostPort(unused_host(), 0),
            bootstrap=tuple(map(address_of, nodes)),
            community_id=COMMUNITY_ID,
            allow_private=True,
            circuits=2,
        )
        sessions = SessionOptions(private=True, lockdown=LockdownMode.OFF, isolation=isolation)
        async with running(DaemonOptions(node, tmp_path, WebOptions(HostPort("127.0.0.1", 0)), sessions)) as opened:
            yield opened


async def add(daemon, infohash, *labels):
    torrent, _ = await daemon.changes.add(parse_torrent(infohash), AddRequest(hops=1, labels=labels))
    return torrent


def groups(daemon):
    return {group_of(circuit) for circuit in daemon.tunnels.circuits.values()}


async def test_a_torrents_session_and_circuits_end_with_it(tmp_path):
    async with daemon(tmp_path, Isolation.TORRENT) as opened:
        first, second = await add(opened, A), await add(opened, B)
        lanes = {first.lane, second.lane}
        assert len(lanes) == 2
        await until(lambda: groups(opened) == {lane.group for lane in lanes})
        await opened.changes.apply([first], Remove())
        await until(lambda: set(opened.library.sessions._sessions) == {second.lane})
        await until(lambda: groups(opened) == {second.lane.group})
        assert opened.tunnels.wanted_circuits().keys() == {second.lane}
        again = await add(opened, A)
        assert again.lane not in lanes
        assert not opened.library.records.has(first)


async def test_labels_bring_a_torrent_to_those_that_have_the_same(tmp_path):
    async with daemon(tmp_path, Isolation.LABEL) as opened:
        first, second, third = await add(opened, A, "x"), await add(opened, B, "x"), await add(opened, C)
        assert first.lane == second.lane != third.lane
        before = second.handle
        await opened.changes.apply([second], Relabel.to([]))
        assert second.lane == third.lane
        assert second.handle != before
        assert second.handle.is_valid()
        assert second.record.labels == []
        await opened.changes.apply([first], Relabel.to([]))
        assert first.lane == third.lane
        await until(lambda: set(opened.library.sessions._sessions) == {third.lane})


@pytest.mark.parametrize("isolation", [Isolation.TORRENT, Isolation.NONE])
async def test_labels_change_nothing_else_where_they_do_not_isolate(isolation, tmp_path):
    async with daemon(tmp_path, isolation) as opened:
        torrent = await add(opened, A, "x")
        before = torrent.lane, torrent.handle
        await opened.changes.apply([torrent], Relabel.to(["y"]))
        assert (torrent.lane, torrent.handle) == before
        assert torrent.record.labels == ["y"]
