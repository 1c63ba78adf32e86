"""Tests that what other programs had in their folder for incomplete torrents goes where these would have brought it."""

import json
import os
import pickle
import sqlite3
import sys
from types import ModuleType

import libtorrent as lt
import pytest

from tests.tunnel_pool.daemon.owner import Seeder
from tests.tunnel_pool.daemon.running import daemon_here, make_torrent
from tests.tunnel_pool.importing.test_importing import imported
from tests.worlds.network import until
from tunnel_pool.daemon.changes.edits import Remove
from tunnel_pool.private_swarm.swarm import same_bytes

PIECES = 10


class Left:
    """A torrent of which half is in a folder that others' files are in, too, and a seeder of the whole."""

    def __init__(self, folder):
        self.state, self.aside, self.home = folder / "kept", folder / "tmp", folder / "home"
        for path in (self.state, self.aside, self.home):
            path.mkdir()
        (self.aside / "another's").write_bytes(b"kept")
        content = make_torrent(folder / "seeds", "film", {"a.bin": PIECES * 16384})
        self.seeder = Seeder(folder / "seeds")
        self.torrent, self.parameters = content, lt.load_torrent_buffer(content)
        self.infohash = str(self.parameters.info_hashes.v1)
        self.whole = folder / "seeds" / "film" / "a.bin"
        self.resume = {
            b"file-format": b"libtorrent resume file", b"file-version": 1,
            b"info-hash": bytes.fromhex(self.infohash), b"pieces": b"\1" * 5 + b"\0" * 5,
            b"save_path": os.fsencode(self.aside), b"paused": 0, b"auto_managed": 1,
        }  # fmt: skip
        (self.aside / "film").mkdir()
        (self.aside / "film" / "a.bin").write_bytes(self.whole.read_bytes()[: 5 * 16384])

    def begin_to_seed(self):
        self.seeder.start(lt.load_torrent_buffer(self.torrent))
        return self.seeder.address


def keep_files(left, more):
    folder = left.state / "BT_backup"
    folder.mkdir()
    (folder / f"{left.infohash}.torrent").write_bytes(left.torrent)
    (folder / f"{left.infohash}.fastresume").write_bytes(lt.bencode({**left.resume, **more}))


def keep_as_qbittorrent(left):
    keep_files(left, {b"qBt-savePath": os.fsencode(left.home), b"qBt-downloadPath": os.fsencode(left.aside)})
    return "qbittorrent"


def keep_with_a_category(left):
    """qBittorrent keeps no folder of a torrent that is managed automatically: its category has one."""
    keep_files(left, {b"qBt-category": b"films"})
    (left.state / "categories.json").write_text(json.dumps({"films": {"save_path": str(left.home)}}))
    return "qbittorrent"


def keep_with_a_category_without_a_folder(left):
    keep_files(left, {b"qBt-category": b"home"})
    (left.state / "categories.json").write_text(json.dumps({"home": {"save_path": ""}}))
    (left.state / "qBittorrent.conf").write_text(f"[BitTorrent]\nSession\\DefaultSavePath={left.home.parent}/\n")
    return "qbittorrent"


def keep_in_a_database(left):
    with sqlite3.connect(left.state / "torrents.db") as rows:
        rows.execute(
            "CREATE TABLE torrents (torrent_id, queue_position, target_save_path, download_path, stopped, "
            "libtorrent_resume_data, metadata)"
        )
        resume = lt.bencode({**left.resume, b"save_path": b""})
        row = (left.infohash, 0, str(left.home), str(left.aside), 0, resume, left.torrent)
        rows.execute("INSERT INTO torrents VALUES (?, ?, ?, ?, ?, ?, ?)", row)
    return "qbittorrent"


def keep_as_transmission(left):
    for name in ("torrents", "resume"):
        (left.state / name).mkdir()
    (left.state / "torrents" / f"{left.infohash}.torrent").write_bytes(left.torrent)
    kept = {
        b"destination": os.fsencode(left.home), b"incomplete-dir": os.fsencode(left.aside), b"name": b"film",
        b"progress": {b"blocks": b"\xf8\0"},
    }  # fmt: skip
    (left.state / "resume" / f"{left.infohash}.resume").write_bytes(lt.bencode(kept))
    return "transmission"


def keep_as_deluge(left, monkeypatch):
    module = ModuleType("deluge.core.torrentmanager")
    for name in ("TorrentManagerState", "TorrentState"):
        setattr(module, name, type(name, (), {"__module__": module.__name__}))
    for name in ("deluge", "deluge.core", module.__name__):  # pickle imports what it names
        monkeypatch.setitem(sys.modules, name, module)
    one, state = module.TorrentState(), module.TorrentManagerState()
    vars(one).update(
        torrent_id=left.infohash, save_path=str(left.aside), move_completed=True, move_completed_path=str(left.home)
    )
    state.torrents = [one]
    (left.state / "torrents.state").write_bytes(pickle.dumps(state, protocol=2))
    (left.state / "torrents.fastresume").write_bytes(lt.bencode({left.infohash: lt.bencode(left.resume)}))
    (left.state / f"{left.infohash}.torrent").write_bytes(left.torrent)
    return "deluge"


KEEPERS = [
    keep_as_qbittorrent, keep_with_a_category, keep_with_a_category_without_a_folder, keep_in_a_database,
    keep_as_transmission, keep_as_deluge,
]  # fmt: skip


@pytest.mark.parametrize("keep", KEEPERS)
async def test_what_is_not_whole_goes_home_once_it_is_and_the_folder_stays(keep, tmp_path, monkeypatch):
    left = Left(tmp_path)
    program = keep(left, monkeypatch) if keep is keep_as_deluge else keep(left)
    (tmp_path / "state").mkdir()
    async with daemon_here(tmp_path / "state") as here:
        report = await imported(program, here.address, tmp_path, "--hops=0", source=left.state)
        (row,) = report["torrents"]
        assert (row["folder"], row["folder_when_done"], row["missing"]) == (str(left.aside), str(left.home), 0)
        (torrent,) = here.library.torrents.values()
        await until(lambda: torrent.handle.is_valid() and not torrent.is_checking)
        assert torrent.progress == pytest.approx(0.5)
        assert torrent.record.folder == str(left.aside)
        peer = left.begin_to_seed()
        await until(lambda: torrent.handle.connect_peer(tuple(peer)) or torrent.record.folder == str(left.home))
        assert same_bytes(left.whole, left.home / "film" / "a.bin")
        assert torrent.record.folder_when_done == ""
    assert [path.name for path in left.aside.iterdir()] == ["another's"]


async def test_a_folder_for_incomplete_torrents_stays_where_one_of_them_is_removed(tmp_path):
    left = Left(tmp_path)
    (left.aside / "another's").unlink()
    program = keep_as_qbittorrent(left)
    (tmp_path / "state").mkdir()
    async with daemon_here(tmp_path / "state") as here:
        await imported(program, here.address, tmp_path, "--hops=0", source=left.state)
        await here.changes.apply(list(here.library.torrents.values()), Remove(True))
        await until(lambda: not list(left.aside.glob("*/*")))
    assert left.aside.is_dir()
