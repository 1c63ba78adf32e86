"""Damaged records in the daemon's store: each is logged in one line and left as it is; the others are loaded."""

import contextlib
import json
import sqlite3

import pytest

from tests.tunnel_pool.daemon.running import Rpc, daemon
from tunnel_pool.daemon.storage.record import Record
from tunnel_pool.daemon.storage.store import STORE_FILE, Store

HASHES = [f"{number:040x}" for number in range(1, 6)]


def damage(kept, infohash, how):
    ((record,),) = kept.execute("SELECT record FROM torrents WHERE infohash = ?", (infohash,)).fetchall()
    kept.execute("UPDATE torrents SET record = ? WHERE infohash = ?", (how(record), infohash))


def with_hops(hops):
    return lambda record: json.dumps({**json.loads(record), "hops": hops}).encode()


async def test_records_that_are_damaged_do_not_keep_the_daemon_from_the_others(tmp_path):
    async with daemon(tmp_path, "--workers=0") as (_, address), Rpc(address) as rpc:
        for infohash in HASHES:
            await rpc.call("torrent_add", {"filename": f"magnet:?xt=urn:btih:{infohash}", "paused": True})
    with contextlib.closing(sqlite3.connect(tmp_path / STORE_FILE)) as kept, kept:
        damage(kept, HASHES[0], lambda record: record[: len(record) // 2])
        damage(kept, HASHES[1], lambda record: record.replace(b'"name":"', b'"name":"\xff', 1))
        damage(kept, HASHES[2], with_hops(7))
        damage(kept, HASHES[3], with_hops(2**40))
        kept.execute("INSERT OR REPLACE INTO settings VALUES ('session', '{\"folder\": 3')")
    async with daemon(tmp_path, "--workers=0") as (running, address), Rpc(address) as rpc:
        torrents = (await rpc.call("torrent_get", {"fields": ["hash_string"]}))["torrents"]
        assert [torrent["hash_string"] for torrent in torrents] == [HASHES[4]]
        said = [line for line in running.lines if "can't be read" in line]
        assert len(said) == 5
        assert not [line for line in running.lines if "Traceback" in line]
    with contextlib.closing(sqlite3.connect(tmp_path / STORE_FILE)) as kept:
        assert len(kept.execute("SELECT infohash FROM torrents").fetchall()) == 5


@pytest.mark.parametrize("hops", [-1, 4, 2**40])
async def test_no_record_is_of_a_hop_count_that_there_is_not(hops, tmp_path):
    store = Store(tmp_path)
    await store.open()
    await store.put(Record("ab", 1, hops, "", "", 0, 0.0), b"")
    assert await store.torrents() == []
    await store.close()
