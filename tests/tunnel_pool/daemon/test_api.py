"""Tests the API under /api: its effects, its refusals, and that it matches its OpenAPI document."""

import asyncio
import base64
import contextlib
import json
import sys

import aiohttp
import libtorrent as lt
import pytest

from tests.tunnel_pool.daemon.running import daemon, make_torrent
from tunnel_pool.bench.harness.daemon import magnet_of, network_of
from tunnel_pool.daemon.server.api.happenings import GONE, Seen, happenings
from tunnel_pool.daemon.server.api.model import Happening
from tunnel_pool.private_swarm.swarm import LocalSwarm


class Api:
    def __init__(self, http, address):
        self._http = http
        self.base = f"http://{address}"

    async def __call__(self, method, path, status=200, **options):
        """Send a request, and return the answer's JSON; fail if the status is not `status`."""
        async with self._http.request(method, f"{self.base}/api/{path}", **options) as response:
            assert response.status == status, await response.text()
            return await response.json() if status != 204 else None

    async def events(self):
        """Yield the name and the data of each event that the daemon sends."""
        async with self._http.get(f"{self.base}/api/events") as response:
            while line := await response.content.readline():
                if line.startswith(b"event: "):
                    name = line[7:].strip().decode()
                elif line.startswith(b"data: "):
                    yield name, json.loads(line[6:])

    async def until(self, path, holds):
        async with asyncio.timeout(60):
            while not holds(found := await self("GET", path)):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        return found


def test_happenings_are_what_differs():
    before = Seen({"a": "downloading", "b": "seeding"}, {"1": "EXTENDING"}, {})
    now = Seen({"a": "seeding", "c": "queued"}, {"1": "READY"}, {"0": "running"})
    assert {(each.kind, each.what, each.now) for each in happenings(before, now)} == {
        ("torrent", "a", "seeding"),
        ("torrent", "c", "queued"),
        ("torrent", "b", GONE),
        ("circuit", "1", "READY"),
        ("child", "0", "running"),
    }
    assert happenings(now, now) == []
    assert happenings(Seen({}, {}, {"0": "running"}), Seen({}, {}, {})) == [Happening(kind="child", what="0", now=GONE)]


async def test_torrents_come_change_and_go(tmp_path):
    data = make_torrent(tmp_path / "downloads", "show", {"a.bin": 50_000, "b.bin": 10})
    async with daemon(tmp_path, "--workers=0") as (running, address), aiohttp.ClientSession() as http:
        api = Api(http, address)
        wish = {"metainfo": base64.b64encode(data).decode(), "hops": 2, "labels": ["x", "hops:2"]}
        added = await api("POST", "torrents", 201, json=wish)
        assert added["new"]
        torrent = added["torrent"]
        assert (torrent["name"], torrent["hops"], torrent["labels"]) == ("show", 2, ["x"])
        assert not (await api("POST", "torrents", 201, json=wish))["new"]
        one = f"torrents/{torrent['infohash']}"
        await api.until(one, lambda torrent: torrent["state"] == "seeding" and torrent["done_s"])
        assert await api("GET", "torrents") == [await api("GET", one)]
        files = await api("GET", one + "/files")
        assert sorted((file["path"], file["size_bytes"], file["done_bytes"]) for file in files) == [
            ("show/a.bin", 50_000, 50_000),
            ("show/b.bin", 10, 10),
        ]
        await api("PATCH", one, 400, json={"hops": 1})
        await api("PATCH", one, json={"stopped": True, "labels": ["y"], "hops": 1, "confirm_fewer_hops": True})
        torrent = (await api("GET", "torrents"))[0]
        assert (torrent["state"], torrent["labels"], torrent["hops"]) == ("stopped", ["y"], 1)
        await api("PATCH", one, json={"labels": ["z", "hops:3"]})
        torrent = await api("GET", one)
        assert (torrent["labels"], torrent["hops"]) == (["z"], 3)
        await api("PATCH", one, 400, json={"labels": ["hops:2"], "hops": 1})
        await api("PATCH", one, 400, json={"labels": ["hops:7"]})
        await api("PATCH", one, 400, json={"labels": ["z", "of, two"]})
        assert (await api("GET", one))["hops"] == 3
        await api("DELETE", one + "?files=true", 204)
        assert await api("GET", "torrents") == []
        assert (await api("GET", one, 404))["error"] == "there is no such torrent"


# What is asked for when a torrent is added, and why it can't be.


def resume_data(renamed, with_metadata=True):
    """Return libtorrent's resume data, in base64, of a torrent of one file that has these places."""
    info = {b"name": b"a", b"piece length": 16384, b"length": 1, b"pieces": bytes(20)}
    parameters = lt.load_torrent_buffer(lt.bencode({b"info": info}))
    parameters.renamed_files = renamed
    if not with_metadata:
        parameters.ti = None
    return base64.b64encode(lt.write_resume_data_buf(parameters)).decode()


REFUSED = [
    ({}, "name one of `source`, `metainfo` and `resume`"),
    ({"source": "a" * 40, "metainfo": "eA=="}, "name one of `source`, `metainfo` and `resume`"),
    ({"resume": base64.b64encode(b"de").decode()}, "corrupt"),
    ({"resume": resume_data({0: "../../etc/x"})}, "outside its folder"),
    ({"resume": resume_data({0: "/etc/x"})}, "outside its folder"),
    ({"resume": resume_data({}, with_metadata=False)}, "no metadata"),
    ({"source": "http://example.org/a.torrent"}, "not fetched from the web"),
    ({"source": "/etc/passwd"}, "no magnet link and no infohash"),
    ({"source": "magnet:?xt=urn:btih:zz"}, "not a magnet link"),
    ({"metainfo": "!!"}, "corrupt"),
    ({"metainfo": base64.b64encode(b"d4:infode").decode()}, "corrupt"),
    ({"source": "a" * 40, "hops": 4}, "hops"),
    ({"source": "a" * 40, "hops": -1}, "hops"),
    ({"source": "a" * 40, "folder": "../x"}, "whole path"),
    ({"source": "a" * 40, "surprise": 1}, "surprise"),
    ([[[[]]]], "object"),
]


async def test_what_can_not_be_is_refused_in_one_line(tmp_path):
    async with daemon(tmp_path, "--workers=0") as (running, address), aiohttp.ClientSession() as http:
        api = Api(http, address)
        for body, why in REFUSED:
            answer = await api("POST", "torrents", 400, json=body)
            assert why in answer["error"], body
            assert "\n" not in answer["error"]
        assert await api("GET", "torrents") == []
        await api("POST", "torrents", 415, data=b"{}")
        await api("POST", "torrents", 400, data=b"{", headers={"Content-Type": "application/json"})
        await api("POST", "torrents", 400, data=b"[" * 100_000, headers={"Content-Type": "application/json"})
        await api("GET", "history?seconds=0", 400)
        await api("GET", "history?seconds=" + "1" * 5000, 400)
        await api("GET", "torrents", 200, headers={"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Dest": "empty"})
        async with http.get(f"{api.base}/api/torrents", headers={"Sec-Fetch-Site": "cross-site"}) as response:
            assert response.status == 403
        async with http.get(f"{api.base}/api/events") as response:
            assert response.headers["X-Content-Type-Options"] == "nosniff"
        await api("GET", "torrents?surprise=1", 400)
        await api("DELETE", "circuits/1", 404)
        await api("DELETE", "circuits/x", 404)
        assert "no children" in (await api("PUT", "pool/workers", 400, json={"least": 1, "most": 2}))["error"]
        assert "no children" in (await api("POST", "pool/children/0/drain", 400))["error"]
        assert (await api("GET", "pool"))["workers"] is None


async def test_events_tell_all_at_first_and_then_what_changes(tmp_path):
    async with daemon(tmp_path, "--workers=0") as (running, address), aiohttp.ClientSession() as http:
        api = Api(http, address)
        await api("POST", "torrents", 201, json={"source": "a" * 40, "stopped": True})
        async with asyncio.timeout(30):
            heard, asked = {}, False
            async with contextlib.aclosing(api.events()) as events:
                async for name, data in events:
                    heard.setdefault(name, []).append(data)
                    if name == "state" and data["status"]["torrents"] == 1 and not asked:
                        asked = True
                        await api("DELETE", f"torrents/{'a' * 40}", 204)
                    if any(each["removed"] for each in heard.get("torrents", [])) and heard.get("happening"):
                        break
        assert [torrent["infohash"] for torrent in heard["torrents"][0]["changed"]] == ["a" * 40]
        assert heard["torrents"][-1] == {"changed": [], "removed": ["a" * 40]}
        assert heard["happening"][-1] == {"kind": "torrent", "what": "a" * 40, "now": "gone"}
        assert [child["state"] for child in heard["state"][0]["pool"]["children"]] == ["main"]


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_the_pool_is_scaled_and_drained_under_a_download(tmp_path):
    async with (
        LocalSwarm(100 << 20, seeders=2, exits=2, relays=0, log_level="error", seeder_speed=2_500_000) as swarm,
        daemon(tmp_path, "--hops=1", "--workers=1", *network_of(swarm)) as (running, address),
        aiohttp.ClientSession() as http,
    ):
        api = Api(http, address)
        added = await api("POST", "torrents", 201, json={"source": magnet_of(swarm)})
        one = f"torrents/{added['torrent']['infohash']}"
        await api.until(one, lambda torrent: torrent["progress"] > 0.02)

        def states(pool):
            return {child["slot"]: child["state"] for child in pool["children"] if child["slot"] is not None}

        await api("PUT", "pool/workers", 204, json={"least": 2, "most": 2})
        await api.until("pool", lambda pool: list(states(pool).values()) == ["running", "running"])
        await api.until("circuits", lambda circuits: {circuit["child"] for circuit in circuits} == {0, 1})
        old = {child["pid"] for child in (await api("GET", "pool"))["children"]}
        await api("POST", "pool/children/0/drain", 204)
        await api.until(
            "pool",
            lambda pool: (
                sorted(states(pool).values()).count("running") == 2
                and {child["pid"] for child in pool["children"] if child["state"] == "running"} - old
            ),
        )
        await api.until(one, lambda torrent: torrent["progress"] == 1)
        assert any(circuit["down_bytes"] for circuit in await api("GET", "circuits"))
        assert (await api("GET", "config"))["options"]["hops"] == {"value": 1, "source": "command line"}
        await api("PUT", "pool/workers", 400, json={"least": 3, "most": 2})


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_the_api_is_what_its_document_says(tmp_path):
    """Schemathesis asks for everything in all ways that it can think of; the pool stays as large as it is."""
    data = make_torrent(tmp_path / "downloads", "show", {"a.bin": 50_000})
    async with daemon(tmp_path, "--workers=1") as (running, address), aiohttp.ClientSession() as http:
        api = Api(http, address)
        await api("POST", "torrents", 201, json={"metainfo": base64.b64encode(data).decode()})
        arguments = ["run", f"{api.base}/api/openapi.json", "--max-examples=40", "--no-color", "--seed=6"]
        arguments += ["--exclude-path=/api/events", "--exclude-path=/api/pool/workers"]
        checks = ("not_a_server_error", "status_code_conformance", "content_type_conformance")
        arguments += ["--checks", ",".join((*checks, "response_schema_conformance", "unsupported_method"))]
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "schemathesis.cli", *arguments, cwd=tmp_path, stdout=asyncio.subprocess.PIPE
        )
        output, _ = await process.communicate()
        assert process.returncode == 0, output.decode()
        assert b" passed" in output
        assert await api("GET", "status")
        assert "Traceback" not in "\n".join(running.lines), running.lines
