"""Tests `tunnel-pool download` with users' input: a magnet link with a tracker, a hybrid torrent, and a full disk."""

import asyncio
import os
import socket
import struct
import subprocess

import libtorrent as lt
import pytest

from tests.worlds.commands import command
from tests.worlds.network import unused_host
from tunnel_pool.private_swarm.swarm import LocalSwarm, same_bytes


class UdpTracker:
    """A UDP tracker (BEP 15) that always answers with the given peers."""

    def __init__(self, peers):
        self.sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.sock.bind((unused_host(), 0))
        self.host, self.port = self.sock.getsockname()
        self.peers = b"".join(socket.inet_aton(peer.host) + struct.pack("!H", peer.port) for peer in peers)
        self.asked_by = set()
        asyncio.get_running_loop().add_reader(self.sock, self._readable)

    def _readable(self):
        data, source = self.sock.recvfrom(2000)
        self.asked_by.add(source[0])
        action, transaction = struct.unpack_from("!II", data, 8)
        if action == 0:
            self.sock.sendto(struct.pack("!IIQ", 0, transaction, 7), source)
        elif action == 1:
            self.sock.sendto(struct.pack("!IIIII", 1, transaction, 60, 0, 1) + self.peers, source)

    def close(self):
        asyncio.get_running_loop().remove_reader(self.sock)
        self.sock.close()


def arguments_for(swarm, what, folder, *more):
    arguments = ["download", what, "--workers=1", f"--save={folder}", f"--state={folder}/.state", "--json"]
    arguments += [f"--bootstrap={','.join(map(str, swarm.nodes))}", f"--listen={swarm.client_host}:0"]
    return [*arguments, f"--community-id={swarm.community_id.hex()}", *more]


@pytest.mark.slow
async def test_a_magnet_link_with_a_tracker(tmp_path):
    """Metadata, tracker and peers: all through the circuits."""
    size_bytes = 10 << 20
    async with LocalSwarm(size_bytes, seeders=1, exits=1, relays=0, log_level="error") as swarm:
        tracker = UdpTracker(swarm.seeders)
        link = f"{lt.make_magnet_uri(lt.load_torrent_file(str(swarm.torrent)))}"
        link += f"&tr=udp://{tracker.host}:{tracker.port}/announce"
        async with command(*arguments_for(swarm, link, tmp_path)) as download:
            code, report, lines = await download.ended()
        tracker.close()
        assert code == 0, lines
        assert report["bytes"] == size_bytes
        assert report["torrents"][0]["name"] == swarm.file.name
        assert tracker.asked_by == {swarm.exits[0].host}
        assert same_bytes(swarm.file, tmp_path / swarm.file.name)
        assert await swarm.peers_of_seeders() == [[swarm.exits[0].host]]


@pytest.mark.slow
async def test_a_hybrid_torrent_by_its_first_hash_alone(tmp_path):
    """The torrent's best hash becomes another when the metadata arrives (BEP 52)."""
    async with LocalSwarm(1 << 20, seeders=1, exits=1, relays=0, log_level="error") as swarm:
        hashes = lt.load_torrent_file(str(swarm.torrent)).ti.info_hashes()
        assert hashes.has_v1()
        assert hashes.has_v2()
        arguments = arguments_for(swarm, str(hashes.v1), tmp_path, f"--peer={swarm.seeders[0]}")
        for downloaded_bytes in (1 << 20, 0):
            async with command(*arguments) as download:
                code, report, lines = await download.ended(40)
            assert code == 0, lines
            assert report["torrents"][0]["infohash"] == str(hashes.v1)
            assert report["torrents"][0]["downloaded_bytes"] == downloaded_bytes


@pytest.mark.slow
async def test_a_full_disk_is_one_line(small_disk, tmp_path_factory):
    state = tmp_path_factory.mktemp("state")
    async with LocalSwarm(20 << 20, seeders=1, exits=1, relays=0, log_level="error") as swarm:
        arguments = arguments_for(swarm, swarm.torrent, small_disk, f"--peer={swarm.seeders[0]}", f"--state={state}")
        async with command(*arguments) as download:
            code, report, lines = await download.ended()
        assert code == 1
        assert "No space left on device" in report["error"]
        assert "make room and start the same command again" in report["error"]
        assert "Traceback" not in "\n".join(lines)
        subprocess.run(["mount", "-o", "remount,size=30m", small_disk], check=True)
        async with command(*arguments) as download:
            code, report, lines = await download.ended()
        assert code == 0, lines
        assert same_bytes(swarm.file, small_disk / swarm.file.name)
        # Complete, then cut off by somebody: the resume data is not believed.
        os.truncate(small_disk / swarm.file.name, 100)
        async with command(*arguments) as download:
            code, report, lines = await download.ended()
        assert code == 0, lines
        assert same_bytes(swarm.file, small_disk / swarm.file.name)
