import os

import libtorrent as lt
import pytest

from tunnel_pool.private_swarm.swarm import make_random_file, same_bytes, write_torrent
from tunnel_pool.system.errors import UserError
from tunnel_pool.torrent.metainfo import (
    MAX_LINK_PEERS,
    MAX_TRACKERS,
    MAX_WEB_SEEDS,
    infohash_of,
    make_torrent,
    parse_torrent,
    read_metainfo,
    read_resume,
)

INFOHASH = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize("what", [INFOHASH, INFOHASH.upper(), f"magnet:?xt=urn:btih:{INFOHASH}&dn=name"])
def test_infohash_and_magnet(what):
    assert infohash_of(parse_torrent(what)) == INFOHASH


def test_v2_infohash():
    assert infohash_of(parse_torrent("ab" * 32)) == ("ab" * 32)[:40]


def test_torrent_file(tmp_path):
    make_random_file(tmp_path / "data", 100_000)
    write_torrent(tmp_path / "data", tmp_path / "data.torrent")
    parameters = parse_torrent(str(tmp_path / "data.torrent"))
    assert parameters.ti.total_size() == 100_000


@pytest.mark.parametrize(
    "what", ["magnet:", "magnet:?dn=x", "magnet:?xt=urn:btih:zz", "0123", "/no/such/file", "/", "", "/dev/zero"]
)
def test_what_names_no_torrent_is_one_line(what):
    with pytest.raises(UserError) as error:
        parse_torrent(what)
    assert "\n" not in str(error.value)


def test_a_file_that_is_no_torrent(tmp_path):
    (tmp_path / "x").write_bytes(b"d4:infoi1ee")
    with pytest.raises(UserError, match="not a torrent file"):
        parse_torrent(str(tmp_path / "x"))


def test_same_bytes(tmp_path):
    one, two = tmp_path / "1", tmp_path / "2"
    one.write_bytes(b"x" * (3 << 20))
    assert not same_bytes(one, two)
    two.write_bytes(b"x" * (3 << 20))
    assert same_bytes(one, two)
    two.write_bytes(b"x" * (3 << 20) + b"y")
    assert not same_bytes(one, two)


def test_a_magnet_link_names_only_so_many_peers():
    peers = [("1.2.3.4", 1000 + number) for number in range(2 * MAX_LINK_PEERS)]
    named = "".join(f"&x.pe={host}:{port}" for host, port in [peers[0], *peers])
    assert parse_torrent(f"magnet:?xt=urn:btih:{'ab' * 20}{named}").peers == peers[:MAX_LINK_PEERS]


def test_a_torrent_has_only_so_many_trackers_and_web_seeds():
    trackers = [f"udp://192.0.2.1:{port}/" for port in range(1, 10_001)]
    info = {b"name": b"x", b"piece length": 16384, b"length": 1, b"pieces": bytes(20)}
    web_seeds = [b"http://192.0.2.1:%d/x" % port for port in range(1, 1000)]
    metainfo = lt.bencode(
        {b"info": info, b"announce-list": [[url.encode()] for url in trackers], b"url-list": web_seeds}
    )
    parameters = read_metainfo(metainfo)
    session = lt.session({"listen_interfaces": "127.0.0.1:0", "enable_dht": False, "enable_lsd": False})
    parameters.save_path = "."
    parameters.flags |= lt.torrent_flags.paused
    handle = session.add_torrent(parameters)
    assert sorted(entry["url"] for entry in handle.trackers()) == sorted(trackers[:MAX_TRACKERS])
    assert len(handle.url_seeds()) == MAX_WEB_SEEDS


def test_web_seeds_at_ipv6_addresses_are_left_out():
    """libtorrent 2.1.1 has a fault there."""
    link = f"magnet:?xt=urn:btih:{INFOHASH}&ws=http://[2001:db8::1]/a&ws=https://user@[::1]:8/b&ws=http://a.example/c"
    assert parse_torrent(link).url_seeds == ["http://a.example/c"]


def test_a_torrent_has_no_more_pieces_after_a_restart(tmp_path):
    make_random_file(tmp_path / "data", 11 * 16384 - 5)
    write_torrent(tmp_path / "data", tmp_path / "data.torrent")
    parameters = parse_torrent(str(tmp_path / "data.torrent"))
    pieces = parameters.ti.num_pieces()
    assert pieces % 8
    parameters.have_pieces = [True] * pieces
    assert list(read_resume(lt.write_resume_data_buf(parameters)).have_pieces) == [True] * pieces


def test_links_and_pipes_are_no_part_of_a_torrent(tmp_path, caplog):
    folder = tmp_path / "named"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "own").write_bytes(b"own")
    (tmp_path / "private").write_bytes(b"private")
    (folder / "link").symlink_to(tmp_path / "private")
    (folder / "folder").symlink_to("sub")
    (folder / "gone").symlink_to("nothing")
    os.mkfifo(folder / "pipe")
    (tmp_path / "other name").symlink_to(folder)
    for source in (folder, tmp_path / "other name"):  # what is named itself may be a link
        layout = read_metainfo(make_torrent(source, lambda *_: None)).ti.layout()
        paths = [layout.file_path(index) for index in range(layout.num_files())]
        assert paths == [f"{source.name}/sub/own"]
    assert f"4 symbolic links and the like are no part of the torrent, {folder}/folder for one" in caplog.text


def metainfo_of(**more):
    info = {b"name": b"x", b"piece length": 16384, b"length": 1, b"pieces": b"a" * 20}
    return lt.bencode({b"info": info, **{name.replace("_", "-").encode(): value for name, value in more.items()}})


@pytest.mark.parametrize(
    ("named", "trackers"),
    [
        ({"announce": b" http://t.example/announce\n"}, ["http://t.example/announce"]),
        ({"announce": b"http://t.example/a b+c%20d"}, ["http://t.example/a%20b+c%20d"]),
        ({"announce": b"http://t.example/a+b%20c"}, ["http://t.example/a+b%20c"]),
        ({"announce": b"t.example/announce"}, []),
        ({"announce": b" \xff "}, []),
        (
            {"announce": b"http://no.example/", "announce_list": [[b" http://a.example/announce"], [], [b""], [b"udp://b.example:1"]]},
            ["http://a.example/announce", "udp://b.example:1"],
        ),
        ({"announce": b"", "announce_list": b"x"}, []),
        ({"announce": b" http://a.example/x", "announce_list": [[1, b""]]}, ["http://a.example/x"]),
    ],
)  # fmt: skip
def test_blanks_cost_no_tracker_of_a_torrent(named, trackers):
    parameters = read_metainfo(metainfo_of(**named))
    assert parameters.trackers == trackers
    assert parameters.tracker_tiers == sorted(parameters.tracker_tiers)


@pytest.mark.parametrize(
    ("query", "trackers"),
    [
        ("tr=%20http%3A%2F%2Fa.example%2Fannounce%20", ["http://a.example/announce"]),
        ("tr=+http://a.example/announce+", ["http://a.example/announce"]),
        ("tr=http://a.example/k%2By+z&tr.1=udp://b.example:1", ["http://a.example/k+y+z", "udp://b.example:1"]),
        ("tr=http%3A%2F%2Fa.example%2Fa%20b&tr=", ["http://a.example/a%20b"]),
        ("tr=x%20y", []),
    ],
)
def test_blanks_cost_no_tracker_of_a_link(query, trackers):
    assert parse_torrent(f"magnet:?xt=urn:btih:{INFOHASH}&{query}").trackers == trackers
