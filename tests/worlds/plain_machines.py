"""Other hosts on a test's network, each with a namespace of its own, and plain BitTorrent clients."""

import asyncio
import os
import subprocess
import time

import libtorrent as lt

from tests.worlds.leak_world import WORLD, run
from tunnel_pool.torrent.sessions.libtorrent_session import open_session
from tunnel_pool.torrent.sessions.session_settings import PRIVATE_DHT

BUFFER_BYTES = 4 << 20
UTP_SOCKET = 1 << 17  # libtorrent's peer_info.hpp; its Python does not name it
ASK_AGAIN_S = 1.0


class Machine:
    """A host with a network namespace of its own, so that what it sends comes from its address alone."""

    def __init__(self, host):
        self._host = host
        self._holder = subprocess.Popen(["unshare", "-n", "sleep", "600"])
        self.enter = ["nsenter", "-t", str(self._holder.pid), "-n"]

    def join(self):
        ours, theirs = (os.readlink(f"/proc/{pid}/ns/net") for pid in ("self", self._holder.pid))
        if ours == theirs:
            return False
        here = "port" + "".join(self._host.split(".")[2:])
        run("ip", "addr", "del", f"{self._host}/32", "dev", "world")
        run("ip", "link", "add", here, "type", "veth", "peer", "name", "out", "netns", str(self._holder.pid))
        run("ip", "link", "set", here, "master", "world", "up")
        run(*self.enter, "ip", "addr", "add", f"{self._host}/16", "dev", "out")
        for device in ("lo", "out"):
            run(*self.enter, "ip", "link", "set", device, "up")
        run(*self.enter, "ip", "route", "add", "default", "via", WORLD)
        return True

    def close(self):
        self._holder.kill()
        self._holder.wait()


class PlainPeer:
    """Downloads by plain libtorrent, without a port that others could connect to."""

    def __init__(self, host, torrent, folder, nodes=(), speed=0):
        settings = {
            "listen_interfaces": f"{host}:0",
            "enable_incoming_tcp": False,
            "enable_incoming_utp": False,
            "enable_lsd": False,
            "enable_upnp": False,
            "enable_natpmp": False,
            "enable_dht": bool(nodes),
            "dht_bootstrap_nodes": "",
            "allow_multiple_connections_per_ip": True,
            "min_reconnect_time": 1,
            "alert_mask": 0,
            **PRIVATE_DHT,
        }
        self._session = open_session(settings)
        self._nodes = nodes
        parameters = lt.load_torrent_file(str(torrent))
        parameters.save_path = str(folder)
        self.handle = self._session.add_torrent(parameters)
        self.seen = set()  # (host, port) of peers that it has got parts of the file from
        self.by = set()  # "tcp" and "utp", as it was

    async def until(self, is_there, timeout_s=60):
        """Return after how many seconds the status `is_there`; the client asks for peers again and again."""
        started_s = asked_s = time.monotonic()
        while not is_there(status := self._looked()):
            now_s = time.monotonic()
            if now_s > started_s + timeout_s:
                raise TimeoutError(f"not found: {status.state}, {status.num_peers} peers, {self.seen}")
            if now_s - asked_s > ASK_AGAIN_S:
                asked_s = now_s
                self._ask()
            await asyncio.sleep(0.02)
        return time.monotonic() - started_s

    async def downloaded(self):
        """Return when the first byte came, and how long all others took, in seconds."""
        first_s = await self.until(lambda status: status.total_payload_download)
        return first_s, await self.until(lambda status: status.is_seeding)

    def _looked(self):
        """Return the status, once it is noted which peers have sent parts of the file."""
        infos = [info for info in self.handle.get_peer_info() if info.total_download]
        self.seen |= {info.ip for info in infos}
        self.by |= {"utp" if info.flags & UTP_SOCKET else "tcp" for info in infos}
        return self.handle.status()

    def _ask(self):
        self.handle.force_reannounce(0, -1, lt.torrent_handle.ignore_min_interval)
        for node in self._nodes:
            self._session.add_dht_node(node)
        self.handle.force_dht_announce()

    async def close(self):
        holder = [self._session]
        del self._session, self.handle
        await asyncio.to_thread(holder.clear)
