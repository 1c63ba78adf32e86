"""Tests that an owner's edit means the same over each interface, and is applied whole or not at all."""

import asyncio
import contextlib

import aiohttp
import libtorrent as lt
import msgspec
import pytest
from qbittorrentapi import Client

from tests.tunnel_pool.daemon.rpc import Rpc
from tests.tunnel_pool.daemon.running import daemon_here, make_torrent
from tests.worlds.network import until
from tunnel_pool.daemon.changes.edits import (
    AddRequest,
    EditTrackers,
    Enqueue,
    Move,
    Relabel,
    Rename,
    Requeue,
    Run,
    Select,
    SetFields,
    SetHops,
    Stop,
    ToggleSequential,
    Verify,
)
from tunnel_pool.daemon.errors import RequestError
from tunnel_pool.daemon.record import Record
from tunnel_pool.daemon.server.tiers import NOT_ASKED, entries_of
from tunnel_pool.daemon.torrents.sessions import SessionOptions
from tunnel_pool.torrent.metainfo import parse_torrent, read_metainfo
from tunnel_pool.torrent.sessions.lockdown import LockdownMode

SIZES = {"a": 40_000, "sub/b": 1000}
MIXED = [["http://127.0.0.1:1/announce", "https://127.0.0.2:1/announce"], ["udp://127.0.0.3:1/announce"]]
FLAT = "http://127.0.0.1:1/announce\nhttps://127.0.0.2:1/announce\n\nudp://127.0.0.3:1/announce"
OF_A_MOMENT = {
    "infohash",
    "edited_s",
    "added_s",
    "done_s",
    "tracker_key",
    "folder",
    "moving_to",
    "exporting",
    "taking_over",
}
WITHOUT_HTTPS = SessionOptions(private=True, lockdown=LockdownMode.OFF)


@contextlib.asynccontextmanager
async def with_torrent(folder, **request):
    content = make_torrent(folder / "files", "t", SIZES)
    (folder / "state").mkdir()
    async with daemon_here(folder / "state", folder / "files", sessions=WITHOUT_HTTPS) as here:
        wish = AddRequest(**{"hops": 0, "stopped": True, **request})
        torrent, _ = await here.changes.add(read_metainfo(content), wish)
        await here.changes.apply([torrent], Verify())
        await until(lambda: not torrent.record.taking_over)
        yield here, torrent


class Faces:
    """Clients of a daemon: Transmission's, qBittorrent's, ours and Tribler's."""

    def __init__(self, here, torrent, rpc, http):
        self._here, self._torrent, self._rpc, self._http = here, torrent, rpc, http
        self._infohash = torrent.record.infohash

    async def transmission(self, method="torrent_set", **arguments):
        await self._rpc.call(method, {"ids": [self._infohash], **arguments})

    async def qbittorrent(self, call, **words):
        await self._qbittorrent(call, torrent_hashes=self._infohash, **words)

    async def qbittorrent_one(self, call, **words):
        await self._qbittorrent(call, torrent_hash=self._infohash, **words)

    async def _qbittorrent(self, call, **words):
        client = Client(host=f"http://{self._here.address}", FORCE_SCHEME_FROM_HOST=True)
        await asyncio.to_thread(lambda: getattr(client, f"torrents_{call}")(**words))

    async def api(self, **body):
        await self._patch("torrents", body)

    async def tribler(self, **body):
        await self._patch("downloads", body)

    async def _patch(self, kind, body):
        async with self._http.patch(f"http://{self._here.address}/api/{kind}/{self._infohash}", json=body) as response:
            assert response.status == 200, await response.text()


SAME = {
    "start": (
        Run(),
        lambda f: f.transmission("torrent_start"),
        lambda f: f.qbittorrent("start"),
        lambda f: f.api(stopped=False),
        lambda f: f.tribler(state="resume"),
    ),
    "start now": (
        Run(now=True),
        lambda f: f.transmission("torrent_start_now"),
        lambda f: f.qbittorrent("set_force_start", enable=True),
        lambda f: f.api(stopped=False, now=True),
    ),
    "stop": (
        Stop(),
        lambda f: f.transmission("torrent_stop"),
        lambda f: f.qbittorrent("stop"),
        lambda f: f.api(stopped=True),
        lambda f: f.tribler(state="stop"),
    ),
    "more hops": (
        SetHops(2),
        lambda f: f.transmission(hops=2),
        lambda f: f.transmission(labels=["hops:2"]),
        lambda f: f.qbittorrent("add_tags", tags=["hops:2"]),
        lambda f: f.api(hops=2),
        lambda f: f.tribler(anon_hops=2),
    ),
    "labels": (
        Relabel.to(["x", "y"]),
        lambda f: f.transmission(labels=["x", "y"]),
        lambda f: f.qbittorrent("add_tags", tags=["x", "y"]),
        lambda f: f.api(labels=["x", "y"]),
    ),
    "a limit": (
        SetFields({"download_limit_kb": 50, "download_limited": True}),
        lambda f: f.transmission(download_limit=50, download_limited=True),
        lambda f: f.qbittorrent("set_download_limit", limit=50_000),
    ),
    "sequential": (
        ToggleSequential(),
        lambda f: f.transmission(sequential_download=True),
        lambda f: f.qbittorrent("toggle_sequential_download"),
    ),
    "files": (
        Select(lambda torrent: [4, 0]),
        lambda f: f.transmission(files_unwanted=[1]),
        lambda f: f.qbittorrent_one("file_priority", file_ids=1, priority=0),
        lambda f: f.tribler(selected_files=[0]),
    ),
    "trackers": (
        EditTrackers(lambda tiers: MIXED),
        lambda f: f.transmission(tracker_list=FLAT),
        lambda f: f.qbittorrent_one("add_trackers", urls=FLAT),
    ),
    "a place in the queue": (
        Enqueue(0),
        lambda f: f.transmission(queue_position=0),
    ),
    "the top of the queue": (
        Requeue("top"),
        lambda f: f.transmission("queue_move_top"),
        lambda f: f.qbittorrent("top_priority"),
    ),
    "another name": (
        Rename("t/a", "z"),
        lambda f: f.transmission("torrent_rename_path", path="t/a", name="z"),
        lambda f: f.qbittorrent_one("rename_file", old_path="t/a", new_path="t/z"),
    ),
    "a check": (
        Verify(),
        lambda f: f.transmission("torrent_verify"),
        lambda f: f.qbittorrent("recheck"),
        lambda f: f.tribler(state="recheck"),
    ),
    "a move": (
        lambda folder: Move(f"{folder}/to"),
        lambda f: f.transmission("torrent_set_location", location=f"{f.root}/to", move=True),
        lambda f: f.transmission(location=f"{f.root}/to"),
        lambda f: f.qbittorrent("set_location", location=f"{f.root}/to"),
    ),
}


def record_of(torrent, root):
    """Return what is kept of a torrent, but for what is another each time."""
    fields = msgspec.structs.asdict(torrent.record)
    priorities = [torrent.priority(index) for index in torrent.file_indexes()]
    kept = {name: value for name, value in fields.items() if name not in OF_A_MOMENT}
    names = [torrent.file_path(index) for index in torrent.file_indexes()]
    return {
        **kept,
        "names": names,
        "file_priorities": priorities,
        "place": torrent.record.folder.removeprefix(str(root)),
    }


@pytest.mark.parametrize("name", SAME)
async def test_each_face_leaves_the_record_that_the_edit_leaves(name, tmp_path):
    edit, *faces = SAME[name]
    records = []
    for number, face in enumerate([None, *faces]):
        root = tmp_path / str(number)
        async with (
            with_torrent(root) as (here, torrent),
            Rpc(here.address) as rpc,
            aiohttp.ClientSession() as http,
        ):
            if face is None:
                await here.changes.apply([torrent], edit(root) if callable(edit) and name == "a move" else edit)
            else:
                faces_here = Faces(here, torrent, rpc, http)
                faces_here.root = root
                await here.changes.edit_settings(
                    lambda settings: msgspec.structs.replace(settings, download_queue_enabled=True)
                )
                await face(faces_here)
            await until(lambda torrent=torrent: not torrent.is_moving)
            records.append(record_of(torrent, root))
    assert records == records[:1] * len(records)


@pytest.mark.parametrize(
    "wrong",
    [
        SetHops(1),
        EditTrackers(lambda tiers: [["ftp://127.0.0.1/"]]),
        Relabel.to(["a,b"]),
        Move("relative"),
        Move("/proc"),
    ],
    ids=lambda edit: type(edit).__name__,
)
async def test_one_wrong_edit_leaves_everything_as_it_was(wrong, tmp_path):
    async with with_torrent(tmp_path, hops=2) as (here, torrent):
        link = parse_torrent("magnet:?xt=urn:btih:" + "a" * 40)
        other, _ = await here.changes.add(link, AddRequest(hops=1, stopped=True))
        await here.changes.moves.check(torrent, Move("/proc/none"))  # only what is there is in the way
        if wrong == Move("/proc"):
            (tmp_path / "there" / "t").mkdir(parents=True)
            (tmp_path / "there" / "t" / "a").write_bytes(b"a stranger's")
            wrong = Move(str(tmp_path / "there"))
        before = torrent.record, other.record
        edits = [Relabel.to(["new"]), SetFields({"download_limited": True}), Enqueue(1), Run(), wrong]
        with pytest.raises(RequestError):
            await here.changes.apply([other, torrent], *edits)
        assert (torrent.record, other.record) == before


async def test_torrent_set_does_all_of_it_or_nothing(tmp_path):
    """Labels and limits were set, and then the hops were refused."""
    async with with_torrent(tmp_path, hops=2) as (here, torrent), Rpc(here.address) as rpc:
        body = {"ids": [1], "labels": ["x"], "download_limited": True, "hops": 1, "tracker_list": FLAT}
        before = torrent.record
        _, answer = await rpc.post({"jsonrpc": "2.0", "method": "torrent_set", "params": body, "id": 1})
        assert "fewer than the 2" in answer["error"]["data"]["error_string"]
        assert torrent.record == before
        await rpc.call("torrent_set", {**body, "confirm_fewer_hops": True})
        record = torrent.record
        assert (record.labels, record.download_limited, record.hops, record.trackers) == (["x"], True, 1, MIXED)
        assert [entry["url"] for entry in torrent.handle.trackers()] == [MIXED[0][0], MIXED[1][0]]


async def test_two_edits_of_trackers_at_one_time_are_both_kept(tmp_path):
    async with with_torrent(tmp_path) as (here, torrent):

        def adding(url):
            return here.changes.apply([torrent], EditTrackers(lambda tiers: [*tiers, [url]]))

        await asyncio.gather(*(adding(f"http://127.0.0.1:{port}/announce") for port in range(1, 9)))
        assert len(torrent.record.trackers) == 8


# Trackers and web seeds


async def test_trackers_that_hops_leave_out_are_kept_shown_and_asked_again(tmp_path):
    content = make_torrent(tmp_path / "files", "t", SIZES)
    parameters = read_metainfo(content)
    parameters.trackers, parameters.tracker_tiers = [url for urls in MIXED for url in urls], [0, 0, 1]
    parameters.url_seeds = ["http://127.0.0.1:1/files/"]
    (tmp_path / "state").mkdir()

    async def shown(here, torrent):
        async with Rpc(here.address) as rpc:
            fields = ["tracker_list", "tracker_stats", "webseeds", "magnet_link"]
            (row,) = (await rpc.call("torrent_get", {"fields": fields}))["torrents"]
        assert row["tracker_list"] == FLAT
        assert row["webseeds"] == ["http://127.0.0.1:1/files/"]
        assert lt.parse_magnet_uri(row["magnet_link"]).trackers == [url for urls in MIXED for url in urls]
        return {
            stat["announce"]: (stat["announce_state"], stat["last_announce_result"]) for stat in row["tracker_stats"]
        }

    async with daemon_here(tmp_path / "state", tmp_path / "files", sessions=WITHOUT_HTTPS) as here:
        torrent, _ = await here.changes.add(parameters, AddRequest(hops=1, stopped=True))
        rows = await shown(here, torrent)
        assert rows[MIXED[0][1]] == (0, NOT_ASKED)
        assert rows[MIXED[1][0]][0] != 0
        assert torrent.handle.url_seeds() == []
    async with daemon_here(tmp_path / "state", tmp_path / "files", sessions=WITHOUT_HTTPS) as here:
        (torrent,) = here.library.torrents.values()
        assert (await shown(here, torrent))[MIXED[0][1]] == (0, NOT_ASKED)
        await here.changes.apply([torrent], SetHops(0, confirmed=True))
        assert all(entry["is_asked"] for entry in entries_of(torrent))
        await shown(here, torrent)
        assert torrent.handle.url_seeds() == ["http://127.0.0.1:1/files/"]
        client = Client(host=f"http://{here.address}", FORCE_SCHEME_FROM_HOST=True)
        exported = lt.load_torrent_buffer(
            await asyncio.to_thread(lambda: client.torrents_export(torrent_hash=torrent.record.infohash))
        )
        assert exported.trackers == [url for urls in MIXED for url in urls]


async def test_a_list_of_trackers_that_hops_leave_out_is_kept(tmp_path):
    async with with_torrent(tmp_path, hops=1) as (here, torrent), Rpc(here.address) as rpc:
        await rpc.call("torrent_set", {"ids": [1], "tracker_list": "https://127.0.0.1:1/announce"})
        assert torrent.record.trackers == [["https://127.0.0.1:1/announce"]]
        client = Client(host=f"http://{here.address}", FORCE_SCHEME_FROM_HOST=True)
        rows = await asyncio.to_thread(lambda: client.torrents_trackers(torrent_hash=torrent.record.infohash))
        assert [(row.status, row.msg) for row in rows if row.tier >= 0] == [(0, NOT_ASKED)]


def test_a_record_of_before_has_no_trackers_until_its_resume_data_was_read():
    record = msgspec.convert(
        {"infohash": "a", "number": 1, "hops": 0, "name": "n", "folder": "/", "position": 0, "added_s": 0.0}, Record
    )
    assert (record.trackers, record.knows_trackers) == ([], False)
