"""Tests which parts of a torrent, and of a tracker's answer, reach an anonymous session."""

import gzip
import socket

import libtorrent as lt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunnel_pool.torrent.announces.tracker_answers import AnswerRefusedError, rewritten
from tunnel_pool.torrent.announces.udp_trackers import ANNOUNCED, without_own
from tunnel_pool.torrent.anonymous_torrents import allowed_trackers, is_allowed_tracker, strip, tracker_rules

URL = "http://tracker.example/announce?x=1"
# Judged as libtorrent 2.1.1 has them; those that `strip` takes care of come first.
FIELDS = frozenset({
    "trackers", "tracker_tiers", "url_seeds", "http_seeds", "dht_nodes", "peers", "flags", "active_time",
    "added_time", "banned_peers", "comment", "completed_time", "created_by", "creation_date", "download_limit",
    "file_priorities", "finished_time", "have_pieces", "info_hash", "info_hashes", "last_download",
    "last_seen_complete", "last_upload", "max_connections", "max_uploads", "merkle_tree", "name", "num_complete",
    "num_downloaded", "num_incomplete", "part_file_dir", "piece_priorities", "renamed_files", "resume_data",
    "root_certificate", "save_path", "seeding_time", "storage_mode", "ti", "total_downloaded", "total_uploaded",
    "trackerid", "unfinished_pieces", "upload_limit", "url", "verified_pieces", "version",
})  # fmt: skip


def test_no_field_is_there_that_nobody_has_judged():
    """`ti` is the metadata: load_torrent_buffer leaves no tracker or web seed in it."""
    assert {name for name in dir(lt.add_torrent_params) if not name.startswith("_")} - FIELDS == set()


@pytest.mark.parametrize(
    "url", ["udp://tracker.lan:6969", "http://nas/announce", "http://fritz.box/", "udp://127.1:80"]
)
def test_no_exit_hears_of_names_of_an_inner_network(url):
    web_seed = url.replace("udp:", "https:").replace("http:", "https:")
    for is_private in (False, True):
        rules = tracker_rules(is_locked_down=True, is_private=is_private)
        assert is_allowed_tracker(url, rules) == is_private
        parameters = lt.add_torrent_params()
        parameters.trackers, parameters.url_seeds = [url, "udp://a.example:80"], [web_seed, "https://a.example/"]
        assert strip(parameters, rules) == (not is_private)
        assert (len(parameters.trackers), len(parameters.url_seeds)) == ((2, 2) if is_private else (1, 1))


@pytest.mark.parametrize("url", ["http://a.example/announce", "udp://1.2.3.4:80", "udp://[2001:db8::1]:6969/announce"])
def test_trackers_that_the_tunnels_carry(url):
    assert is_allowed_tracker(url)


@pytest.mark.parametrize(
    "url",
    [
        "ws://a.example/", "wss://a.example/", "WSS://a.example/", "https://a.example/", "ftp://a.example/",
        "a.example", "http://x.i2p/a", "http://", "http://a:0/", "http://a:65536/", "http://a b/", "http://a/\n", "",
        "http://\xe4.example/",
        "http://" + "a" * 3000,
    ],
)  # fmt: skip
def test_trackers_that_are_left_out(url):
    assert not is_allowed_tracker(url)


def hostile():
    made = {
        b"announce": b"wss://a.example/",
        b"announce-list": [[b"wss://a.example/", b"http://b.example/announce"], [b"udp://c.example:80"]],
        b"info": {b"length": 16384, b"name": b"x", b"piece length": 16384, b"pieces": b"a" * 20},
        b"nodes": [[b"name.example", 6881], [b"1.2.3.4", 6881]],
        b"url-list": [b"http://seed.example/x/"],
        b"httpseeds": [b"http://seed.example/y/"],
    }
    return lt.load_torrent_buffer(lt.bencode(made))


def test_what_a_session_is_given_of_a_hostile_torrent():
    parameters = hostile()
    parameters.save_path = "/tmp"
    assert strip(parameters) == 1
    assert (parameters.trackers, parameters.tracker_tiers) == (
        ["http://b.example/announce", "udp://c.example:80"],
        [0, 1],
    )
    parameters.flags |= lt.torrent_flags.paused
    parameters.flags &= ~lt.torrent_flags.auto_managed
    session = lt.session({"listen_interfaces": "127.0.0.1:0", "enable_dht": False, "enable_lsd": False})
    handle = session.add_torrent(parameters)
    assert [entry["url"] for entry in handle.trackers()] == parameters.trackers
    assert handle.url_seeds() == []
    assert handle.flags() & lt.torrent_flags.disable_pex


def test_what_was_kept_before_comes_back_without_it():
    kept = lt.read_resume_data(lt.write_resume_data_buf(hostile()))
    assert strip(kept) == 1
    assert kept.url_seeds == []


def test_tiers_that_are_edited():
    assert allowed_trackers([["ws://a.example/", "http://b.example/"], ["wss://c.example/"]]) == [["http://b.example/"]]


# Answers


def response(body, status=b"200 OK", *headers):
    return b"\r\n".join([b"HTTP/1.1 " + status, *headers, b"", lt.bencode(body) if isinstance(body, dict) else body])


def decoded(data):
    head, _, body = data.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert f"Content-Length: {len(body)}".encode() in head
    return lt.bdecode(body)


def test_names_among_the_peers_are_left_out():
    listed = [
        {b"ip": b"name.example", b"port": 1},
        {b"ip": b"1.2.3.4", b"port": 5, b"peer id": b"x" * 20},
        {b"ip": b"2001:db8::1", b"port": 6},
        {b"ip": b"fe80::1%eth0", b"port": 6},
        {b"ip": b"1.2.3.4", b"port": 0},
        {b"ip": b"1.2.3.4"},
        {b"ip": 5, b"port": 5},
        b"1.2.3.4",
    ]
    answer = decoded(rewritten(response({b"interval": 60, b"peers": listed, b"peers6": b"a" * 20}), URL))
    assert answer == {
        b"interval": 60,
        b"peers": bytes([1, 2, 3, 4, 0, 5]),
        b"peers6": b"a" * 18 + bytes.fromhex("20010db8" + "00" * 11 + "010006"),
    }


@pytest.mark.parametrize("is_listed", [True, False])
def test_where_others_find_us_is_no_peer(is_listed):
    """libtorrent would connect to itself over the tunnels."""
    own, another = ("1.2.3.4", 5), ("1.2.3.4", 6)
    compact = [socket.inet_aton(host) + port.to_bytes(2, "big") for host, port in (another, own, another)]
    peers = b"".join(compact)
    if is_listed:
        peers = [{b"ip": host.encode(), b"port": port} for host, port in (another, own, another)]
    answer = decoded(rewritten(response({b"peers": peers}), URL, own))
    assert answer[b"peers"] == 2 * compact[0]
    assert len(decoded(rewritten(response({b"peers": peers}), URL, ("2001:db8::1", 5)))[b"peers"]) == 18
    if not is_listed:
        head = ANNOUNCED + b"t" * 16
        assert without_own(head + peers, own) == head + 2 * compact[0]
        assert without_own(head + peers[6:12], own) == head
        assert without_own(head + b"1" + peers, own) == head + b"1" + peers  # in another place
        assert without_own(head + peers, None) == head + peers
        assert without_own(peers, own) == peers  # what is no answer to an announce


def test_known_keys_alone_pass():
    body = {
        b"interval": 1, b"peers": b"abcdef", b"external ip": b"\1\2\3\4", b"tracker id": b"x", b"failure reason": 5,
        b"warning message": b"w" * 9999, b"ws": b"wss://x/",
        b"files": {b"h" * 20: {b"complete": 1, b"name": b"x"}, b"": {}},
    }  # fmt: skip
    answer = decoded(rewritten(response(gzip.compress(lt.bencode(body)), b"200 OK", b"Content-Encoding: gzip"), URL))
    assert answer == {
        b"interval": 1, b"peers": b"abcdef", b"peers6": b"", b"tracker id": b"x", b"warning message": b"w" * 500,
        b"files": {b"h" * 20: {b"complete": 1}},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("location", "target"),
    [(b"http://b.example/a?b", b"http://b.example/a?b"), (b"/moved", b"http://tracker.example/moved")],
)
def test_a_redirection_within_http(location, target):
    answer = rewritten(response(b"<html>", b"302 Found", b"Location: " + location, b"Set-Cookie: a=b"), URL)
    assert answer == b"HTTP/1.1 302 Found\r\nLocation: %s\r\nContent-Length: 0\r\nConnection: close\r\n\r\n" % target


@pytest.mark.parametrize(
    "location", [b"https://b.example/", b"ws://b.example/", b"udp://b.example:1", b"file:///etc", b"//[", b"//[]"]
)
def test_a_redirection_elsewhere_is_refused(location):
    with pytest.raises(AnswerRefusedError):
        rewritten(response(b"", b"301 Moved", b"Location: " + location), URL)


@given(st.binary(max_size=300))
def test_no_answer_upsets_it(data):
    for answer in (data, response(data), response(data, b"302 Found"), response(data, b"301 x", b"Location: " + data)):
        try:
            rewritten(answer, URL)
        except AnswerRefusedError:
            continue
