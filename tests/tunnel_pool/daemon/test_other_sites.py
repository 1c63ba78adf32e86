"""Tests that pages of other sites reach the page at / and nothing else, and learn nothing."""

import asyncio
import json

import aiohttp
import pytest

from tests.tunnel_pool.daemon.browser import browser, needs_chromium
from tests.tunnel_pool.daemon.rpc import Rpc
from tests.tunnel_pool.daemon.running import daemon, daemon_here, make_torrent
from tunnel_pool.daemon.server.web import PAGES, WebOptions
from tunnel_pool.overlay.ground.config import HostPort
from tunnel_pool.system.http_server import serving_app

LINK = {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
FILLED = {"infohash": "ab" * 20, "index": "0", "name": "index.html", "call": "torrents/export", "number": "1"}


def paths_of(app):
    """Return a path for each route of the application, with something in each place that a route leaves open."""
    found = set()
    for resource in app.router.resources():
        path = resource.canonical
        for name in [part.split("}")[0] for part in path.split("{")[1:]]:
            path = path.replace("{" + name + "}", FILLED.get(name, "x"))
        found.add(path)
    return sorted(found)


async def test_each_route_refuses_other_sites_and_each_answer_keeps_its_opener_out(tmp_path, monkeypatch):
    apps = []
    monkeypatch.setattr(
        "tunnel_pool.daemon.daemon.serving_app", lambda app, *rest: apps.append(app) or serving_app(app, *rest)
    )
    async with (
        daemon_here(tmp_path, web=WebOptions(HostPort("127.0.0.1", 0))) as here,
        aiohttp.ClientSession() as http,
    ):
        paths = paths_of(apps[0])
        assert len(paths) > 30
        for path in paths:
            for site in ("cross-site", "same-site"):
                async with http.get(f"http://{here.address}{path}", headers={**LINK, "Sec-Fetch-Site": site}) as answer:
                    assert (answer.status == 403) is (path not in PAGES), path
        for method, path, headers in (
            ("GET", "/", {}),
            ("GET", "/transmission/rpc", {}),  # 409, with the session id
            ("POST", "/transmission/rpc", {"Origin": "http://evil.example"}),
            (
                "OPTIONS",
                "/transmission/rpc",
                {"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"},
            ),
            ("GET", "/nothing", {}),
            ("GET", "/stream/" + "ab" * 20 + "/0", {}),
            ("GET", "/api/status", {"Host": "evil.example"}),
            ("GET", "/api/status", {**LINK, "Sec-Fetch-Site": "none"}),
            ("PUT", "/api/status", {}),
        ):
            async with http.request(method, f"http://{here.address}{path}", headers=headers) as answer:
                assert answer.headers["Cross-Origin-Opener-Policy"] == "same-origin", path
                assert answer.headers["Cross-Origin-Resource-Policy"] == "same-origin", path
                assert not [name for name in answer.headers if name.lower().startswith("access-control")]


# A page of another site, which tries with one click what a page can to find out whether a torrent is there. What it
# sees of each address goes into `window.seen`.
SPY = """<!doctype html><title>spy</title><button id="go">go</button><script>
window.seen = null;
const wait = (ms) => new Promise((done) => setTimeout(done, ms));
async function look(url) {
  const seen = {};
  const opened = window.open(url, "_blank");
  await wait(1500);
  try { seen.closed = opened === null || opened.closed; } catch (error) { seen.closed = error.name; }
  try { seen.frames = opened.length; } catch (error) { seen.frames = error.name; }
  try { seen.place = String(opened.location.href); } catch (error) { seen.place = error.name; }
  try { opened.close(); } catch (error) { }
  for (const kind of ["img", "script", "iframe", "link", "video", "object"]) {
    const element = document.createElement(kind);
    const done = new Promise((settle) => {
      element.onload = () => settle("load"); element.onerror = () => settle("error");
      element.onloadeddata = () => settle("data");
    });
    if (kind === "link") { element.rel = "stylesheet"; element.href = url; }
    else if (kind === "object") element.data = url; else element.src = url;
    document.body.append(element);
    // A browser tells of all of these in the end, but of a video and an object of no use.
    const patience_ms = kind === "video" || kind === "object" ? 1000 : 20000;
    seen[kind] = await Promise.race([done, wait(patience_ms).then(() => "nothing")]);
  }
  try { seen.fetched = (await fetch(url, {mode: "no-cors", credentials: "include"})).type; }
  catch (error) { seen.fetched = error.name; }
  return seen;
}
document.getElementById("go").onclick = async () => {
  const all = {};
  for (const [name, url] of Object.entries(%s)) all[name] = await look(url);
  window.seen = all;
};
</script>"""


@pytest.mark.slow
@pytest.mark.timeout(300)
@needs_chromium
async def test_a_page_that_is_clicked_does_not_learn_which_torrents_there_are(tmp_path):
    async with daemon(tmp_path, "--workers=0", "--hops=1") as (running, address), Rpc(address) as rpc:
        torrent = make_torrent(tmp_path, "files", {"a.bin": 100_000})
        (tmp_path / "one.torrent").write_bytes(torrent)
        async with aiohttp.ClientSession() as http:
            form = aiohttp.FormData()
            form.add_field("torrents", torrent, filename="one.torrent")
            form.add_field("stopped", "true")
            async with http.post(f"http://{address}/api/v2/torrents/add", data=form) as answer:
                assert answer.status == 200
        ((there,),) = [(await rpc.call("torrent_get", {"fields": ["hash_string"]}))["torrents"]]
        pairs = {}
        for name, infohash in (("there", there["hash_string"]), ("absent", "cd" * 20)):
            pairs[f"export {name}"] = f"http://{address}/api/v2/torrents/export?hash={infohash}"
            pairs[f"stream {name}"] = f"http://{address}/stream/{infohash}/0"
            pairs[f"page {name}"] = f"http://{address}/api/torrents/{infohash}"
        server = await asyncio.start_server(lambda *streams: serve(SPY % json.dumps(pairs), *streams), "127.0.0.1", 0)
        spy = "http://{}:{}/".format(*server.sockets[0].getsockname())
        seen = await asyncio.to_thread(spied, tmp_path, spy, str(address))
        server.close()
    for what in ("export", "stream", "page"):
        assert seen[f"{what} there"] == seen[f"{what} absent"], what


async def serve(page, reader, writer):
    await reader.readuntil(b"\r\n\r\n")
    body = page.encode()
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    await writer.drain()
    writer.close()


def spied(tmp_path, spy, address):
    """Return what the page of another site has seen, once it was clicked; a link of that page opens ours."""
    with browser(tmp_path / "profile") as page:
        page.driver.get(spy)
        page.click("#go")
        page.until(lambda: page.script("return window.seen"), "what it has seen", timeout_s=120)
        seen = page.script("return window.seen")
        page.script(f"location.href = 'http://{address}/'")
        page.until(lambda: page.all("#torrents"), "our page, by a link")
        return seen
