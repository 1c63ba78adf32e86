"""Tests a daemon's damaged or missing store: a bad row costs one torrent, a backup replaces the rest."""

import contextlib
import json
import sqlite3
from pathlib import Path

import pytest

from tests.tunnel_pool.daemon.rpc import Rpc
from tests.tunnel_pool.daemon.running import daemon, daemon_here, make_torrent
from tests.worlds.commands import command
from tests.worlds.network import until
from tunnel_pool.bench.harness.daemon import PRIVATE
from tunnel_pool.daemon.changes.edits import AddRequest
from tunnel_pool.daemon.record import Record
from tunnel_pool.daemon.storage.backup import backup_of
from tunnel_pool.daemon.storage.store import STORE_FILE, Store, StoredTorrent
from tunnel_pool.torrent.metainfo import parse_link, read_metainfo

HASHES = [f"{number:040x}" for number in range(1, 6)]


def damage(kept, infohash, how):
    ((record,),) = kept.execute("SELECT record FROM torrents WHERE infohash = ?", (infohash,)).fetchall()
    kept.execute("UPDATE torrents SET record = ? WHERE infohash = ?", (how(record), infohash))


def with_hops(hops):
    return lambda record: json.dumps({**json.loads(record), "hops": hops}).encode()


async def test_records_that_are_damaged_cost_their_torrents_what_they_said_and_no_others(tmp_path):
    """Such a torrent has the most hops and stands still, as nobody knows its hop count any more."""
    async with daemon(tmp_path, "--workers=0") as (_, address), Rpc(address) as rpc:
        for infohash in HASHES:
            await rpc.call("torrent_add", {"filename": f"magnet:?xt=urn:btih:{infohash}", "hops": 1})
    with contextlib.closing(sqlite3.connect(tmp_path / STORE_FILE)) as kept, kept:
        damage(kept, HASHES[0], lambda record: record[: len(record) // 2])
        damage(kept, HASHES[1], lambda record: record.replace(b'"name":"', b'"name":"\xff', 1))
        damage(kept, HASHES[2], with_hops(7))
        damage(kept, HASHES[3], with_hops(2**40))
        kept.execute("INSERT OR REPLACE INTO settings VALUES ('session', '{\"folder\": 3')")
    async with daemon(tmp_path, "--workers=0") as (running, address), Rpc(address) as rpc:
        fields = ["hash_string", "status", "hops", "error_string", "id"]
        torrents = (await rpc.call("torrent_get", {"fields": fields}))["torrents"]
        found = {torrent["hash_string"]: torrent for torrent in torrents}
        assert found.keys() == set(HASHES)
        assert len({torrent["id"] for torrent in torrents}) == len(HASHES)
        for infohash in HASHES[:4]:
            assert found[infohash]["error_string"].startswith("what was kept of it was damaged")
            assert (found[infohash]["status"], found[infohash]["hops"]) == (0, 3)
        assert (found[HASHES[4]]["error_string"], found[HASHES[4]]["hops"]) == ("", 1)
        said = [line for line in running.lines if "can't be read" in line]
        assert len(said) == 5
        assert not [line for line in running.lines if "Traceback" in line]
    with contextlib.closing(sqlite3.connect(tmp_path / STORE_FILE)) as kept:
        assert len(kept.execute("SELECT infohash FROM damaged").fetchall()) == 4


async def test_a_torrent_whose_resume_data_is_damaged_is_whole_again_with_its_torrent_file(tmp_path):
    made = make_torrent(tmp_path, "t", {"a": 100_000, "b": 50_000})
    (tmp_path / "state").mkdir()
    async with daemon_here(tmp_path / "state", tmp_path) as here:
        torrent, _ = await here.changes.add(read_metainfo(made), AddRequest(hops=0, labels=["mine"]))
        await until(lambda: torrent.is_finished)
    with contextlib.closing(sqlite3.connect(tmp_path / "state" / STORE_FILE)) as kept, kept:
        kept.execute("UPDATE torrents SET resume = ?", (b"d4:junk",))
    async with daemon_here(tmp_path / "state", tmp_path) as here:
        (torrent,) = here.library.torrents.values()
        assert torrent.error.startswith("what was kept of it was damaged: add its torrent file again")
        again, was_there = await here.changes.add(read_metainfo(made), AddRequest())
        assert was_there
        assert again is torrent
        await until(lambda: torrent.is_finished and not torrent.error)
        assert torrent.record.labels == ["mine"]
        assert torrent.summary.total_payload_download == 0


def cut_in_half(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def make_empty(path):
    path.write_bytes(b"")


def make_zeros(path):
    path.write_bytes(bytes(path.stat().st_size))


def overwrite_the_middle(path):
    """Overwrite all but the first 4096 bytes, which SQLite reads first."""
    whole = path.read_bytes()
    path.write_bytes(whole[:4096] + b"\xff" * (len(whole) - 4096))


@pytest.mark.parametrize("harm", [Path.unlink, make_empty, cut_in_half, make_zeros, overwrite_the_middle])
async def test_a_store_that_is_damaged_or_gone_is_restored_from_its_backup(harm, tmp_path, caplog):
    for _ in range(2):  # the second start makes the backup
        async with daemon_here(tmp_path) as here:
            for infohash in HASHES:
                await here.changes.add(parse_link(infohash), AddRequest(hops=1, labels=["mine"], stopped=True))
    harm(tmp_path / STORE_FILE)
    caplog.clear()
    async with daemon_here(tmp_path) as here:
        torrents = here.library.torrents
        assert set(torrents) == set(HASHES)
        assert all(torrent.record.labels == ["mine"] and torrent.record.hops == 1 for torrent in torrents.values())
        assert not any(torrent.error for torrent in torrents.values())
    (said,) = [line for line in caplog.messages if "can't be used" in line]
    assert "the torrents are those of its backup of" in said
    assert len(list(tmp_path.glob("daemon.db.damaged-*"))) == (harm is not Path.unlink)


async def test_a_damaged_store_without_a_backup_is_one_line_of_advice(tmp_path):
    (tmp_path / STORE_FILE).write_bytes(b"no database" * 1000)
    arguments = ["daemon", f"--state={tmp_path}", f"--folder={tmp_path}", "--rpc=127.0.0.1:0", "--workers=0", *PRIVATE]
    async with command(*arguments) as running:
        code, _, lines = await running.ended()
    assert code == 1
    assert lines[-1].endswith("move it away to begin without torrents; their files stay where they are")
    assert (tmp_path / STORE_FILE).read_bytes() == b"no database" * 1000


async def test_what_can_be_read_of_a_damaged_store_is_added_to_its_backup(tmp_path):
    store = Store(tmp_path)
    await store.open()
    await store.put(Record("ab" * 20, 1, 1, "old", "/", 0, 0.0), b"resume")
    await store.back_up()
    for number in range(200):
        await store.put(Record(f"{number:040x}", number + 2, 1, "new", "/", 1, 0.0), bytes(3000))
    await store.close()
    path = tmp_path / STORE_FILE
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        file.write(bytes(20000))
    store = Store(tmp_path)
    await store.open()
    assert store.was_restored
    names = [stored.record.name for stored in await store.torrents()]
    assert names.count("old") == 1
    assert 10 < names.count("new") < 200
    await store.close()


async def test_a_backup_is_made_when_something_was_changed(tmp_path):
    store = Store(tmp_path)
    await store.open()
    await store.back_up()
    before = backup_of(tmp_path / STORE_FILE).stat()
    assert before.st_mode & 0o777 == 0o600
    await store.back_up()
    assert backup_of(tmp_path / STORE_FILE).stat().st_ino == before.st_ino
    await store.set_setting("a", b"b")
    await store.back_up()
    assert backup_of(tmp_path / STORE_FILE).stat().st_ino != before.st_ino
    await store.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["daemon.db", "daemon.db.backup"]


@pytest.mark.parametrize("hops", [-1, 4, 2**40])
async def test_no_record_is_of_a_hop_count_that_there_is_not(hops, tmp_path):
    store = Store(tmp_path)
    await store.open()
    await store.put(Record("ab", 1, hops, "", "", 0, 0.0), b"")
    assert await store.torrents() == [StoredTorrent("ab", None, b"")]
    await store.close()
