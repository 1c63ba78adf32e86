"""Tests real libtorrent with a real SOCKS5 server: nothing bypasses the proxy, and a second run resumes the first."""

import asyncio
import contextlib
import os
import signal
import socket
from contextlib import asynccontextmanager

import libtorrent as lt
import psutil
import pytest

from tests.socks5.test_server import Consumer
from tests.worlds.commands import command
from tests.worlds.network import sockets_of, until, unused_host
from tunnel_pool.framework import own_network
from tunnel_pool.private_swarm.swarm import LocalSwarm, same_bytes
from tunnel_pool.socks5.address import decode_address
from tunnel_pool.socks5.server import Socks5Server
from tunnel_pool.system.errors import UserError
from tunnel_pool.torrent.leftovers import leftovers
from tunnel_pool.torrent.metainfo import make_torrent, parse_torrent
from tunnel_pool.torrent.sessions.readiness import ANSWER_S
from tunnel_pool.torrent.sessions.session import TorrentSession

INFOHASH = "0123456789abcdef0123456789abcdef01234567"


class Outside:
    """A TCP and a UDP listener that nothing may reach."""

    def __init__(self):
        self.host = unused_host()
        self.tcp = socket.create_server((self.host, 0))
        self.port = self.tcp.getsockname()[1]
        self.udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.udp.bind((self.host, self.port))
        for sock in (self.tcp, self.udp):
            sock.setblocking(False)

    def was_reached(self):
        for attempt in (self.tcp.accept, lambda: self.udp.recv(1)):
            try:
                attempt()
            except BlockingIOError:
                continue
            return True
        return False

    def close(self):
        self.tcp.close()
        self.udp.close()


@asynccontextmanager
async def session_over(consumer, resume_dir):
    server = Socks5Server(own_network(), consumer)
    session = TorrentSession(server.listen(), resume_dir)
    session.start()
    try:
        yield session, server
    finally:
        await session.stop()
        await server.close()


async def test_nothing_leaves_outside_the_proxy(tmp_path):
    consumer, tracker, web_tracker, peer = Consumer(), Outside(), Outside(), Outside()
    async with session_over(consumer, tmp_path / "resume") as (session, server):
        links = [
            f"magnet:?xt=urn:btih:{INFOHASH}&tr=udp://{tracker.host}:{tracker.port}/announce",
            f"magnet:?xt=urn:btih:{INFOHASH[::-1]}&tr=udp://name.example:6969",
            f"magnet:?xt=urn:btih:{INFOHASH[1:]}a&tr=http://{web_tracker.host}:{web_tracker.port}/announce",
        ]
        await until(lambda: consumer.associations)
        for link in links:
            session.add(parse_torrent(link), tmp_path, [(peer.host, peer.port)])

        def asked():
            return {decode_address(address)[1:] for address, _ in consumer.received}

        # The peer, the tracker, and the name of the other tracker: all through the proxy, unresolved.
        expected = {(peer.host, peer.port), (tracker.host, tracker.port), ("name.example", 6969)}
        await until(lambda: expected <= asked())
        # Without the proxy it has nowhere to go.
        await server.close()
        session.reconnect((peer.host, peer.port).__eq__)
        await until(lambda: not consumer.associations)
        await asyncio.sleep(1.5)  # the time in which libtorrent would connect directly
        assert not any(outside.was_reached() for outside in (tracker, web_tracker, peer))
    for outside in (tracker, web_tracker, peer):
        outside.close()


async def test_the_tracker_of_a_torrent_that_is_gone_is_known_while_it_hears_of_its_end(tmp_path):
    async with session_over(Consumer(), tmp_path / "resume") as (session, _):
        session.add(parse_torrent(f"magnet:?xt=urn:btih:{INFOHASH}&tr=http://9.9.9.9:6969/announce"), tmp_path)
        assert session.is_http_tracker("9.9.9.9", 6969)
        session._torrents.clear()
        session._trackers_s = 0.0  # it looks anew
        assert session.is_http_tracker("9.9.9.9", 6969)
        assert not session.is_udp_tracker("9.9.9.9", 6969)


def many_files(folder):
    """Make a torrent of 5000 files, which libtorrent takes a while to look for, and return its path."""
    (folder / "many").mkdir()
    for number in range(5000):
        (folder / "many" / f"{number}").write_bytes(b"x")
    path = folder / "many.torrent"
    path.write_bytes(make_torrent(folder / "many", lambda number, of: None))
    return str(path)


@pytest.mark.parametrize(
    "source", [pytest.param(lambda folder: INFOHASH, marks=pytest.mark.slow), many_files], ids=["magnet", "torrent"]
)
async def test_peers_are_connected_to_when_a_torrent_is_added(tmp_path, source):
    consumer, peer = Consumer(), ("1.2.3.4", 6881)
    torrent = source(tmp_path)
    async with session_over(consumer, tmp_path / "resume") as (session, _):
        session._session.apply_settings({"connection_speed": 0})  # so many a second, when it looks once a second
        await until(lambda: consumer.associations)
        await asyncio.sleep(ANSWER_S)
        session.add(parse_torrent(torrent), tmp_path / "downloads", [peer])
        await until(lambda: peer in {decode_address(address)[1:] for address, _ in consumer.received})


UTP_SYN = bytes([0x41, 0, 0x12, 0x34]) + bytes(8) + (100_000).to_bytes(4, "big") + bytes([0, 1, 0, 0])  # BEP 29


def udp_ports_but(known):
    return {connection.laddr.port for connection in sockets_of(psutil.Process(), "udp4")} - known


async def answers(loop, port):
    """Return the answer to a BitTorrent peer that comes directly, not through the proxy; None if there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        stranger.bind((unused_host(), 0))
        stranger.setblocking(False)
        for _ in range(3):
            stranger.sendto(UTP_SYN, ("127.0.0.1", port))
        try:
            return await asyncio.wait_for(loop.sock_recv(stranger, 2000), 1)
        except TimeoutError:
            return None


async def test_a_stranger_at_libtorrents_own_port_is_not_answered(loop, tmp_path):
    """It binds that port to every address, whatever listen_interfaces says, to reach the proxy."""
    open_session = lt.session({**_WITHOUT_DISCOVERY, "listen_interfaces": "127.0.0.1:0"})
    assert await answers(loop, open_session.listen_port()), "a session without proxy shows that the question works"
    del open_session
    known = udp_ports_but(set())
    consumer = Consumer()
    async with session_over(consumer, tmp_path / "resume") as (session, _):
        session.add(parse_torrent(INFOHASH), tmp_path)
        await until(lambda: consumer.associations)
        (association,) = consumer.associations
        (port,) = udp_ports_but(known | {association.port})
        assert await answers(loop, port) is None


_WITHOUT_DISCOVERY = {"enable_dht": False, "enable_lsd": False, "enable_upnp": False, "enable_natpmp": False}


async def test_a_damaged_resume_file_means_checking_not_failing(tmp_path, caplog):
    resume = tmp_path / "resume"
    resume.mkdir()
    (resume / f"{INFOHASH}.resume").write_bytes(b"\x00damaged")
    async with session_over(Consumer(), resume) as (session, _):
        assert session.add(parse_torrent(INFOHASH), tmp_path) == INFOHASH
        assert session.add(parse_torrent(INFOHASH), tmp_path) == INFOHASH
        assert len(session.statuses) == 1
    assert "unusable" in caplog.text
    assert INFOHASH not in caplog.text
    assert lt.read_resume_data((resume / f"{INFOHASH}.resume").read_bytes())


async def test_resume_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="resume"):
        TorrentSession(1, tmp_path / "file" / "resume")


@pytest.mark.slow
async def test_a_second_run_goes_on_where_the_first_was_killed(tmp_path):
    size_bytes = 60 << 20
    async with LocalSwarm(size_bytes, seeders=1, exits=1, relays=0, log_level="error", seeder_speed=5_000_000) as swarm:
        arguments = ["download", swarm.torrent, "--workers=1", f"--save={tmp_path}", f"--state={tmp_path / 'state'}"]
        arguments += [f"--peer={swarm.seeders[0]}", f"--bootstrap={swarm.exits[0]}", f"--listen={swarm.client_host}:0"]
        arguments += [f"--community-id={swarm.community_id.hex()}", "--json"]
        async with command(*arguments) as first:
            resume = tmp_path / "state" / "resume"
            await until(lambda: list(resume.glob("*.resume")), 30)
            await first.until_downloaded(50)
            os.kill(first.pid, signal.SIGKILL)
            await first.process.wait()
        async with command(*arguments) as second:
            code, report, lines = await second.ended()
        assert code == 0, lines
        (torrent,) = report["torrents"]
        assert torrent["bytes"] == size_bytes
        # Pieces that were not whole are downloaded again, whenever resume data was last saved.
        assert 0 < torrent["downloaded_bytes"] < size_bytes * 0.6
        assert same_bytes(swarm.file, tmp_path / swarm.file.name)
        async with command(*arguments) as third:
            _, report, _ = await third.ended()
        assert report["torrents"][0]["downloaded_bytes"] == 0


@pytest.mark.parametrize("damage", ["none", "a hole", "other bytes", "cut short", "gone"])
async def test_pieces_that_came_after_the_last_save_are_found_in_the_files(damage, tmp_path):
    contents = {"a": os.urandom(100_000), "b": os.urandom(3000), "c": os.urandom(90_000)}
    for name, content in contents.items():
        (tmp_path / "t" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "t" / name).write_bytes(content)
    parameters = lt.load_torrent_buffer(make_torrent(tmp_path / "t", lambda *_: None, 16384))
    infohash = str(parameters.info_hashes.v1)
    parameters.save_path = str(tmp_path)
    parameters.have_pieces = [piece < 2 for piece in range(parameters.ti.num_pieces())]
    (tmp_path / "resume").mkdir()
    (tmp_path / "resume" / f"{infohash}.resume").write_bytes(lt.write_resume_data_buf(parameters))
    whole = tmp_path / "t" / parameters.ti.layout().file_path(parameters.ti.num_files() - 1).partition("/")[2]
    size = whole.stat().st_size
    if damage == "a hole":
        os.truncate(whole, 0)
        os.truncate(whole, size)
    elif damage == "other bytes":
        whole.write_bytes(bytes(size))
    elif damage == "cut short":
        os.truncate(whole, size // 2)
    elif damage == "gone":
        whole.unlink()
    found = dict(leftovers(parameters))
    assert 0 not in found
    assert 1 not in found
    async with session_over(Consumer(), tmp_path / "resume") as (session, _):
        session.add(parse_torrent(infohash), tmp_path)
        (torrent,) = session._torrents.values()
        expected = [True, True, *(piece in found for piece in range(2, parameters.ti.num_pieces()))]
        assert all(expected) is (damage == "none")
        query = lt.torrent_handle.query_pieces
        await until(lambda: list(torrent.handle.status(query).pieces) == expected)
        await until(lambda: torrent.status.finished is all(expected))


async def test_a_download_is_finished_once_its_files_are_written(tmp_path):
    """libtorrent 2.1 says so while all of a piece, and the files that it is in, are still in memory."""
    folder = tmp_path / "seeds" / "t"
    folder.mkdir(parents=True)
    for number in range(5000):
        (folder / f"{number}").write_bytes(os.urandom(200))
    parameters = lt.load_torrent_buffer(make_torrent(folder, lambda *_: None, 1 << 20))
    layout = parameters.ti.layout()
    paths = [layout.file_path(index) for index in range(layout.num_files())]
    piece = b"".join((tmp_path / "seeds" / path).read_bytes() for path in paths)
    async with session_over(Consumer(), tmp_path / "resume") as (session, _):
        session.add(parameters, tmp_path / "own")
        (added,) = session._torrents.values()
        await until(lambda: added.handle.status().state == lt.torrent_status.downloading)
        added.handle.add_piece(0, piece, 0)
        await until(lambda: added.status.finished)
        assert piece == b"".join((tmp_path / "own" / path).read_bytes() for path in paths)


@pytest.mark.parametrize("size", [100, 100_000, 100_001])
async def test_a_download_writes_to_no_file_that_is_not_its_own(size, tmp_path):
    (tmp_path / "seeds").mkdir()
    (tmp_path / "seeds" / "f").write_bytes(os.urandom(100_000))
    torrent = make_torrent(tmp_path / "seeds" / "f", lambda *_: None, 16384)
    stranger = tmp_path / "f"
    stranger.write_bytes(b"s" * size)
    async with session_over(Consumer(), tmp_path / "resume") as (session, _):
        if size > 100_000:
            with pytest.raises(UserError, match=f"{stranger} is there already, and is no file of this torrent"):
                session.add(lt.load_torrent_buffer(torrent), tmp_path)
            return
        session.add(lt.load_torrent_buffer(torrent), tmp_path)
        (added,) = session._torrents.values()
        await until(lambda: added.error)
        with pytest.raises(UserError, match=f"{stranger} is there already"):
            session.check(others_go_on=False)
        assert stranger.read_bytes() == b"s" * size
        assert added.handle.status().flags & lt.torrent_flags.paused
    async with session_over(Consumer(), tmp_path / "resume") as (
        session,
        _,
    ):  # nothing was saved by which it is its own
        session.add(lt.load_torrent_buffer(torrent), tmp_path)
        (added,) = session._torrents.values()
        await until(lambda: added.error)
    async with session_over(Consumer(), tmp_path / "resume2") as (session, _):
        session.add(lt.load_torrent_buffer(torrent), tmp_path / "seeds")
        (added,) = session._torrents.values()
        await until(lambda: added.status.finished)


@pytest.mark.parametrize("size", [None, 100_000, 100_001])
async def test_a_download_by_magnet_link_writes_to_no_file_that_is_not_its_own(size, tmp_path):
    (tmp_path / "seeds").mkdir()
    (tmp_path / "seeds" / "f").write_bytes(os.urandom(100_000))
    torrent = make_torrent(tmp_path / "seeds" / "f", lambda *_: None, 16384)
    link = lt.make_magnet_uri(lt.load_torrent_buffer(torrent))
    info = lt.load_torrent_buffer(torrent).ti.info_section()
    stranger = tmp_path / "f"
    async with session_over(Consumer(), tmp_path / "resume") as (session, _):
        if size is None:
            session.add(parse_torrent(link), tmp_path / "seeds")
            (added,) = session._torrents.values()
            added.handle.set_metadata(info)
            await until(lambda: added.status.finished)
            assert added.error is None
            assert list((tmp_path / "seeds").iterdir()) == [tmp_path / "seeds" / "f"]
            return
        stranger.write_bytes(b"s" * size)
        session.add(parse_torrent(link), tmp_path)
        (added,) = session._torrents.values()
        added.handle.set_metadata(info)
        await until(lambda: added.error)
        assert f"{stranger} is there already" in added.error
        await until(lambda: added.handle.status().flags & lt.torrent_flags.paused)
        assert stranger.read_bytes() == b"s" * size
    async with session_over(Consumer(), tmp_path / "resume") as (session, _):
        session.add(parse_torrent(link), tmp_path)
        (added,) = session._torrents.values()
        with contextlib.suppress(RuntimeError):  # it is known already
            added.handle.set_metadata(info)
        await until(lambda: added.error)
        assert stranger.read_bytes() == b"s" * size


async def test_a_seed_that_can_not_be_read_does_not_end_the_others(tmp_path):
    session = TorrentSession(1, tmp_path / "resume")
    session.start()
    try:
        for name in ("first", "second"):
            (tmp_path / name).write_bytes(os.urandom(100_000))
            session.add(lt.load_torrent_buffer(make_torrent(tmp_path / name, lambda *_: None)), tmp_path, seed=True)
        first, second = session._torrents.values()
        for torrent in (first, second):
            await until(lambda torrent=torrent: torrent.handle.status().state == lt.torrent_status.seeding)
        (tmp_path / "first").unlink()
        (tmp_path / "first").mkdir()
        first.handle.read_piece(0)
        await until(lambda: first.error)
        await session.wait_changed(0.01)
        assert first.error.startswith(f"cannot read {tmp_path / 'first'}: Is a directory")
        assert second.error is None
        (tmp_path / "second").unlink()
        (tmp_path / "second").mkdir()
        second.handle.read_piece(0)
        await until(lambda: second.error)
        with pytest.raises(UserError, match="cannot read"):
            await session.wait_changed(0.01)
    finally:
        await session.stop()
