"""Tests torrents that libtorrent reports incompletely: they must not break an answer about all torrents."""

import time

import libtorrent as lt
import pytest

from tests.tunnel_pool.daemon.running import make_torrent
from tunnel_pool.daemon.record import Record
from tunnel_pool.daemon.server.stream_server import _is_there
from tunnel_pool.daemon.server.transmission.fields import FIELDS
from tunnel_pool.daemon.torrents.seen import Count
from tunnel_pool.daemon.torrents.torrent import Torrent
from tunnel_pool.overlay.ground.lanes import Lane

QUIET = {"enable_dht": False, "enable_lsd": False, "enable_upnp": False, "enable_natpmp": False}


@pytest.fixture
def session():
    return lt.session({"listen_interfaces": "127.0.0.1:0", **QUIET})


def torrent_of(handle, status):
    record = Record(infohash="", number=1, hops=1, name="", folder="", position=0, added_s=0.0)
    return Torrent(Count(), record, Lane(1), handle, status)


def test_files_are_listed_while_a_new_session_does_not_know_them_yet(session, tmp_path):
    """After a change of hops, the status that was heard last is of the session before."""
    parameters = lt.load_torrent_buffer(make_torrent(tmp_path, "some", {"a": 30000, "b": 50000}))
    parameters.save_path = str(tmp_path)
    before = session.add_torrent(parameters).status()
    link = lt.parse_magnet_uri(lt.make_magnet_uri(lt.torrent_info(parameters.ti)))
    link.save_path = str(tmp_path)
    other = lt.session({"listen_interfaces": "127.0.0.1:0", **QUIET})
    torrent = torrent_of(other.add_torrent(link), before)
    assert torrent.handle.file_progress() == []
    assert [file["bytes_completed"] for file in FIELDS["files"](torrent)] == [0, 0]
    assert [file["bytes_completed"] for file in FIELDS["file_stats"](torrent)] == [0, 0]
    assert not _is_there(torrent, 1)


def test_a_web_seed_that_is_no_text_is_not_shown(session, tmp_path):
    link = lt.parse_magnet_uri(f"magnet:?xt=urn:btih:{'a' * 40}&ws=http://%ff%fe/")
    link.save_path = str(tmp_path)
    handle = session.add_torrent(link)
    assert FIELDS["webseeds"](torrent_of(handle, handle.status())) == []


def test_the_files_are_known_while_libtorrent_lets_go_of_a_torrent(session, tmp_path):
    """A status leads to the metadata only as long as libtorrent has the torrent; its threads end that at any moment."""
    parameters = lt.load_torrent_buffer(make_torrent(tmp_path, "some", {"a": 30000, "b": 50000}))
    parameters.save_path = str(tmp_path)
    handle = session.add_torrent(parameters)
    torrent = torrent_of(handle, handle.status())
    del parameters  # which has the metadata, too
    session.remove_torrent(handle)
    deadline_s = time.monotonic() + 30
    while handle.is_valid():
        assert time.monotonic() < deadline_s
        session.wait_for_alert(100)
        session.pop_alerts()
    assert (torrent.layout.num_files(), torrent.file_indexes()) == (2, [0, 1])
