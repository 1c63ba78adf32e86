"""Tests qBittorrent's API with `qbittorrent-api`, and with the request sequences of programs that use it.

Read for the sequences: Sonarr's QBittorrentProxyV2.cs and QBittorrent.cs (0e87650, 000c25d), autobrr's go-qbittorrent
(43497c5: methods.go, http.go), cross-seed's QBittorrent.ts (93f2f6d).
"""

import asyncio
import base64
import contextlib
import json
import logging
import os
import time
from dataclasses import replace

import aiohttp
import libtorrent as lt
import pytest
from aiohttp import web
from qbittorrentapi import (
    Client,
    Conflict409Error,
    Forbidden403Error,
    InvalidRequest400Error,
    LoginFailed,
    NotFound404Error,
)

from tests.tunnel_pool.daemon.owner import Seeder
from tests.tunnel_pool.daemon.rpc import Rpc
from tests.tunnel_pool.daemon.running import daemon, daemon_here, make_torrent
from tests.worlds.network import until, unused_host
from tunnel_pool.bench.harness.daemon import magnet_of, network_of
from tunnel_pool.daemon.changes.edits import AddRequest
from tunnel_pool.daemon.rules import unregistered
from tunnel_pool.daemon.rules.queue import Activity
from tunnel_pool.daemon.server.entrance import KEY_HEADER
from tunnel_pool.daemon.server.guard import GUESSES_AT_ONCE, Credentials
from tunnel_pool.daemon.server.qbittorrent.application import VERSION
from tunnel_pool.daemon.server.web import WebOptions
from tunnel_pool.daemon.storage.disk import is_inside
from tunnel_pool.overlay.ground.config import HostPort
from tunnel_pool.private_swarm.swarm import LocalSwarm, same_bytes
from tunnel_pool.system.http_server import serving_app
from tunnel_pool.torrent.metainfo import new_creator, read_metainfo

USER, PASSWORD = "tunnel-pool", "correct horse"
SIZES = {"a.mkv": 300_000, "sub/b.srt": 1000}
NOBODY = "ab" * 20


def client_of(address, password=PASSWORD):
    return Client(host=f"http://{address}", username=USER, password=password, FORCE_SCHEME_FROM_HOST=True)


@contextlib.asynccontextmanager
async def guarded(state, **options):
    """Run a daemon that wants a password, and yield it and a client that is logged in; its calls block."""
    listening = WebOptions(HostPort("127.0.0.1", 0), Credentials(USER, PASSWORD))
    async with daemon_here(state, web=listening, **options) as here:
        client = client_of(here.address)
        await asyncio.to_thread(client.auth_log_in)
        yield here, client


@contextlib.asynccontextmanager
async def raw(address):
    """Yield a function that posts a form, or gets a query, and returns the status and the text."""
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as http:

        async def ask(method, call, form=None, **more):
            kind = "data" if method == "POST" else "params"
            async with http.request(method, f"http://{address}/api/v2/{call}", **{kind: form}, **more) as response:
                return response.status, await response.text()

        yield ask


def torrent_file(folder, name="show", sizes=SIZES):
    folder.mkdir(exist_ok=True)
    return make_torrent(folder, name, sizes)


def infohash_of(content):
    return str(lt.load_torrent_buffer(content).info_hashes.v1)


async def test_a_whole_download_over_the_tunnels_by_qbittorrent_api(tmp_path):
    environment = {"TUNNEL_POOL_RPC_PASSWORD": PASSWORD}
    async with (
        LocalSwarm(2 << 20, seeders=1, exits=2, relays=1, log_level="error") as swarm,
        daemon(tmp_path, "--hops=1", "--workers=0", *network_of(swarm), environment=environment) as (_, address),
    ):
        await asyncio.to_thread(download, address, swarm, tmp_path)


def download(address, swarm, folder):
    """Make the calls of qbittorrent-api's README and of its own tests, and a download."""
    with pytest.raises(LoginFailed):
        client_of(address, "wrong").auth_log_in()
    with client_of(address) as client:
        assert (client.app.version, client.app.web_api_version) == ("v5.2.3", "2.15.1")
        assert client.app.build_info.libtorrent == lt.__version__
        client.torrents_create_category("tv", save_path=str(folder / "tv"))
        deltas, seen = {}, client.sync_maindata()
        added = client.torrents_add(urls=magnet_of(swarm), category="tv", tags=["hops:2", "mine"])
        assert added.success_count == 1
        for _ in range(600):
            seen = client.sync_maindata(rid=seen.rid)
            deltas |= seen.get("torrents", {}).get(added.added_torrent_ids[0], {})
            if deltas["progress"] == 1:
                break
            time.sleep(0.1)
        (torrent,) = client.torrents.info()
        assert torrent.state_enum.is_complete
        assert torrent.hash == added.added_torrent_ids[0]
        assert (torrent.category, torrent.tags, torrent.save_path) == ("tv", "hops:2, mine", str(folder / "tv"))
        assert torrent.content_path == str(folder / "tv" / "random.bin")
        assert same_bytes(swarm.file, folder / "tv" / "random.bin")
        (file,) = torrent.files
        assert (file.name, file.size, file.progress, file.priority, file.is_seed) == ("random.bin", 2 << 20, 1, 1, True)
        assert torrent.properties.total_downloaded >= 2 << 20
        assert set(torrent.piece_states) == {2}
        client.torrents.stop.all()
        while not client.torrents_info(status_filter="stopped"):
            time.sleep(0.1)
        client.torrents_delete(delete_files=True, torrent_hashes=torrent.hash)
        assert client.torrents_info() == []


async def test_categories_and_tags_are_labels_and_hop_counts(tmp_path):
    async with guarded(tmp_path) as (here, client):

        def work():
            client.torrents_create_category("tv", save_path=str(tmp_path / "tv"))
            with pytest.raises(Conflict409Error):
                client.torrents_create_category("tv")
            with pytest.raises(InvalidRequest400Error, match="whole path"):
                client.torrents_create_category("relative", save_path="here")
            client.torrents_add(torrent_files=torrent_file(tmp_path / "s"), category="tv", tags="x", is_stopped=True)
            (torrent,) = client.torrents_info()
            assert (torrent.category, torrent.tags, torrent.save_path) == ("tv", "hops:1, x", str(tmp_path / "tv"))
            torrent.add_tags("y,hops:2")
            torrent.remove_tags("x")
            assert client.torrents_info(tag="y")[0].tags == "hops:2, y"
            with pytest.raises(Conflict409Error, match="set 1 --hops 1"):
                torrent.add_tags("hops:1")
            torrent.set_category("")
            with pytest.raises(Conflict409Error):
                torrent.set_category("no such")
            client.torrents_create_category("films")
            torrent.set_category("films")
            client.torrents_set_tags("z", torrent_hashes="all")
            assert client.torrents_info(category="films")[0].tags == "hops:2, z"
            client.torrents_create_tags("made")
            assert set(client.torrents_tags()) == {"hops:1", "hops:2", "hops:3", "made", "z"}
            client.torrents_edit_category("films", save_path="/films")
            assert client.torrents_categories()["films"]["savePath"] == "/films"
            with pytest.raises(NotFound404Error):
                client.torrents_edit_category("no such", save_path="/films")
            client.torrents_delete_tags("made,z")
            client.torrents_remove_categories("films")
            (torrent,) = client.torrents_info()
            assert (torrent.category, torrent.tags) == ("", "hops:2")
            torrent.set_category("tv")

        await asyncio.to_thread(work)
        (torrent,) = here.library.torrents.values()
        assert (torrent.record.labels, torrent.record.hops) == (["tv"], 2)
    async with guarded(tmp_path) as (_, client):
        assert await asyncio.to_thread(lambda: client.torrents_categories()["tv"]["savePath"]) == str(tmp_path / "tv")


async def test_what_clients_change_of_a_torrent_holds(tmp_path):
    async with guarded(tmp_path) as (here, client):
        content = torrent_file(tmp_path / "s")

        def add():
            client.torrents_add(
                torrent_files=content,
                is_stopped=True,
                tags="hops:0",
                ratio_limit=1.5,
                download_limit=100_000,
                is_sequential_download=True,
                rename="My show",
                content_layout="NoSubfolder",
            )
            with pytest.raises(Conflict409Error, match="already"):
                client.torrents_add(torrent_files=content)
            return client.torrents_info()[0]

        shown = await asyncio.to_thread(add)
        (torrent,) = here.library.torrents.values()
        assert (shown.state, shown.name, shown.ratio_limit, shown.max_ratio) == ("stoppedDL", "My show", 1.5, 1.5)
        assert (shown.dl_limit, shown.up_limit, shown.seq_dl, shown.root_path) == (100_000, -1, True, "")

        def change():
            shown.set_upload_limit(50_000)
            shown.set_download_limit(0)
            client.torrents_set_share_limits(
                ratio_limit=-2,
                seeding_time_limit=90,
                inactive_seeding_time_limit=-1,
                share_limit_action="Stop",
                share_limits_mode="Default",
                torrent_hashes=shown.hash,
            )
            shown.toggle_sequential_download()
            shown.file_priority(file_ids=[1], priority=0)
            shown.file_priority(file_ids=[0], priority=6)
            shown.rename("Other")
            shown.rename_file(old_path="sub/b.srt", new_path="sub/c.srt")
            shown.rename_folder(old_path="sub", new_path="subtitles")
            with pytest.raises(Conflict409Error):
                shown.rename_file(old_path="a.mkv", new_path="elsewhere/a.mkv")
            shown.add_trackers(urls="udp://127.0.0.1:1/announce\n\nudp://127.0.0.2:1/announce")
            shown.edit_tracker(orig_url="udp://127.0.0.1:1/announce", new_url="udp://127.0.0.3:1/announce")
            shown.remove_trackers("udp://127.0.0.2:1/announce")
            shown.set_location(str(tmp_path / "moved"))
            for call in (shown.set_super_seeding, shown.set_auto_management):
                call(enable=False)
                with pytest.raises(Conflict409Error):
                    call(enable=True)
            with pytest.raises(Conflict409Error):
                shown.toggle_first_last_piece_priority()
            assert [(file.name, file.priority) for file in shown.files] == [("a.mkv", 6), ("subtitles/c.srt", 0)]
            assert [row.url for row in shown.trackers if row.tier >= 0] == ["udp://127.0.0.3:1/announce"]
            exported = lt.load_torrent_buffer(shown.export())
            assert (str(exported.info_hashes.v1), exported.trackers) == (shown.hash, ["udp://127.0.0.3:1/announce"])

        await asyncio.to_thread(change)
        record = torrent.record
        assert (record.upload_limited, record.upload_limit_kb, record.download_limited) == (True, 50, False)
        assert (record.ratio_mode, record.seeding_mode, record.seeding_limit_min, record.idle_mode) == (0, 1, 90, 2)
        assert (record.name, record.sequential) == ("Other", False)
        await until(lambda: torrent.record.folder == str(tmp_path / "moved"))
        await asyncio.to_thread(client.torrents_set_force_start, enable=True, torrent_hashes="all")
        assert (torrent.record.stopped, torrent.record.started_now) == (False, True)
        await until(lambda: not torrent.is_checking)
        assert (await asyncio.to_thread(client.torrents_info))[0].state == "forcedDL"
        await asyncio.to_thread(client.torrents_stop, "all")
        await asyncio.to_thread(client.torrents_start, shown.hash)
        assert (torrent.record.stopped, torrent.record.started_now) == (False, False)


async def test_the_queue_the_speeds_and_the_settings_are_the_daemons(tmp_path):
    async with guarded(tmp_path) as (here, client):
        names = ("one", "two", "three")
        files = [torrent_file(tmp_path / "s", name, {"f": 1000}) for name in names]

        def work():
            added = client.torrents_add(torrent_files=files, is_stopped=True, tags="hops:0")
            assert (added.success_count, added.failure_count) == (3, 0)
            hashes = {row.name: row.hash for row in client.torrents_info()}
            client.torrents_top_priority(hashes["three"])
            client.torrents_decrease_priority(hashes["one"])
            assert [row.name for row in client.torrents_info(sort="priority")] == ["three", "two", "one"]
            assert [row.name for row in client.torrents_info(sort="name", reverse=True, limit=1)] == ["two"]
            client.transfer_set_download_limit(500_000)
            client.transfer_set_speed_limits_mode(True)
            assert client.transfer_speed_limits_mode() == "1"
            client.transfer_set_speed_limits_mode(False)
            assert client.transfer_info().dl_rate_limit == client.transfer_download_limit() == 500_000
            client.app_set_preferences({"max_ratio": 3, "queueing_enabled": False, "save_path": str(tmp_path / "new")})
            with pytest.raises(Conflict409Error):
                client.torrents_top_priority(hashes["one"])
            assert client.app_default_save_path() == str(tmp_path / "new")

        await asyncio.to_thread(work)
        settings = here.library.records.settings
        assert (settings.speed_limit_down, settings.seed_ratio_limit, settings.seed_ratio_limited) == (500, 3.0, True)


async def test_seeding_time_is_a_limit_as_qbittorrent_has_it(tmp_path):
    async with guarded(tmp_path) as (here, client):
        content = torrent_file(tmp_path)
        wish = {"save_path": str(tmp_path), "tags": "hops:0", "seeding_time_limit": 0}
        await asyncio.to_thread(client.torrents_add, torrent_files=content, **wish)
        (torrent,) = here.library.torrents.values()
        await until(lambda: torrent.is_finished and torrent.activity is Activity.STOPPED)
        (shown,) = await asyncio.to_thread(client.torrents_info)
        assert (shown.state, shown.progress, shown.max_seeding_time) == ("stoppedUP", 1.0, 0)
        assert torrent.record.stopped_by_limit
        await asyncio.to_thread(client.torrents_start, shown.hash)  # who starts it wants it to give more
        await until(lambda: not torrent.is_paused)
        assert (torrent.record.stopped, torrent.record.seeding_mode, torrent.record.ratio_mode) == (False, 2, 0)


# Sequences of programs


async def test_sonarr_and_radarr_test_add_watch_and_remove(tmp_path):
    content = torrent_file(tmp_path)
    infohash = infohash_of(content)
    async with guarded(tmp_path) as (here, _), raw(here.address) as ask:
        assert (await ask("GET", "app/webapiVersion"))[0] == 403  # IsApiSupported: it is there, and wants a login
        assert await ask("POST", "auth/login", {"username": USER, "password": PASSWORD}) == (200, "Ok.")
        assert await ask("GET", "app/webapiVersion") == (200, "2.15.1")
        status, text = await ask("GET", "app/preferences")
        assert status == 200
        assert {"save_path", "max_ratio_enabled", "max_ratio", "max_ratio_act", "queueing_enabled", "dht"} <= set(
            json.loads(text)
        )
        assert await ask("GET", "torrents/categories") == (200, "{}")
        assert (await ask("POST", "torrents/createCategory", {"category": "tv-sonarr"}))[0] == 200
        assert json.loads((await ask("GET", "torrents/categories"))[1])["tv-sonarr"]["savePath"] == ""
        form = aiohttp.FormData({"category": "tv-sonarr", "stopped": "False", "contentLayout": "Original"})
        form.add_field("torrents", content, filename="show.torrent", content_type="application/x-bittorrent")
        form.add_field("ratioLimit", "2.5")
        form.add_field("seedingTimeLimit", "60")
        assert (await ask("POST", "torrents/add", form))[0] == 200
        assert (await ask("GET", "torrents/properties", {"hash": infohash}))[0] == 200
        assert (await ask("GET", "torrents/properties", {"hash": NOBODY}))[0] == 404
        assert (await ask("POST", "torrents/topPrio", {"hashes": infohash}))[0] == 200
        assert (await ask("POST", "torrents/setForceStart", {"hashes": infohash, "value": "true"}))[0] == 200
        (row,) = json.loads((await ask("GET", "torrents/info", {"category": "tv-sonarr"}))[1])
        assert (row["hash"], row["category"], row["ratio_limit"], row["seeding_time_limit"]) == (
            infohash,
            "tv-sonarr",
            2.5,
            60,
        )
        assert row["content_path"] == str(tmp_path / "show") != row["save_path"]
        assert (await ask("POST", "torrents/addTags", {"hashes": infohash, "tags": "imported,x"}))[0] == 200
        assert (await ask("POST", "torrents/setCategory", {"hashes": infohash, "category": "imported"}))[0] == 409
        assert (await ask("POST", "torrents/delete", {"hashes": infohash, "deleteFiles": "true"}))[0] == 200
        assert await ask("GET", "torrents/info") == (200, "[]")
        key = {"Authorization": f"Bearer {PASSWORD}"}  # its field for an API key
    async with guarded(tmp_path) as (here, _), raw(here.address) as ask:
        assert await ask("GET", "app/version", headers=key) == (200, "v5.2.3")
        assert (await ask("GET", "app/version", headers={"Authorization": "Bearer wrong"}))[0] == 403


async def test_autobrr_logs_in_counts_adds_and_reannounces(tmp_path):
    content = torrent_file(tmp_path / "s")
    infohash = infohash_of(content)
    async with guarded(tmp_path) as (here, _), raw(here.address) as ask:
        status, _ = await ask("POST", "auth/login", {"username": USER, "password": "wrong"})
        assert status == 401
        assert await ask("POST", "auth/login", {"username": USER, "password": PASSWORD}) == (200, "Ok.")
        assert await ask("GET", "torrents/info", {"filter": "downloading"}) == (200, "[]")
        form = aiohttp.FormData({"category": "autobrr", "tags": "a,b", "paused": "false", "skip_checking": "true"})
        form.add_field("torrents", content, filename="x.torrent", content_type="application/octet-stream")
        status, text = await ask("POST", "torrents/add", form)
        assert (status, json.loads(text)["added_torrent_ids"]) == (200, [infohash])
        for _ in range(2):  # it looks at the trackers, and announces again until one has answered
            rows = json.loads((await ask("GET", "torrents/trackers", {"hash": infohash}))[1])
            assert [row["url"] for row in rows] == ["** [DHT] **", "** [PeX] **", "** [LSD] **"]
            assert (await ask("POST", "torrents/reannounce", {"hashes": infohash}))[0] == 200
        assert (await ask("GET", "torrents/trackers", {"hash": NOBODY}))[0] == 404
        form = {"urls": "https://tracker.example/file.torrent"}
        status, text = await ask("POST", "torrents/add", form)
        assert (status, "not fetched from the web" in text) == (409, True)
        assert (await ask("POST", "torrents/delete", {"hashes": infohash, "deleteFiles": "false"}))[0] == 200


async def test_cross_seed_injects_beside_what_is_there(tmp_path):
    content = torrent_file(tmp_path, "film.mkv", {"film.mkv": 50_000})
    single = make_single(tmp_path / "film.mkv" / "film.mkv")
    async with guarded(tmp_path) as (here, _), raw(here.address) as ask:
        assert (await ask("POST", "auth/login", {"username": USER, "password": PASSWORD}))[0] == 200
        assert (await ask("POST", "torrents/createTags", {"tags": "cross-seed"}))[0] == 200
        form = aiohttp.FormData({"savepath": str(tmp_path), "tags": "hops:0", "category": "films"})
        form.add_field("torrents", content, filename="a.torrent")
        assert (await ask("POST", "torrents/add", form))[0] == 200
        first, second = infohash_of(content), infohash_of(single)
        (torrent,) = here.library.torrents.values()
        await until(lambda: torrent.is_finished)
        assert (await ask("POST", "torrents/properties", {"hash": second}))[0] == 404
        (row,) = json.loads((await ask("POST", "torrents/info", {"hashes": first}))[1])
        assert (row["progress"], row["auto_tmm"], row["category"]) == (1, False, "films")
        (file,) = json.loads((await ask("POST", "torrents/files", {"hash": first}))[1])
        assert file["name"] == "film.mkv/film.mkv"
        assert json.loads((await ask("POST", "torrents/categories", ""))[1])["films"]["savePath"] == ""
        new = {"category": "films.cross-seed", "savePath": ""}
        assert (await ask("POST", "torrents/createCategory", new))[0] == 200
        form = aiohttp.FormData(
            {"tags": "cross-seed,hops:0", "category": "films.cross-seed", "autoTMM": "false", "savepath": str(tmp_path)}
        )
        for name, value in (
            ("contentLayout", "Subfolder"),
            ("skip_checking", "false"),
            ("paused", "true"),
            ("foo", "bar"),
        ):
            form.add_field(name, value)
        form.add_field("torrents", single, filename="b.cross-seed.torrent", content_type="application/x-bittorrent")
        assert (await ask("POST", "torrents/add", form))[0] == 200
        assert (await ask("POST", "torrents/recheck", {"hashes": second}))[0] == 200
        assert (await ask("POST", "torrents/resume", {"hashes": second}))[0] == 200
        other = here.library.find(second)
        assert other.record.labels == ["films.cross-seed", "cross-seed"]
        assert other.file_path(0) == "film/film.mkv"


def make_single(path):
    """Return a torrent of one file, which is in no folder."""
    creator = new_creator(path, 16384)
    lt.set_piece_hashes(creator, str(path.parent))
    return lt.bencode(creator.generate())


async def test_two_changes_of_labels_at_a_time_both_hold(tmp_path):
    async with daemon_here(tmp_path) as here, raw(here.address) as ask:
        form = {"urls": f"magnet:?xt=urn:btih:{NOBODY}", "stopped": "true"}
        assert (await ask("POST", "torrents/add", form))[0] == 200
        calls = [("addTags", {"tags": f"t{number}"}) for number in range(8)]
        calls += [("addTrackers", {"hash": NOBODY, "urls": f"udp://127.0.0.1:{number}/x"}) for number in range(1, 9)]
        calls += [("createTags", {"tags": f"made{number}"}) for number in range(8)]
        await asyncio.gather(*(ask("POST", f"torrents/{call}", {"hashes": NOBODY, **form}) for call, form in calls))
        (torrent,) = here.library.torrents.values()
        assert sorted(torrent.record.labels) == [f"t{number}" for number in range(8)]
        assert len(torrent.handle.trackers()) == 8
        assert len(here.library.records.settings.tags) == 8


# Strangers


@contextlib.asynccontextmanager
async def asking_trackers(folder, paths):
    """Yield a torrent whose trackers are at these paths of one host, that host, and both ways to ask of it.

    What a tracker answers is said by the end of its path (ANSWERS).
    """

    async def announce(request):
        answer = ANSWERS[request.path.rpartition("/")[2]]
        status, body = answer() if callable(answer) else answer
        return web.Response(status=status, body=body)

    app = web.Application()
    app.router.add_get("/{folder}/{kind}", announce)
    async with (
        serving_app(app, HostPort(unused_host(), 0), "cannot listen on") as tracker,
        daemon_here(folder) as here,
        raw(here.address) as ask,
        Rpc(here.address) as rpc,
    ):
        link = "&tr=".join([f"magnet:?xt=urn:btih:{NOBODY}", *(f"http://{tracker}/{path}" for path in paths)])
        assert (await ask("POST", "torrents/add", {"urls": link, "tags": "hops:0"}))[0] == 200
        (torrent,) = here.library.torrents.values()
        yield torrent, tracker, ask, rpc


async def test_a_tracker_that_answers_no_text_is_shown_with_its_torrent(tmp_path):
    async with asking_trackers(tmp_path, ["announce/unreadable"]) as (torrent, tracker, ask, rpc):

        def is_unreadable():
            try:
                return not torrent.handle.trackers()
            except UnicodeError:
                return True

        await until(is_unreadable)
        for call in ("torrents/info", "sync/maindata", f"torrents/trackers?hash={NOBODY}"):
            status, text = await ask("GET", call)
            assert status == 200, text
        assert "it answers what is no text" in text
        (shown,) = (await rpc.call("torrent_get", {"fields": ["tracker_stats"]}))["torrents"]
        assert shown["tracker_stats"][0]["announce"] == f"http://{tracker}/announce/unreadable"


ANSWERS = {
    "refused": (200, b"d14:failure reason20:unregistered torrent8:intervali1800ee"),
    "unreadable": (200, b"d14:failure reason4:\xff\xfe\x80!e"),
    "warned": (200, b"d8:intervali1800e5:peers0:15:warning message20:torrent is not knowne"),
    "missing": (404, b"<html>"),
    "down": (503, b""),
    "page": (200, b"<html>hello</html>"),
}


@pytest.mark.parametrize(
    ("paths", "said", "error"),
    [
        (["announce/refused"], ["unregistered torrent"], (2, "unregistered torrent")),
        (["announce/unreadable"], ["it answers what is no text"], (2, "it answers what is no text")),
        (["announce/warned"], ["torrent is not known"], (1, "torrent is not known")),
        (["announce/missing", "announce/down"], ["404 Not Found", "503 Service Unavailable"], (0, "")),
        (["announce/page"], ["its answer is none of a tracker (expected value"], (0, "")),
        (["announce/refused?key=a"], ["libtorrent asks no tracker whose address has a key"], (0, "")),
        (["elsewhere/refused"], ["libtorrent asks an address of this machine"], (0, "")),
        (["announce/refused", "announce/down"], ["unregistered torrent", "503"], (0, "")),
    ],
)
async def test_both_interfaces_say_what_trackers_said_and_why_they_said_nothing(paths, said, error, tmp_path):
    async with asking_trackers(tmp_path, paths) as (torrent, tracker, ask, rpc):
        await until(
            lambda: len(torrent.trackers) == len(paths) and all(each.said for each in torrent.trackers.values())
        )
        _, text = await ask("GET", f"torrents/trackers?hash={NOBODY}")
        rows = {row["url"].rpartition(f"{tracker}/")[2]: row["msg"] for row in json.loads(text) if row["tier"] >= 0}
        (shown,) = (await rpc.call("torrent_get", {"fields": ["tracker_stats", "error", "error_string"]}))["torrents"]
        for path, words, stats in zip(paths, said, shown["tracker_stats"], strict=True):
            assert rows[path].startswith(words)
            assert stats["last_announce_result"] == rows[path]
        assert (shown["error"], shown["error_string"]) == error


async def test_a_tracker_that_does_not_know_a_new_torrent_yet_is_asked_again(tmp_path, monkeypatch):
    monkeypatch.setattr(unregistered, "AGAIN_AT_S", (1.0, 2.0, 900.0))
    monkeypatch.setattr(unregistered, "LEAST_S", 0.1)
    asked = []

    def refuse():
        asked.append(time.monotonic())
        return ANSWERS["refused"] if len(asked) < 3 else (200, b"d8:intervali1800e5:peers0:e")

    monkeypatch.setitem(ANSWERS, "later", refuse)
    async with asking_trackers(tmp_path, ["announce/later"]) as (torrent, _, _, rpc):
        await until(lambda: len(asked) == 3)
        await until(lambda: not any(each.said for each in torrent.trackers.values()))
        (shown,) = (await rpc.call("torrent_get", {"fields": ["error", "error_string"]}))["torrents"]
        assert (shown["error"], shown["error_string"]) == (0, "")


@pytest.mark.parametrize(
    ("said", "age_s", "wait_s"),
    [
        ("unregistered torrent", 1, 59),
        ("Torrent not registered with this tracker.", 40, 140),
        ("Requested download is not authorized for use with this tracker.", 1, 59),
        ("Torrent has been deleted", 1, None),
        ("Torrent not found", 100, 80),
        ("InfoHash does not exist", 200, 220),
        ("unregistered torrent", 820, None),
        ("unregistered torrent", 86_400, None),
        ("unregistered torrent", -5, None),  # the clock was set back
    ],
)
def test_a_tracker_is_asked_again_while_a_torrent_is_new(said, age_s, wait_s):
    assert unregistered.asked_again_in_s(said, age_s) == wait_s


@pytest.mark.parametrize("name", ["...evil", "....", ".a", "a.mkv"])
async def test_no_layout_puts_a_file_outside_of_its_folder(tmp_path, name):
    info = {b"name": name.encode(), b"piece length": 16384, b"length": 1, b"pieces": bytes(20)}
    content = lt.bencode({b"info": info})
    async with daemon_here(tmp_path) as here, raw(here.address) as ask:
        form = aiohttp.FormData({"contentLayout": "Subfolder", "stopped": "true"})
        form.add_field("torrents", content, filename="x.torrent")
        assert (await ask("POST", "torrents/add", form))[0] == 200
        (torrent,) = here.library.torrents.values()
        assert is_inside("/folder", torrent.file_path(0))
        assert "/" in torrent.file_path(0)


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({"Content-Type": "application/x-www-form-urlencoded"}, b"a=\xff%ff"),
        ({"Content-Type": "application/x-www-form-urlencoded; charset=foo"}, b"a=1"),
        ({"Content-Type": "multipart/form-data"}, b"a=1"),
        (
            {"Content-Type": "multipart/form-data; boundary=x"},
            b"--x\r\nContent-Disposition: form-data\r\n\r\n1\r\n--x--",
        ),
        ({"Content-Type": "multipart/form-data; boundary=x"}, b"--x\r\nnonsense"),
    ],
)
async def test_a_form_that_is_none_is_refused_and_logged_nowhere(tmp_path, headers, body, caplog):
    async with guarded(tmp_path) as (here, _), raw(here.address) as ask:
        key = {"Authorization": f"Bearer {PASSWORD}"}
        status, text = await ask("POST", "torrents/add", body, headers={**key, **headers})
        assert status in (400, 409), text
        assert (await ask("POST", "auth/login", body, headers=headers))[0] == 401
        assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_of_preferences_with_a_wrong_folder_the_others_are_set(tmp_path):
    async with daemon_here(tmp_path) as here, raw(here.address) as ask:
        form = {"json": json.dumps({"save_path": "relative", "up_limit": 7000})}
        assert await ask("POST", "app/setPreferences", form) == (
            400, "name a folder by its whole path, from /; all else is set",
        )  # fmt: skip
        settings = here.library.records.settings
        assert (settings.folder, settings.speed_limit_up) == (str(tmp_path), 7)


async def test_a_page_of_another_program_asks_below_itself_and_finds_the_api(tmp_path):
    """VueTorrent's requests are relative to where it is served."""
    page = tmp_path / "page"
    page.mkdir()
    (page / "index.html").write_text("<p>a page")
    web_options = WebOptions(HostPort("127.0.0.1", 0), Credentials(USER, PASSWORD), web_root=page)
    async with daemon_here(tmp_path, web=web_options) as here, aiohttp.ClientSession() as http:
        place = f"http://{here.address}/transmission/web/"
        async with http.get(place + "api/v2/app/version") as response:
            assert response.status == 403
        async with http.post(place + "api/v2/auth/login", data={"username": USER, "password": PASSWORD}) as response:
            assert (response.status, await response.text()) == (200, "Ok.")
            cookie = response.headers["Set-Cookie"].partition(";")[0]
        async with http.get(place + "api/v2/app/version", headers={"Cookie": cookie}) as response:
            assert (response.status, await response.text()) == (200, VERSION)
        known = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        async with http.get(place, headers={"Authorization": f"Basic {known}"}) as response:
            assert await response.text() == "<p>a page"


async def test_peers_that_are_named_are_connected_and_kept(tmp_path):
    (tmp_path / "seeds").mkdir()
    seeder = Seeder(tmp_path / "seeds")
    content = make_torrent(tmp_path / "seeds", "show", SIZES)
    seeder.start(lt.load_torrent_buffer(content))
    async with daemon_here(tmp_path, tmp_path / "own") as here, raw(here.address) as ask:
        torrent, _ = await here.changes.add(read_metainfo(content), AddRequest(hops=0))
        form = {"hashes": torrent.hash_string, "peers": f"{seeder.address}|nonsense|name.example:1|1.2.3.4:0"}
        status, text = await ask("POST", "torrents/addPeers", form)
        assert (status, json.loads(text)) == (200, {torrent.hash_string: {"added": 1, "failed": 3}})
        await until(lambda: torrent.is_finished)
        assert torrent.record.peers == [tuple(seeder.address)]
        assert (await ask("POST", "torrents/addPeers", {**form, "peers": "nonsense"}))[0] == 400
        status, why = await ask("POST", "transfer/banPeers", {"peers": "1.2.3.4:5"})
        assert (status, "--blocklist" in why) == (409, True)


async def test_folders_are_listed_for_who_chooses_one(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    async with daemon_here(tmp_path / "folder") as here, raw(here.address) as ask:

        async def names(mode):
            _, text = await ask("GET", "app/getDirectoryContent", {"dirPath": str(tmp_path), "mode": mode})
            return [os.path.basename(path) for path in json.loads(text)]

        assert [await names(mode) for mode in ("all", "dirs", "files")] == [["file", "folder"], ["folder"], ["file"]]
        for path, status in (("relative", 400), (str(tmp_path / "none"), 404), (str(tmp_path / "file"), 404)):
            assert (await ask("GET", "app/getDirectoryContent", {"dirPath": path}))[0] == status


@pytest.mark.parametrize(("category", "folder"), [("tv", "tv"), ("tv/new", "tv/new"), ("films", "elsewhere")])
async def test_a_torrent_that_is_managed_goes_where_its_category_says(category, folder, tmp_path):
    async with guarded(tmp_path) as (here, client):

        def add():
            client.torrents_create_category("films", save_path=str(tmp_path / "elsewhere"))
            client.torrents_add(
                torrent_files=torrent_file(tmp_path / "s"), category=category, use_auto_torrent_management=True,
                save_path=str(tmp_path / "not here"), is_stopped=True,
            )  # fmt: skip
            return client.torrents_info()[0].save_path

        assert await asyncio.to_thread(add) == str(tmp_path / folder)


async def test_who_is_not_known_is_not_read_to_the_end(tmp_path):
    async with guarded(tmp_path) as (here, _), raw(here.address) as ask:
        status, _ = await ask("POST", "auth/login", {"username": "x" * 100_000, "password": PASSWORD})
        assert status == 413


async def test_who_is_not_logged_in_gets_nothing_and_a_login_ends(tmp_path):
    async with guarded(tmp_path) as (here, client), raw(here.address) as ask:
        for call in ("app/version", "torrents/info", "sync/maindata", "auth/logout", "no/such"):
            assert (await ask("POST", call))[0] == 403
        await asyncio.to_thread(client.auth_log_out)
        again = Client(host=f"http://{here.address}", FORCE_SCHEME_FROM_HOST=True)
        with pytest.raises((Forbidden403Error, LoginFailed)):
            await asyncio.to_thread(lambda: again.app.version)
        encoded = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        for headers in ({"Authorization": f"Basic {encoded}"}, {KEY_HEADER: PASSWORD}):
            assert await ask("GET", "app/version", headers=headers) == (200, "v5.2.3")
        for _ in range(GUESSES_AT_ONCE):
            await ask("POST", "auth/login", {"username": USER, "password": "wrong"})
        status, text = await ask("POST", "auth/login", {"username": USER, "password": PASSWORD})
        assert (status, "Too many" in text) == (403, True)


async def test_a_login_ends_with_the_password_that_it_was_made_with(tmp_path):
    async with guarded(tmp_path) as (here, _), raw(here.address) as ask:
        assert (await ask("POST", "auth/login", {"username": USER, "password": PASSWORD}))[0] == 200
        assert (await ask("GET", "app/version"))[0] == 200
        other = WebOptions(here.options.web.listen, Credentials(USER, "another"))
        here.apply(replace(here.options, web=other))
        assert (await ask("GET", "app/version"))[0] == 403


async def test_a_page_of_another_site_cannot_use_a_login(tmp_path):
    async with guarded(tmp_path) as (here, _), aiohttp.ClientSession() as http:
        base = f"http://{here.address}/api/v2"
        form = {"username": USER, "password": PASSWORD}
        async with http.post(f"{base}/auth/login", data=form) as response:
            (cookie,) = response.cookies.values()
            assert (cookie["httponly"], cookie["samesite"], cookie["path"]) == (True, "Strict", "/")
        known = {"Cookie": f"{cookie.key}={cookie.value}"}
        for headers in ({"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}, {"Host": "evil.example"}):
            async with http.post(f"{base}/torrents/delete", headers={**known, **headers}) as response:
                assert response.status in (403, 421)
        async with http.get(f"http://{here.address}/metrics", headers=known) as response:
            assert response.status == 401  # the cookie is for qBittorrent's API alone


@pytest.mark.parametrize(
    ("method", "call", "form", "status"),
    [
        ("GET", "torrents/delete", {"hashes": "all"}, 405),
        ("PUT", "torrents/info", None, 405),
        ("GET", "no/such", None, 404),
        ("POST", "torrents/delete", {}, 400),
        ("POST", "torrents/add", {}, 409),
        ("POST", "torrents/add", {"urls": "/etc/passwd"}, 409),
        ("POST", "torrents/add", {"urls": f"magnet:?xt=urn:btih:{NOBODY}", "savepath": "relative"}, 409),
        ("POST", "torrents/add", {"urls": f"magnet:?xt=urn:btih:{NOBODY}", "tags": "hops:7"}, 409),
        ("POST", "torrents/add", {"urls": f"magnet:?xt=urn:btih:{NOBODY}", "firstLastPiecePrio": "true"}, 409),
        ("POST", "torrents/add", {"urls": f"magnet:?xt=urn:btih:{NOBODY}", "dlLimit": "1" * 5000}, 400),
        ("POST", "torrents/filePrio", {"hash": NOBODY, "id": "0", "priority": "3"}, 400),
        ("POST", "torrents/filePrio", {"hash": NOBODY, "id": "0", "priority": "1"}, 404),
        ("POST", "torrents/createCategory", {"category": "a,b"}, 409),
        ("POST", "torrents/createCategory", {"category": "hops:1"}, 409),
        ("POST", "app/setPreferences", {"json": '{"save_path": "relative"}'}, 400),
        ("GET", "torrents/info", {"offset": "x"}, 400),
        ("GET", "torrents/info", {"hashes": "|||"}, 200),
        ("GET", "sync/maindata", {"rid": "-1"}, 200),
    ],
)
async def test_wrong_requests_get_an_answer_of_one_line(tmp_path, method, call, form, status):
    async with daemon_here(tmp_path) as here, raw(here.address) as ask:
        given, text = await ask(method, call, form)
        assert given == status, text
        assert len(text.splitlines()) <= 1 or status == 200
        assert not here.library.torrents


async def test_what_is_no_torrent_is_refused_by_name_and_nothing_is_added(tmp_path):
    content = torrent_file(tmp_path / "s")
    async with daemon_here(tmp_path) as here, raw(here.address) as ask:
        form = aiohttp.FormData()
        form.add_field("torrents", content, filename="good.torrent")
        form.add_field("torrents", b"d4:infoi1ee", filename="bad.torrent")
        assert await ask("POST", "torrents/add", form) == (415, "Error: 'bad.torrent' is not a valid torrent file.")
        assert not here.library.torrents
