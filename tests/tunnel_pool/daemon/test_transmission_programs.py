"""Tests the old form of Transmission's RPC with the request sequences of programs that use it.

Read for the sequences: Sonarr's TransmissionProxy.cs and TransmissionBase.cs (49df353), which are Radarr's but for the
names of settings (1b9662d); autobrr's internal/action/transmission.go (489d8dd) with hekmon's transmissionrpc
(request.go, b986a59); cross-seed's Transmission.ts (0a222a0).
"""

import asyncio
import base64
import contextlib

import aiohttp
import libtorrent as lt

from tests.tunnel_pool.daemon.running import daemon_here, make_torrent
from tests.worlds.network import until
from tunnel_pool.daemon.server.guard import Credentials
from tunnel_pool.daemon.server.web import SESSION_HEADER, WebOptions
from tunnel_pool.overlay.ground.config import HostPort

USER, PASSWORD = "tunnel-pool", "correct horse"
SIZES = {"a.mkv": 300_000, "sub/b.srt": 1000}
# TransmissionProxy.GetTorrentStatus
FIELDS = [
    "id", "hashString", "name", "downloadDir", "totalSize", "leftUntilDone", "isFinished", "eta", "status",
    "secondsDownloading", "secondsSeeding", "errorString", "uploadedEver", "downloadedEver", "seedRatioLimit",
    "seedRatioMode", "seedIdleLimit", "seedIdleMode", "fileCount", "file-count", "labels",
]  # fmt: skip
STOPPED, CHECKING = 0, (1, 2)


class Program:
    """Asks as programs do: the id of the session first, or when 409 says that it is another one."""

    def __init__(self, http, address, password=PASSWORD):
        self._http = http
        self._url = f"http://{address}/transmission/rpc"
        self._headers = {"Authorization": f"Basic {base64.b64encode(f'{USER}:{password}'.encode()).decode()}"}

    async def log_in(self):
        """Ask by GET without a session (Sonarr's AuthenticateClient); return the status."""
        async with self._http.get(self._url, headers=self._headers, allow_redirects=False) as response:
            self._headers[SESSION_HEADER] = response.headers.get(SESSION_HEADER, "")
            return response.status

    async def __call__(self, method, arguments=None, **more):
        body = {"method": method, **({} if arguments is None else {"arguments": arguments}), **more}
        for _ in range(2):
            async with self._http.post(self._url, json=body, headers=self._headers) as response:
                if response.status == 409:
                    self._headers[SESSION_HEADER] = response.headers[SESSION_HEADER]
                    continue
                assert response.status == 200
                answer = await response.json()
                assert answer["result"] == "success", answer
                assert answer.get("tag") == more.get("tag")
                return answer["arguments"]
        raise AssertionError("a session's id is refused twice")

    async def torrent(self, infohash, *fields):
        (found,) = (await self("torrent-get", {"fields": list(fields), "ids": [infohash]}))["torrents"]
        return found


@contextlib.asynccontextmanager
async def guarded(tmp_path):
    listening = WebOptions(HostPort("127.0.0.1", 0), Credentials(USER, PASSWORD))
    async with daemon_here(tmp_path, web=listening) as here, aiohttp.ClientSession() as http:
        yield here, Program(http, here.address), http


def torrent_file(folder, name="show"):
    folder.mkdir(exist_ok=True)
    content = make_torrent(folder, name, SIZES)
    return base64.b64encode(content).decode(), str(lt.load_torrent_buffer(content).info_hashes.v1)


async def test_sonarr_and_radarr_test_add_watch_label_and_remove(tmp_path):
    metainfo, infohash = torrent_file(tmp_path / "tv-sonarr")
    async with guarded(tmp_path) as (here, program, http):
        assert await Program(http, here.address, "wrong").log_in() == 401
        assert await program.log_in() == 409
        session = await program("session-get")
        assert tuple(map(int, session["version"].split()[0].split("."))) >= (4, 0), "labels are there from then on"
        assert {"seedRatioLimit", "seedRatioLimited", "idle-seeding-limit-enabled", "rpc-version"} <= session.keys()
        assert (await program("torrent-get", {"fields": FIELDS}))["torrents"] == []
        folder = f"{session['download-dir'].rstrip('/')}/tv-sonarr"
        wish = {"metainfo": metainfo, "paused": False, "download-dir": folder, "labels": ["tv-sonarr"]}
        await program("torrent-add", wish)
        limits = {"seedRatioLimit": 1.5, "seedRatioMode": 1, "seedIdleLimit": 90, "seedIdleMode": 1}
        await program("torrent-set", {"ids": [infohash], **limits})
        await program("queue-move-top", {"ids": [infohash]})
        await until(lambda: here.library.find(infohash).status.progress == 1)
        torrent = await program.torrent(infohash, *FIELDS)
        assert {name: torrent[name] for name in limits} == limits
        assert (torrent["hashString"], torrent["downloadDir"], torrent["name"]) == (infohash, folder, "show")
        assert (torrent["leftUntilDone"], torrent["totalSize"], torrent["file-count"]) == (0, 301_000, 2)
        assert (torrent["errorString"], torrent["isFinished"]) == ("", False)
        # MarkItemAsImported
        await program("torrent-set", {"ids": [infohash], "labels": [*torrent["labels"], "imported"]})
        assert "imported" in (await program.torrent(infohash, "labels"))["labels"]
        await program("torrent-remove", {"ids": [infohash], "delete-local-data": True})
        assert (await program("torrent-get", {"fields": FIELDS}))["torrents"] == []


async def test_autobrr_counts_adds_limits_and_reannounces(tmp_path):
    metainfo, infohash = torrent_file(tmp_path)
    async with guarded(tmp_path) as (_, program, _):
        session = await program("session-get", {"fields": ["rpc-version", "rpc-version-minimum"]}, tag=7)
        assert session["rpc-version-minimum"] <= 15 <= session["rpc-version"]  # controller.go, rpcVersion
        assert (await program("torrent-get", {"fields": ["status"]}, tag=8))["torrents"] == []
        added = (await program("torrent-add", {"metainfo": metainfo}, tag=9))["torrent-added"]
        assert added["hashString"] == infohash
        edit = {
            "ids": [added["id"]], "labels": ["a", "hops:2"], "uploadLimit": 100, "uploadLimited": True,
            "downloadLimit": 200, "downloadLimited": True, "seedRatioLimit": 2.0, "seedRatioMode": 1,
            "seedIdleLimit": 60, "seedIdleMode": 1,
        }  # fmt: skip
        await program("torrent-set", edit, tag=10)
        for _ in range(2):  # until a tracker knows somebody
            assert (await program.torrent(added["id"], "trackerStats"))["trackerStats"] == []
            await program("torrent-reannounce", {"ids": [added["id"]]}, tag=11)
        torrent = await program.torrent(added["id"], "labels", "uploadLimit", "seedIdleLimit", "seedRatioLimit")
        assert torrent == {"labels": ["a", "hops:2"], "uploadLimit": 100, "seedIdleLimit": 60, "seedRatioLimit": 2.0}
        await program("torrent-remove", {"ids": [added["id"]]}, tag=12)


async def test_cross_seed_injects_beside_what_is_there_rechecks_and_resumes(tmp_path):
    metainfo, infohash = torrent_file(tmp_path)
    other = lt.bdecode(base64.b64decode(metainfo))
    other[b"info"][b"source"] = b"another tracker"
    injected = lt.bencode(other)
    its_hash = str(lt.load_torrent_buffer(injected).info_hashes.v1)
    async with guarded(tmp_path) as (here, program, _):
        await program("session-get", {})
        await program("torrent-add", {"metainfo": metainfo})
        await until(lambda: here.library.find(infohash).status.progress == 1)
        fields = ["hashString", "name", "files", "totalSize", "downloadDir", "labels", "trackers"]
        (there,) = (await program("torrent-get", {"fields": fields}))["torrents"]
        assert sorted(file["name"] for file in there["files"]) == ["show/a.mkv", "show/sub/b.srt"]
        assert (await program.torrent(infohash, "downloadDir", "percentDone"))["percentDone"] == 1
        wish = {
            "download-dir": there["downloadDir"],
            "metainfo": base64.b64encode(injected).decode(),
            "paused": True,
            "labels": ["cross-seed"],
        }
        assert (await program("torrent-add", wish))["torrent-added"]["hashString"] == its_hash
        assert "torrent-duplicate" in await program("torrent-add", wish)
        for method in ("torrent-stop", "torrent-verify"):
            await program(method, {"ids": [its_hash]})
        async with asyncio.timeout(30):
            while (now := await program.torrent(its_hash, "leftUntilDone", "name", "status"))["status"] in CHECKING:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert now == {"leftUntilDone": 0, "name": "show", "status": STOPPED}
        await program("torrent-start", {"ids": [its_hash]})
        assert (await program.torrent(its_hash, "status"))["status"] != STOPPED
        unknown = await program("torrent-get", {"fields": ["percentDone"], "ids": ["ab" * 20]})
        assert unknown["torrents"] == []
