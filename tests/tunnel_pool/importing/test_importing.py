"""Tests imports of the torrents that Debian's transmission-daemon, qbittorrent-nox, deluged and rtorrent kept."""

import base64
import contextlib
import hashlib
import os
import pickle
import shutil
import sqlite3

import libtorrent as lt
import pytest

from tests.tunnel_pool.daemon.running import daemon_here
from tests.tunnel_pool.importing.make_fixtures import FIXTURES, PLACE, UNWANTED, write_as_left
from tests.worlds.network import until
from tunnel_pool.cli.main import make_parser
from tunnel_pool.cli.remote import importing
from tunnel_pool.cli.remote.importing import PROGRAMS
from tunnel_pool.daemon.changes.edits import Run
from tunnel_pool.importing.model import BadTorrentError, Found, bits, mapped, pieces_of_blocks
from tunnel_pool.system.errors import UserError

LIMITED = ("transmission", "qbittorrent", "deluge", "tribler")  # those in which a torrent has limits of its own
LABELS = {
    "transmission": ["films", "seen"],
    "qbittorrent": ["films", "hd", "seen"],
    "deluge": [],
    "rtorrent": ["films"],
    "rqbit": [],
    "tribler": [],
}


async def imported(program, address, downloads, *more, source=None):
    words = [
        "import", program, f"--from={source or FIXTURES / program}", f"--map={PLACE}/dl={downloads}",
        f"--rpc={address}", *more,
    ]  # fmt: skip
    arguments = make_parser(words).parse_args(words)
    return await arguments.run(arguments)


@pytest.fixture
def downloads(tmp_path):
    folder = tmp_path / "dl"
    write_as_left(folder)
    return folder


@pytest.mark.parametrize("program", PROGRAMS)
async def test_what_another_program_had_is_there_and_is_not_checked_again(tmp_path, downloads, program):
    # A piece that is wrong now would be found wrong if it was checked.
    whole = downloads / "whole" / "sub" / "b.bin"
    whole.write_bytes(b"wrong" + whole.read_bytes()[5:])
    async with daemon_here(tmp_path) as here:
        report = await imported(program, here.address, downloads, "--hops=0")
        assert (report["ok"], [row["new"] for row in report["torrents"]]) == (True, [True] * 3)
        by_name = {torrent.info.name(): torrent for torrent in here.library.torrents.values()}
        done, half, picked = by_name["whole"], by_name["half.bin"], by_name["picked"]
        await until(lambda: done.is_finished and not done.is_paused)
        assert (done.record.stopped, done.record.labels) == (False, LABELS[program])
        await until(lambda: not half.is_checking)
        assert half.progress == pytest.approx(0.5)
        assert picked.summary.total_done > 0
        assert all(torrent.record.folder == str(downloads) for torrent in by_name.values())
        assert not any(torrent.error or torrent.is_missing for torrent in by_name.values())
        assert half.record.stopped is (program != "rtorrent")
        if program in LIMITED:
            assert half.record.download_limited
            assert half.record.download_limit_kb in (100, 102)
        if program in ("transmission", "qbittorrent", "tribler"):
            assert (half.record.ratio_mode, half.record.ratio_limit) == (1, 1.5)
        if program in ("transmission", "qbittorrent", "tribler", "rqbit"):
            wanted = {picked.file_path(index): picked.is_wanted(index) for index in picked.file_indexes()}
            assert wanted == {"picked/q.bin": True, "/".join(UNWANTED): False}
        if program == "qbittorrent":
            assert (half.record.name, half.record.seeding_limit_min) == ("Half of it", 60)
            assert here.changes.categories() == {"films": str(downloads)}
        again = await imported(program, here.address, downloads, "--hops=0")
        assert [row["new"] for row in again["torrents"]] == [False] * 3


def test_what_rqbit_does_not_say_is_found_out(tmp_path):
    """Without `--fastresume` rqbit keeps no pieces, and of a link whose metadata has not come no torrent file."""
    kept = tmp_path / "kept"
    shutil.copytree(FIXTURES / "rqbit", kept)
    for path in kept.glob("*.bitv"):
        path.unlink()
    next(kept.glob("*.torrent")).unlink()
    found = list(PROGRAMS["rqbit"].read(kept))
    assert sorted(type(each).__name__ for each in found) == ["BadTorrentError", "Found", "Found"]
    assert not any(any(each.parameters.have_pieces) for each in found if isinstance(each, Found))


async def test_tribler_s_torrents_keep_their_hops(tmp_path, downloads):
    """The real Tribler wrote `hops = 2` of `whole`, and below it the 0 that held before."""
    async with daemon_here(tmp_path) as here:
        report = await imported("tribler", here.address, downloads)
        assert {row["name"]: row["hops"] for row in report["torrents"]} == {"whole": 2, "half.bin": 0, "picked": 0}
        assert {torrent.record.name: torrent.record.hops for torrent in here.library.torrents.values()} == {
            "whole": 2, "half.bin": 0, "picked": 0,
        }  # fmt: skip


def test_what_tribler_left_beside_a_downloads_state_holds_no_more(tmp_path):
    """A choice of files that was taken back is still there, in the copy of the values that held before."""
    folder = tmp_path / "dlcheckpoints"
    shutil.copytree(FIXTURES / "tribler" / "dlcheckpoints", folder)
    (path,) = folder.glob("2b79*.conf")
    path.write_text(path.read_text().rstrip() + "\nfiles = 0,\ncompleted_dir = /elsewhere\nseeding_ratio = 9.5\n")
    found = next(each for each in PROGRAMS["tribler"].read(tmp_path) if each.name == "whole")
    assert (found.hops, found.folder_when_done) == (2, "")
    assert "seed_ratio_limit" not in found.changes
    assert 0 not in found.parameters.file_priorities


def test_what_tribler_7_kept_is_read_from_the_folder_of_its_version(tmp_path, downloads):
    """Before 8.3 the metadata stood beside the resume data, which may lack it."""
    torrent = next((FIXTURES / "deluge" / "state").glob("2b79*.torrent")).read_bytes()
    folder = tmp_path / "7.14" / "dlcheckpoints"
    folder.mkdir(parents=True)
    resume = {
        b"file-format": b"libtorrent resume file", b"file-version": 1, b"pieces": b"\1" * 7,
        b"info-hash": bytes.fromhex(hashlib.sha1(lt.bencode(lt.bdecode(torrent)[b"info"])).hexdigest()),
    }  # fmt: skip
    (folder / f"{'ab' * 20}.conf").write_text(
        f'[download_defaults]\nhops = 3\nselected_file_indexes = 1,\nuser_stopped = True\nsaveas = "{downloads}"\n'
        f"[state]\nmetainfo = {base64.b64encode(torrent).decode()}\n"
        f"engineresumedata = {base64.b64encode(lt.bencode(resume)).decode()}\n"
    )
    (found,) = PROGRAMS["tribler"].read(tmp_path)
    assert (found.hops, found.is_stopped, found.parameters.save_path) == (3, True, str(downloads))
    assert (all(found.parameters.have_pieces), len(found.parameters.have_pieces)) == (True, 7)
    assert list(found.parameters.file_priorities) == [0, 4]


async def test_a_file_that_was_cut_short_since_is_checked_and_files_that_are_gone_are_waited_for(tmp_path, downloads):
    half = downloads / "half.bin"
    half.write_bytes(half.read_bytes()[:40_000])
    shutil.rmtree(downloads / "whole")
    async with daemon_here(tmp_path) as here:
        await imported("transmission", here.address, downloads, "--hops=0")
        by_name = {torrent.info.name(): torrent for torrent in here.library.torrents.values()}
        assert by_name["whole"].is_missing
        assert "no data found" in by_name["whole"].error
        await here.changes.apply([by_name["half.bin"]], Run())
        await until(lambda: by_name["half.bin"].summary.total_done == 2 * 16384)
        assert not (downloads / "whole").exists()


async def test_a_file_that_transmission_named_as_not_whole_gets_its_name(tmp_path, downloads):
    (downloads / "half.bin").rename(downloads / "half.bin.part")
    async with daemon_here(tmp_path) as here:
        source = tmp_path / "source"
        shutil.copytree(FIXTURES / "transmission", source)
        for resume in (source / "resume").iterdir():  # as it is where the names are looked up: on the same machine
            resume.write_bytes(resume.read_bytes().replace(bencoded(f"{PLACE}/dl"), bencoded(str(downloads))))
        await imported("transmission", here.address, downloads, "--hops=0", source=source)
        (half,) = (torrent for torrent in here.library.torrents.values() if torrent.info.name() == "half.bin")
        assert half.file_path(0) == "half.bin"
        assert (downloads / "half.bin").exists()
        assert half.progress == pytest.approx(0.5)


def bencoded(text):
    return f"{len(text)}:{text}".encode()


def write_torrent(folder, name, files):
    """Write a torrent file into a folder, and return its infohash and the contents of its files, by path."""
    contents = {path: os.urandom(size) for path, size in files.items()}
    whole = b"".join(contents.values())
    pieces = b"".join(hashlib.sha1(whole[at : at + 16384]).digest() for at in range(0, len(whole), 16384))
    info = {b"name": name.encode(), b"piece length": 16384, b"pieces": pieces}
    if "" in files:
        info[b"length"] = len(whole)
    else:
        info[b"files"] = [{b"length": size, b"path": path.encode().split(b"/")} for path, size in files.items()]
    torrent = lt.bencode({b"announce": b"http://old.example/a", b"info": info})
    infohash = str(lt.load_torrent_buffer(torrent).info_hashes.v1)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{infohash}.torrent").write_bytes(torrent)
    return infohash, contents


@pytest.mark.parametrize(
    ("name", "files", "kept", "places"),
    [
        ("whole", {"a": 40_000, "sub/b": 7}, {b"files": [b"whole/a", b"whole/sub/b"]}, ["whole/a", "whole/sub/b"]),
        ("ren", {"a": 3, "b": 4}, {b"files": [b"", b"ren/new"]}, ["ren/a", "ren/new"]),
        ("old", {"x": 3, "y": 4}, {b"name": b"new", b"files": [b"new/x", b"new/y"]}, ["new/x", "new/y"]),
        ("half.bin", {"": 5}, {b"name": b"Shown", b"files": [b"half.bin"]}, ["half.bin"]),
        ("title.bin", {"": 5}, {b"name": b"Shown"}, ["title.bin"]),
        ("older", {"x": 3, "y": 4}, {b"name": b"newer"}, ["newer/x", "newer/y"]),
        ("y|z", {"q*": 3, "r": 4}, {}, ["y_z/q_", "y_z/r"]),
        ("w: v?", {"": 3}, {b"files": [b"w_ v_"]}, ["w_ v_"]),
    ],
)  # fmt: skip
async def test_transmissions_files_are_found_as_its_versions_name_them(name, files, kept, places, tmp_path):
    infohash, contents = write_torrent(tmp_path / "kept" / "torrents", name, files)
    for place, content in zip(places, contents.values(), strict=True):
        (tmp_path / "dl" / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "dl" / place).write_bytes(content)
    resume = {b"name": name.encode(), **kept, b"destination": bytes(tmp_path / "dl"), b"progress": {b"blocks": b"all"}}
    (tmp_path / "kept" / "resume").mkdir()
    (tmp_path / "kept" / "resume" / f"{infohash}.resume").write_bytes(lt.bencode(resume))
    async with daemon_here(tmp_path) as here:
        report = await imported("transmission", here.address, tmp_path, "--hops=0", source=tmp_path / "kept")
        assert [(row["progress"], row["missing"]) for row in report["torrents"]] == [(1.0, 0)]
        (torrent,) = here.library.torrents.values()
        await until(lambda: torrent.is_finished)
        assert [torrent.file_path(index) for index in torrent.file_indexes()] == places
        assert not torrent.error


async def test_transmissions_newer_keys_are_those_of_old_and_its_magnet_links_are_named(tmp_path):
    infohash, _ = write_torrent(tmp_path / "torrents", "a", {"": 5})
    link = f"magnet:?xt=urn:btih:{'a' * 40}"
    (tmp_path / "torrents" / f"{'a' * 40}.magnet").write_text(link)
    (tmp_path / "resume").mkdir()
    kept = {
        b"destination": bytes(tmp_path / "gone"), b"progress": {b"blocks": b"all"}, b"added_date": 1_700_000_000,
        b"max_peers": 33, b"ratio_limit": {b"ratio_limit": b"2.5", b"ratio_mode": 1}, b"sequential_download": 1,
        b"speed_limit_down": {b"speed_Bps": 100_000, b"use_speed_limit": 1}, b"seeding_time_seconds": 777,
    }  # fmt: skip
    (tmp_path / "resume" / f"{infohash}.resume").write_bytes(lt.bencode(kept))
    report = await imported("transmission", "127.0.0.1:1", tmp_path, "--dry-run", source=tmp_path)
    assert report["failed"] == [f"its metadata is not known yet: add its link, {link}"]
    assert [row["missing"] for row in report["torrents"]] == [None]
    (found, _) = PROGRAMS["transmission"].read(tmp_path)
    assert (found.parameters.added_time, found.parameters.seeding_time) == (1_700_000_000, 777)
    assert found.changes["seed_ratio_limit"] == 2.5
    assert found.changes["sequential_download"]
    assert (found.changes["peer_limit"], found.changes["download_limit"]) == (33, 100)


async def test_a_dry_run_tells_which_files_are_missing(tmp_path, downloads):
    (downloads / "whole" / "sub" / "b.bin").write_bytes(b"short")
    report = await imported("transmission", "127.0.0.1:1", downloads, "--dry-run")
    assert {row["name"]: row["missing"] for row in report["torrents"]}["whole"] == 1
    assert "1 missing" in importing.describe(report)


def test_qbittorrents_normal_priority_is_no_low_one(tmp_path):
    infohash, _ = write_torrent(tmp_path, "a", {"x": 3, "y": 4, "z": 5, "u": 6})
    resume = {
        b"file-format": b"libtorrent resume file", b"file-version": 1, b"info-hash": bytes.fromhex(infohash),
        b"file_priority": [1, 0, 6, 7], b"save_path": b"/x",
    }  # fmt: skip
    (tmp_path / f"{infohash}.fastresume").write_bytes(lt.bencode(resume))
    (found,) = PROGRAMS["qbittorrent"].read(tmp_path)
    assert found.parameters.file_priorities == [4, 0, 6, 7]


def test_rtorrents_trackers_are_those_of_its_session(tmp_path):
    infohash, _ = write_torrent(tmp_path, "a", {"": 5})
    path = tmp_path / f"{infohash}.torrent"
    path.with_name(f"{path.name}.rtorrent").write_bytes(lt.bencode({b"directory": b"/x", b"state": 1}))
    trackers = {
        b"http://old.example/a": {b"enabled": 0}, b"http://new.example/a": {b"enabled": 1, b"extra_tracker": 1},
        b"udp://more.example:80": {b"enabled": 1, b"extra_tracker": 1, b"group": 3}, b"dht://": {b"enabled": 1},
    }  # fmt: skip
    path.with_name(f"{path.name}.libtorrent_resume").write_bytes(lt.bencode({b"trackers": trackers}))
    (found,) = PROGRAMS["rtorrent"].read(tmp_path)
    assert found.parameters.trackers == ["http://new.example/a", "udp://more.example:80"]
    assert found.parameters.tracker_tiers == [0, 1]


async def test_a_dry_run_asks_nobody_and_wrong_words_get_one_line(tmp_path, downloads):
    report = await imported("deluge", "127.0.0.1:9", downloads, "--dry-run")
    assert {row["name"]: round(row["progress"], 2) for row in report["torrents"]} == {
        "whole": 1.0, "half.bin": 0.5, "picked": 0.43,
    }  # fmt: skip
    with pytest.raises(UserError, match="no daemon answers"):
        await imported("deluge", "127.0.0.1:9", downloads)
    with pytest.raises(UserError, match="kept no torrents in"):
        await imported("rtorrent", "127.0.0.1:9", downloads, source=tmp_path)
    with pytest.raises(UserError, match="is no folder"):
        await imported("rtorrent", "127.0.0.1:9", downloads, source=tmp_path / "none")
    with pytest.raises(SystemExit):
        await imported("rtorrent", "127.0.0.1:9", downloads, "--map=here=there")


@contextlib.contextmanager
def kept_in_a_database(folder, mode="delete"):
    """Have the fixture's torrents in a database in this folder, and a link; yield while it is open."""
    backup = FIXTURES / "qbittorrent" / "qBittorrent" / "data" / "BT_backup"
    with contextlib.closing(sqlite3.connect(folder / "torrents.db")) as connection:
        connection.execute(f"PRAGMA journal_mode = {mode}")
        connection.execute(
            "CREATE TABLE torrents (id INTEGER PRIMARY KEY, torrent_id BLOB, queue_position INTEGER, name TEXT, "
            "category TEXT, tags TEXT, target_save_path TEXT, ratio_limit INTEGER, seeding_time_limit INTEGER, "
            "stopped INTEGER, libtorrent_resume_data BLOB, metadata BLOB)"
        )
        for place, resume in enumerate(sorted(backup.glob("*.fastresume"))):
            columns = {
                "torrent_id": resume.stem, "queue_position": place, "category": "films", "tags": "a,b",
                "target_save_path": "/fixture/dl", "ratio_limit": 1500, "seeding_time_limit": -2, "stopped": 1,
                "libtorrent_resume_data": resume.read_bytes(), "metadata": resume.with_suffix(".torrent").read_bytes(),
            }  # fmt: skip
            names, marks = ", ".join(columns), ", ".join("?" * len(columns))
            connection.execute(f"INSERT INTO torrents ({names}) VALUES ({marks})", tuple(columns.values()))
        connection.execute(
            "INSERT INTO torrents (torrent_id, queue_position, libtorrent_resume_data) VALUES ('m', 9, 'x')"
        )
        connection.commit()
        yield


def test_qbittorrents_database_is_read_as_its_files_are(tmp_path):
    with kept_in_a_database(tmp_path):
        pass
    found = list(PROGRAMS["qbittorrent"].read(tmp_path))
    assert [type(each) for each in found] == [Found] * 3 + [BadTorrentError]
    assert {tuple(each.labels) for each in found[:3]} == {("films", "a", "b")}
    assert all(each.is_stopped and each.changes["seed_ratio_limit"] == 1.5 for each in found[:3])
    assert "magnet link" in str(found[3])


def test_what_qbittorrent_wrote_last_is_in_its_databases_log(tmp_path):
    """It writes the log into the database when it ends; nothing is written where it keeps them."""
    (tmp_path / "open").mkdir()
    (tmp_path / "left").mkdir()
    with kept_in_a_database(tmp_path / "open", "wal"):
        for name in ("torrents.db", "torrents.db-wal"):
            shutil.copyfile(tmp_path / "open" / name, tmp_path / "left" / name)
    assert [type(each) for each in PROGRAMS["qbittorrent"].read(tmp_path / "left")] == [Found] * 3 + [BadTorrentError]
    assert sorted(os.listdir(tmp_path / "left")) == ["torrents.db", "torrents.db-wal"]


@pytest.mark.parametrize(
    ("configured", "older", "count"),
    [("SQLite", "", 3), ("Legacy", "", 1), ("", "torrents.db", 1), ("", "BT_backup", 3)],
)
def test_of_qbittorrents_two_stores_the_one_that_it_uses_is_read(configured, older, count, tmp_path):
    with kept_in_a_database(tmp_path):
        pass
    (tmp_path / "BT_backup").mkdir()
    infohash, _ = write_torrent(tmp_path / "BT_backup", "a", {"x": 3})
    resume = {b"file-format": b"libtorrent resume file", b"file-version": 1, b"info-hash": bytes.fromhex(infohash)}
    (tmp_path / "BT_backup" / f"{infohash}.fastresume").write_bytes(lt.bencode(resume))
    if configured:
        (tmp_path / "qBittorrent.conf").write_text(f"[BitTorrent]\nSession\\ResumeDataStorageType={configured}\n")
    else:
        for path in [tmp_path / older, *(tmp_path / older).glob("*")]:
            os.utime(path, (1e9, 1e9))
    found = [each for each in PROGRAMS["qbittorrent"].read(tmp_path) if isinstance(each, Found)]
    assert len(found) == count


def test_pieces_that_fill_a_byte_of_newer_resume_data_are_no_pieces(tmp_path):
    """libtorrent 2.1 packs eight of them into a byte."""
    infohash, _ = write_torrent(tmp_path, "a", {"x": 11 * 16384})
    resume = {
        b"file-format": b"libtorrent resume file", b"file-version": 2, b"info-hash": bytes.fromhex(infohash),
        b"pieces": b"\xff\xe0", b"save_path": b"/aside", b"qBt-savePath": b"/home",
    }  # fmt: skip
    (tmp_path / f"{infohash}.fastresume").write_bytes(lt.bencode(resume))
    (found,) = PROGRAMS["qbittorrent"].read(tmp_path)
    assert list(found.parameters.have_pieces) == [True] * 11
    assert found.folder_when_done == ""
    assert importing._row(found)["progress"] == 1.0


class _Evil:
    def __reduce__(self):
        return print, ("run",)


def test_a_pickle_in_deluges_place_runs_nothing(tmp_path, capsys):
    (tmp_path / "torrents.fastresume").write_bytes(b"de")
    (tmp_path / "torrents.state").write_bytes(pickle.dumps(_Evil()))
    (error,) = PROGRAMS["deluge"].read(tmp_path)
    assert "is not what Deluge keeps" in str(error)
    assert capsys.readouterr().out == ""


async def test_what_fails_half_way_is_begun_anew_by_the_next_run(tmp_path, downloads, monkeypatch):
    async with daemon_here(tmp_path) as here:
        with monkeypatch.context() as patched:
            patched.setattr(importing, "_finish", broken)
            report = await imported("deluge", here.address, downloads, "--hops=0")
            assert (report["ok"], len(report["failed"])) == (False, 3)
        await until(lambda: not here.library.torrents)
        assert (downloads / "half.bin").exists()
        assert [row["new"] for row in (await imported("deluge", here.address, downloads, "--hops=0"))["torrents"]] == [
            True
        ] * 3


async def broken(*_):
    raise UserError("no")


@pytest.mark.parametrize("program", PROGRAMS)
def test_whatever_is_kept_is_read_or_named_and_never_raises(tmp_path, program):
    for place, path in enumerate(sorted((FIXTURES / program).rglob("*"))):
        if not path.is_file():
            continue
        for number, content in enumerate(
            (b"", b"d", b"de", b"i1e", path.read_bytes()[:-9], b"d4:name" + b"i5e" + b"e")
        ):
            source = tmp_path / f"{place}-{number}"
            shutil.copytree(FIXTURES / program, source)
            (source / path.relative_to(FIXTURES / program)).write_bytes(content)
            for found in PROGRAMS[program].read(source):
                assert isinstance(found, Found | BadTorrentError)


def test_blocks_and_bits_are_those_of_transmission():
    assert bits(b"\xa0", 4) == [True, False, True, False]
    assert bits(b"", 2) == [False, False]
    half = lt.load_torrent_file(str(next((FIXTURES / "transmission" / "torrents").glob("a*.torrent")))).ti
    assert pieces_of_blocks(b"\xff\xbf\xf0", half) == [True] * 9 + [False] + [True] * 10  # a piece is one block
    assert pieces_of_blocks(b"\xff", half) == [True] * 8 + [False] * 12


def test_a_folder_is_mapped_by_the_longest_beginning():
    folders = {"/data": "/mnt", "/data/tv": "/tv"}
    assert [mapped(each, folders) for each in ("/data", "/data/x/y", "/data/tv/z", "/database", "")] == [
        "/mnt", "/mnt/x/y", "/tv/z", "/database", "",
    ]  # fmt: skip
