"""Tests Tribler's REST API with the requests of Sonarr's TriblerDownloadClientProxy."""

import asyncio

import aiohttp

from tests.tunnel_pool.daemon.running import daemon
from tunnel_pool.bench.harness.daemon import magnet_of, network_of
from tunnel_pool.private_swarm.swarm import LocalSwarm, same_bytes

PASSWORD = "correct horse"


class Sonarr:
    def __init__(self, http, address, key=PASSWORD):
        self._http = http
        self._base = f"http://{address}/api"
        self._headers = {"X-Api-Key": key, "Accept": "application/json"}

    async def __call__(self, method, path, body=None, status=200):
        async with self._http.request(method, f"{self._base}/{path}", json=body, headers=self._headers) as response:
            assert response.status == status, await response.text()
            return await response.json() if "json" in response.content_type else None

    async def download(self, status, timeout_s=60):
        """Wait until the only download has this status, and return it."""
        async with asyncio.timeout(timeout_s):
            while True:
                (download,) = (await self("GET", "downloads"))["downloads"]
                if download["status"] == status:
                    return download
                await asyncio.sleep(0.1)


async def test_sonarr_adds_watches_and_removes(tmp_path):
    environment = {"TUNNEL_POOL_RPC_PASSWORD": PASSWORD}
    async with (
        LocalSwarm(2 << 20, seeders=1, exits=2, relays=1, log_level="error") as swarm,
        daemon(tmp_path, "--hops=0", "--workers=0", *network_of(swarm), environment=environment) as (_, address),
        aiohttp.ClientSession() as http,
    ):
        sonarr = Sonarr(http, address)
        await Sonarr(http, address, "another key")("GET", "downloads", status=401)
        defaults = (await sonarr("GET", "settings"))["settings"]["libtorrent"]["download_defaults"]
        assert (defaults["saveas"], defaults["seeding_mode"]) == (str(tmp_path / "downloads"), "forever")
        assert await sonarr("GET", "downloads") == {
            "checkpoints": {"total": 0, "loaded": 0, "all_loaded": True},
            "downloads": [],
        }
        folder = f"{defaults['saveas']}/tv"
        wish = {"anon_hops": 2, "safe_seeding": True, "destination": folder, "uri": magnet_of(swarm)}
        added = await sonarr("PUT", "downloads", wish)
        one = f"downloads/{added['infohash']}"
        download = await sonarr.download("SEEDING")
        assert (download["hops"], download["progress"], download["size"]) == (2, 1.0, 2 << 20)
        assert download["infohash"] == added["infohash"]
        (file,) = (await sonarr("GET", f"{one}/files"))["files"]
        assert (file["name"], file["size"], file["progress"], file["included"]) == ("random.bin", 2 << 20, 1.0, True)
        assert same_bytes(swarm.file, tmp_path / "downloads/tv/random.bin")
        assert (await sonarr("PATCH", one, {"state": "stop"}))["modified"]
        await sonarr.download("STOPPED")
        assert (
            await sonarr(
                "PATCH", one, {"anon_hops": 1, "confirm_fewer_hops": True, "selected_files": [0], "state": "resume"}
            )
        )["modified"]
        assert (await sonarr.download("SEEDING"))["hops"] == 1

        for body, said in (
            ({"uri": "/etc/passwd"}, "no magnet link"),
            ({"uri": "http://example.org/x.torrent"}, "not fetched"),
            ({"uri": magnet_of(swarm), "anon_hops": 9}, "anon_hops"),
            ({"uri": magnet_of(swarm), "anon_hops": 3}, "with 1 hops"),
            ({}, "uri"),
        ):
            refused = await sonarr("PUT", "downloads", body, status=400)
            assert said in refused["error"]["message"], body
        await sonarr("PATCH", one, {"selected_files": [7]}, status=400)
        await sonarr("GET", f"downloads/{'0' * 40}/files", status=404)
        assert (await sonarr("DELETE", one, {"remove_data": True}))["removed"]
        assert (await sonarr("GET", "downloads"))["downloads"] == []
        (saw,) = await swarm.peers_of_seeders()
        assert set(saw) <= {node.host for node in swarm.exits}
