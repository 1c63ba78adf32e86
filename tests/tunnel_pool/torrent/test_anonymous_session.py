"""Tests opening and closing libtorrent sessions that have no way out but the tunnels."""

import asyncio

from tests.worlds.network import address_of, network, tunnels, until
from tunnel_pool.overlay.ground.lanes import Lane
from tunnel_pool.torrent.sessions.anonymous_session import AnonymousSessions
from tunnel_pool.torrent.sessions.session import TorrentSession


async def test_a_lane_that_is_opened_anew_while_it_ends_keeps_its_own_server(tmp_path):
    async with network(exits=1) as nodes, tunnels("plain", map(address_of, nodes), circuits=2) as client:
        sessions = AnonymousSessions(
            client,
            lambda port, secret: TorrentSession(port, tmp_path, secret=secret),
            steering=False,
            lockdown=None,
        )
        try:
            first = sessions.open(Lane(1))
            await until(lambda: first.dispatcher.is_associated)
            ending = asyncio.ensure_future(sessions.end(Lane(1)))
            await asyncio.sleep(0)
            second = sessions.open(Lane(1))
            await ending
            assert sessions.get(Lane(1)) is second
            await until(lambda: second.dispatcher.is_associated)
            await sessions.end(Lane(1))
            assert list(sessions) == []
        finally:
            await sessions.close()
