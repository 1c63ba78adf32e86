"""Tests Transmission's RPC in its old and new forms, and with hostile requests, over HTTP to a real daemon."""

import base64
import json
import random

import aiohttp

from tests.tunnel_pool.daemon.rpc import Rpc
from tests.tunnel_pool.daemon.running import daemon, make_torrent
from tests.worlds.network import metrics_in
from tunnel_pool.daemon.server.transmission.fields import FIELDS
from tunnel_pool.daemon.server.transmission.names import camel

MAGNET = "magnet:?xt=urn:btih:{:040x}&dn=number-{}"
METHODS = [
    "session-get", "session-set", "session-stats", "torrent-get", "torrent-add", "torrent-set", "torrent-remove",
    "torrent-start", "torrent-start-now", "torrent-stop", "torrent-verify", "torrent-reannounce",
    "torrent-set-location", "torrent-rename-path", "queue-move-top", "queue-move-up", "queue-move-down",
    "queue-move-bottom", "free-space", "port-test", "blocklist-update",
]  # fmt: skip
MANY_TRACKERS = [f"udp://192.0.2.1:{port}/" for port in range(1, 1000)]


async def test_both_forms_of_the_rpc(tmp_path):
    async with daemon(tmp_path, "--workers=0") as (running, address), Rpc(address) as rpc:
        await the_handshake(address)
        await answers_in_both_forms(rpc, tmp_path)
        await ids_in_every_form(rpc)
        await a_table_and_what_is_recent(rpc)
        await what_json_rpc_asks_for(rpc)
        await hop_counts_only_rise_by_labels(rpc)
        await what_would_break_it_is_refused(rpc)
        await trackers_are_edited(rpc)
        await strangers_are_refused(address)
        await metrics_name_nobody(rpc, address)
        await nonsense_is_answered(rpc)
        await a_body_that_is_not_what_it_says_is_refused(rpc)
        assert running.process.returncode is None


async def a_body_that_is_not_what_it_says_is_refused(rpc):
    url, headers = rpc.where
    for encoding in ("gzip", "deflate"):
        async with aiohttp.ClientSession() as http:
            wrong = {**headers, "Content-Encoding": encoding}
            async with http.post(url, data=b"\xff\xfe", headers=wrong) as response:
                assert response.status == 400
                assert "Content-Encoding" in await response.text()


async def classic(rpc, method, **arguments):
    status, answer = await rpc.post({"method": method, "arguments": arguments, "tag": 7})
    assert (status, answer["tag"]) == (200, 7)
    return answer["result"], answer["arguments"]


async def the_handshake(address):
    url = f"http://{address}/transmission/rpc"
    async with aiohttp.ClientSession() as http:
        for ask in (http.get, http.post):
            async with ask(url) as response:
                assert response.status == 409
                assert response.headers["X-Transmission-Rpc-Version"] == "6.0.0"
                session_id = response.headers["X-Transmission-Session-Id"]
        async with http.get(url, headers={"X-Transmission-Session-Id": session_id}) as response:
            assert (response.status, response.headers["Allow"]) == (405, "POST")


async def answers_in_both_forms(rpc, tmp_path):
    result, session = await classic(rpc, "session-get")
    assert result == "success"
    assert session["version"].startswith("4.0.")
    assert session["rpc-version"] == 18
    assert session["download-dir"] == str(tmp_path / "downloads")
    assert session["seedRatioLimited"] is False
    modern = await rpc.call("session_get")
    assert len(modern) == len(session)
    assert modern["speed_limit_down"] == session["speed-limit-down"] == 100
    assert await classic(rpc, "session-set", **{"speed-limit-down": 55, "speed-limit-down-enabled": True}) == (
        "success", {},
    )  # fmt: skip
    assert (await rpc.call("session_get", {"fields": ["speed_limit_down"]})) == {"speed_limit_down": 55}
    _, stats = await classic(rpc, "session-stats")
    assert stats["cumulative-stats"]["downloadedBytes"] == stats["torrentCount"] == 0
    _, space = await classic(rpc, "free-space", path=str(tmp_path))
    assert space["size-bytes"] > 0
    assert space["total_size"] >= space["size-bytes"]
    assert (await classic(rpc, "port-test"))[1]["port-is-open"] is False

    data = make_torrent(tmp_path / "downloads", "a", {"x.bin": 40_000})
    link = {"metainfo": base64.b64encode(data).decode(), "paused": True}
    result, added = await classic(rpc, "torrent-add", **link)
    assert added["torrent-added"]["name"] == "a"
    assert (await classic(rpc, "torrent-add", **link))[1] == {"torrent-duplicate": added["torrent-added"]}
    assert (await rpc.call("torrent_add", link))["torrent_duplicate"]["hash_string"] == (
        added["torrent-added"]["hashString"]
    )
    await rpc.call("torrent_set", {"ids": added["torrent-added"]["hashString"], "queue_position": 10**20})
    old = (await classic(rpc, "torrent-get", fields=[camel(name) for name in FIELDS]))[1]["torrents"][0]
    new = (await rpc.call("torrent_get", {"fields": list(FIELDS)}))["torrents"][0]
    assert set(new) == set(FIELDS)
    assert set(old) == {camel(name) for name in FIELDS}
    assert old["fileStats"][0]["bytesCompleted"] == new["file_stats"][0]["bytes_completed"]
    assert (old["files"][0]["bytesCompleted"], new["files"][0]["end_piece"]) == (0, 3)
    await rpc.call("torrent_remove", {"ids": [new["id"]]})


async def ids_in_every_form(rpc):
    for number in (1, 2, 3):
        await rpc.call("torrent_add", {"filename": MAGNET.format(number, number), "paused": True})
    torrents = (await rpc.call("torrent_get", {"fields": ["id", "hash_string"]}))["torrents"]
    first, second, third = torrents
    for ids, chosen in [
        (first["id"], [first]),
        ([first["id"], third["id"]], [first, third]),
        (second["hash_string"].upper(), [second]),
        ([second["hash_string"], first["id"], first["id"], 999, "0" * 40], [second, first]),
        ([], []),
        (None, torrents),
        ("recently-active", torrents),
        ("recently_active", torrents),
    ]:
        asked = {"fields": ["id", "hash_string"], "ids": ids}
        assert (await rpc.call("torrent_get", asked))["torrents"] == chosen, ids
    assert await classic(rpc, "torrent-get", fields=["id"], ids=[True]) == ("`ids` must be numbers and infohashes", {})
    await rpc.call("torrent_remove", {"ids": []})  # which is nothing; without `ids`, it is all
    assert len((await rpc.call("torrent_get", {"fields": ["id"]}))["torrents"]) == 3


async def a_table_and_what_is_recent(rpc):
    _, table = await classic(rpc, "torrent-get", fields=["id", "name", "nonsense", "queuePosition"], format="table")
    header, *rows = table["torrents"]
    assert header == ["id", "name", "queuePosition"]
    assert [row[1:] for row in rows] == [[f"number-{n}", n - 1] for n in (1, 2, 3)]
    gone = rows[0][0]
    await rpc.call("torrent_remove", {"ids": gone})
    _, recent = await classic(rpc, "torrent-get", fields=["id"], ids="recently-active")
    assert gone in recent["removed"]
    assert gone not in [torrent["id"] for torrent in recent["torrents"]]


async def what_json_rpc_asks_for(rpc):
    assert (await rpc.post({"jsonrpc": "2.0", "method": "session_get"}))[0] == 204  # nobody waits for an answer
    _, answer = await rpc.post({"jsonrpc": "2.0", "method": "no_such", "id": "x"})
    assert (answer["id"], answer["error"]["code"]) == ("x", -32601)
    _, answer = await rpc.post({"jsonrpc": "2.0", "method": "torrent_get", "params": {"fields": 5}, "id": 2})
    assert answer["error"]["code"] == -32602
    _, answer = await rpc.post({"jsonrpc": "1.0", "method": "session_get", "id": 2})
    assert answer["error"]["code"] == -32600
    batch = [{"jsonrpc": "2.0", "method": "session_stats", "id": number} for number in range(3)]
    _, answers = await rpc.post([*batch, {"jsonrpc": "2.0", "method": "session_stats"}, 5])
    assert [answer["id"] for answer in answers] == [0, 1, 2, None]


async def refusal(rpc, method, **params):
    _, answer = await rpc.post({"jsonrpc": "2.0", "method": method, "params": params, "id": 1})
    return answer["error"]["message"]


async def hop_counts_only_rise_by_labels(rpc):
    link = MAGNET.format(77, 77)
    added = (await rpc.call("torrent_add", {"filename": link, "paused": True, "hops": 1}))["torrent_added"]["id"]

    async def labels():
        (torrent,) = (await rpc.call("torrent_get", {"fields": ["labels"], "ids": added}))["torrents"]
        return torrent["labels"]

    for given, then in [
        (["a"], ["a", "hops:1"]),
        (["a", "hops:0"], ["a", "hops:1"]),  # an old label of another client, or of another torrent
        (["a", "hops:1", "hops:3"], ["a", "hops:3"]),
        ([], ["hops:3"]),
    ]:
        await rpc.call("torrent_set", {"ids": added, "labels": given})
        assert await labels() == then
    assert "confirm_fewer_hops" in await refusal(rpc, "torrent_set", ids=[added], hops=0)
    assert await labels() == ["hops:3"]
    confirmed = {"hops": 0, "confirm_fewer_hops": True, "tracker_list": "udp://192.0.2.1:1/announce"}
    await rpc.call("torrent_set", {"ids": [added], **confirmed})
    assert await labels() == ["hops:0"]
    assert "with 0 hops" in await refusal(rpc, "torrent_add", filename=link, labels=["hops:2"])
    assert "torrent_duplicate" in await rpc.call("torrent_add", {"filename": link, "hops": 0})
    assert await labels() == ["hops:0"]
    (torrent,) = (await rpc.call("torrent_get", {"fields": ["tracker_list", "status"], "ids": added}))["torrents"]
    assert torrent == {"tracker_list": "udp://192.0.2.1:1/announce", "status": 0}
    await rpc.call("torrent_remove", {"ids": added})


async def what_would_break_it_is_refused(rpc):
    for wrong in ({"seed_ratio_mode": 7}, {"peer_limit": 10**12}, {"download_limit": 3_000_000}, {"upload_limit": -1}):
        assert "invalid argument" in await refusal(rpc, "torrent_set", **wrong)
    for wrong in ({"speed_limit_down": 2**40}, {"download_queue_size": -1}, {"alt_speed_time_day": 1000}):
        assert "invalid argument" in await refusal(rpc, "session_set", **wrong)
    link = MAGNET.format(78, 78)
    added = await rpc.call("torrent_add", {"filename": link, "peer_limit": 7, "paused": 1})
    number = added["torrent_added"]["id"]
    (torrent,) = (await rpc.call("torrent_get", {"fields": ["peer_limit", "status"], "ids": number}))["torrents"]
    assert torrent == {"peer_limit": 7, "status": 0}
    await rpc.call("torrent_verify", {"ids": number})  # there is nothing to verify yet
    (torrent,) = (await rpc.call("torrent_get", {"fields": ["status"], "ids": number}))["torrents"]
    assert torrent == {"status": 0}
    await rpc.call("torrent_remove", {"ids": number})


async def trackers_are_edited(rpc):
    link = MAGNET.format(79, 79) + "&tr=udp://192.0.2.1:1/a&tr=udp://192.0.2.1:2/b"
    number = (await rpc.call("torrent_add", {"filename": link, "paused": True}))["torrent_added"]["id"]
    assert "URL" in await refusal(rpc, "torrent_set", ids=number, tracker_list="http://[x/announce")
    await classic(rpc, "torrent-set", ids=number, trackerAdd=["http://192.0.2.1/c"], trackerRemove=[0])
    (torrent,) = (await rpc.call("torrent_get", {"fields": ["trackers", "tracker_stats"], "ids": number}))["torrents"]
    assert [entry["announce"] for entry in torrent["trackers"]] == ["udp://192.0.2.1:2/b", "http://192.0.2.1/c"]
    assert len(torrent["tracker_stats"]) == 2
    await rpc.call("torrent_remove", {"ids": number})
    plain = MAGNET.format(80, 80) + "&tr=wss://192.0.2.1/w"  # which nobody may add, but a torrent may have
    added = await rpc.call("torrent_add", {"filename": plain, "paused": True, "hops": 0})
    number = added["torrent_added"]["id"]
    await classic(rpc, "torrent-set", ids=number, trackerAdd=["http://192.0.2.1/c"])
    (torrent,) = (await rpc.call("torrent_get", {"fields": ["trackers"], "ids": number}))["torrents"]
    assert [entry["announce"] for entry in torrent["trackers"]] == ["wss://192.0.2.1/w", "http://192.0.2.1/c"]
    assert "most" in await refusal(rpc, "torrent_set", ids=number, tracker_list="\n".join(MANY_TRACKERS))
    await rpc.call("torrent_remove", {"ids": number})


async def strangers_are_refused(address):
    async with aiohttp.ClientSession() as http:
        for headers, status in (
            ({"Host": "evil.example"}, 421),
            ({"Origin": "http://evil.example"}, 403),
            ({"Origin": "null"}, 403),
            ({"Origin": "http://["}, 403),
            ({"Origin": f"http://{address}"}, 409),
            ({"Host": f"localhost:{address.port}"}, 409),
        ):
            async with http.post(f"http://{address}/transmission/rpc", headers=headers) as response:
                assert response.status == status, headers


async def metrics_name_nobody(rpc, address):
    await rpc.call("torrent_add", {"filename": MAGNET.format(80, "secret"), "paused": True, "hops": 2})
    async with aiohttp.ClientSession() as http, http.get(f"http://{address}/metrics") as response:
        text = await response.text()
    values = metrics_in(text)
    assert values["tunnel_pool_torrents", ("activity", "stopped"), ("hops", "2")] == 1
    assert values["tunnel_pool_child_up", ("slot", "main"), ("state", "main")] == 1
    assert "secret" not in text
    await rpc.call("torrent_remove", {"ids": [f"{80:040x}"]})


async def nonsense_is_answered(rpc):
    """Every nonsensical request is answered, and never with an unexpected error."""
    random.seed(1)
    odd = [None, True, -1, 2**80, 1e300, "", "x" * 1000, "../../etc/passwd", "\0", [], [[]], {}, {"a": []}, [-1], ["0"]]
    keys = ["ids", "fields", "labels", "location", "path", "name", "filename", "metainfo", "download-dir", "hops"]
    keys += ["files-wanted", "priority-high", "downloadLimit", "seedRatioMode", "queuePosition", "trackerList", "move"]
    for method in METHODS:
        for _ in range(12):
            arguments = {key: random.choice(odd) for key in random.sample(keys, 4)}
            _, answer = await rpc.post({"method": method, "arguments": arguments})
            assert "unexpected" not in answer["result"], (method, arguments)
    for body in (5, [], {}, {"method": 5}, {"method": "session-get", "arguments": []}, "x"):
        _, answer = await rpc.post(body)
        assert "unexpected" not in json.dumps(answer)
    deep = "[" * 100_000 + "]" * 100_000
    url, headers = rpc.where
    async with aiohttp.ClientSession() as http:
        for data in (deep, '{"method":' + deep, "{", b"\xff\xfe", b""):
            async with http.post(url, data=data, headers=headers) as response:
                assert (await response.json())["result"] == "no JSON"
