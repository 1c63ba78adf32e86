"""Stands in for Tribler's download manager by real libtorrent, with one session per hop count."""

import asyncio
from pathlib import Path
from types import SimpleNamespace

from tunnel_pool.torrent.metainfo import parse_torrent, swarm_hash_of
from tunnel_pool.torrent.sessions.session import TorrentSession


class Download:
    def __init__(self, session, parameters, hops, folder, seeding):
        self.seeding = seeding
        self.infohash = swarm_hash_of(parameters)
        self.config = SimpleNamespace(get_hops=lambda: hops)
        self._session = session
        self._key = session.add(parameters, folder, seed=seeding)
        self.handle = session._by_infohash[self._key].handle

    @property
    def lt_status(self):
        return self.handle.status()

    def add_peer(self, address):
        self._session.add_peer(self._key, tuple(address))


class DownloadManager:
    def __init__(self, folder):
        self.folder = Path(folder)
        self.socks_listen_ports = []
        self.listen_ports = {}
        self.sessions = {}
        self.downloads = []

    def get_downloads(self):
        return self.downloads

    def has_session(self, hops):
        return hops in self.sessions

    def get_session(self, hops):
        """Return a future of libtorrent's own session, as Tribler does."""
        future = asyncio.get_running_loop().create_future()
        future.set_result(self.session(hops)._session)
        return future

    def session(self, hops):
        if hops not in self.sessions:
            made = self.sessions[hops] = TorrentSession(
                self.socks_listen_ports[hops - 1], self.folder / f"resume-{hops}"
            )
            made.on_listening = lambda port: self.listen_ports.update({hops: port})
            made.start()
        return self.sessions[hops]

    def add(self, what, hops, folder, peers=(), seeding=False):
        download = Download(self.session(hops), parse_torrent(what), hops, Path(folder), seeding)
        self.downloads.append(download)
        for peer in peers:
            download.add_peer(peer)
        return download

    async def shutdown(self):
        for session in self.sessions.values():
            await session.stop()
