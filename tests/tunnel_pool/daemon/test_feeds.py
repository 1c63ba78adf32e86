"""Tests feeds of a running daemon, fetched from its owner's own network and by HTTPS through real tunnels."""

import asyncio
import contextlib
import sqlite3
import zlib

import aiohttp
import pytest
from aiohttp import web
from qbittorrentapi import Client, Conflict409Error, InvalidRequest400Error

from tests.tunnel_pool.daemon.running import daemon, daemon_here, make_torrent
from tests.worlds.commands import MODULE, ROOT
from tests.worlds.feed_server import feed_of, feed_server
from tests.worlds.https import HTTPS_PORT, authority, needs_https
from tests.worlds.network import until, unused_host
from tunnel_pool.bench.harness.daemon import magnet_of, network_of
from tunnel_pool.daemon.changes.edits import Remove
from tunnel_pool.daemon.errors import RequestError
from tunnel_pool.daemon.feeds.book import ROOM_FOR_NUMBER
from tunnel_pool.daemon.feeds.model import MAX_NAME, Article, Rule
from tunnel_pool.daemon.outside import client
from tunnel_pool.daemon.storage.store import STORE_FILE
from tunnel_pool.packet_engine import is_built
from tunnel_pool.private_swarm.swarm import LocalSwarm, same_bytes

MAGNET = "magnet:?xt=urn:btih:{:040x}&dn=x"


@contextlib.asynccontextmanager
async def own_feed(tmp_path, *items, **options):
    """Run a daemon with a feed in its own network, and yield both with the feed that the daemon knows."""
    async with feed_server(unused_host()) as server, daemon_here(tmp_path, **options) as here:
        server.pages["/rss"] = feed_of(*items)
        feed = await here.feeds.add("http://{}:{}/rss".format(*server.address))
        yield here, server, feed


async def read(here, feed):
    """Wait until a feed was read, or could not be, once more."""
    await until(lambda: feed.asked_s and not here.feeds.is_being_read(feed), what="the reading of a feed")


async def read_again(here, feed):
    feed.asked_s = 0.0
    here.feeds.refresh(feed)
    await read(here, feed)


def names(here):
    return sorted(torrent.record.name for torrent in here.library.torrents.values())


async def test_a_rule_adds_what_it_wants_of_a_feed_once(tmp_path):
    torrent = make_torrent(tmp_path, "show.s01e01", {"a.mkv": 100_000})
    items = ("Show S01E01", "/get/1.torrent"), ("Show S01E02", MAGNET.format(2)), ("Other", MAGNET.format(3))
    async with own_feed(tmp_path, *items) as (here, server, feed):
        server.pages["/get/1.torrent"] = "/moved"
        server.pages["/moved"] = torrent
        await read(here, feed)
        assert (feed.title, feed.problem, names(here)) == ("a tracker", "", [])
        await here.feeds.put_rule(Rule(name="shows", must="show s0?e*", labels=["tv"], hops=2, stopped=True))
        await until(lambda: len(names(here)) == 2, what="both episodes")
        assert {(t.record.hops, t.record.stopped, *t.record.labels) for t in here.library.torrents.values()} == {
            (2, True, "tv")
        }
        await here.changes.apply(list(here.library.torrents.values()), Remove())
        await read_again(here, feed)
        assert names(here) == [], "what was removed does not come back"
        server.pages["/rss"] = feed_of(*((f"{title} again", link) for title, link in items))
        await read_again(here, feed)
        assert names(here) == [], "under another name either"
        server.pages["/rss"] = feed_of(*items, ("Show S02E01", MAGNET.format(4)))
        await read_again(here, feed)
        assert len(names(here)) == 1


async def test_feeds_rules_and_what_was_taken_survive_a_restart(tmp_path):
    items = [("One", MAGNET.format(1)), ("Two", MAGNET.format(2))]
    async with feed_server(unused_host()) as server:
        server.pages["/rss"] = feed_of(*items)
        url = "http://{}:{}/rss".format(*server.address)
        async with daemon_here(tmp_path) as here:
            feed = await here.feeds.add(url, "mine", interval_min=5)
            await here.feeds.put_rule(Rule(name="ones", must="one"))
            await until(lambda: names(here), what="the torrent")
            await read(here, feed)
        async with daemon_here(tmp_path) as here:
            (feed,), (rule,) = here.feeds.feeds, here.feeds.rules
            assert (feed.name, feed.url, feed.interval_min, rule.must) == ("mine", url, 5, "one")
            assert [(each.title, each.is_read) for each in here.feeds.articles(feed)] == [("One", True), ("Two", False)]
            assert rule.matched_s > 0
            assert len(server.asked) == 1, "it is not due yet"


async def test_a_feed_that_its_owner_has_not_named_is_called_by_its_title(tmp_path):
    """A title is whatever the feed says; two feeds have two names."""
    called = {
        "/a": ("a tracker", "a tracker"), "/b": ("a tracker", "a tracker 2"), "/c": ("a\n  long\\one", "a long/one"),
        "/d": ("7", "127.0.0.1"), "/e": ("x" * 5000, "x" * (MAX_NAME - ROOM_FOR_NUMBER)), "/f": ("", "127.0.0.1 2"),
    }  # fmt: skip
    async with feed_server("127.0.0.1") as server, daemon_here(tmp_path) as here:
        feeds = []
        for path, (title, _) in called.items():
            server.pages[path] = feed_of(("One", MAGNET.format(1)), title=title)
            feeds.append(await here.feeds.add(f"http://127.0.0.1:{server.address[1]}{path}"))
            await read(here, feeds[-1])
        assert [feed.name for feed in feeds] == [name for _, name in called.values()]
        await here.feeds.change(feeds[0], name="mine")
        server.pages["/a"] = server.pages["/b"] = feed_of(title="another")
        for feed in feeds[:2]:
            await read_again(here, feed)
        assert [feed.name for feed in feeds[:2]] == ["mine", "a tracker 2"]


async def test_each_episode_is_added_once_and_the_first_rule_wins(tmp_path):
    items = [(f"Show 1x0{number} {kind}", MAGNET.format(9 * number + at)) for number in (1, 2)
             for at, kind in enumerate(("720p", "1080p", "1080p PROPER"))]  # fmt: skip
    async with own_feed(tmp_path, *items) as (here, _, feed):
        await here.feeds.put_rule(Rule(name="second", must="show", priority=2, labels=["second"], stopped=True))
        await here.feeds.put_rule(
            Rule(name="first", must="show", must_not="720p", once=True, priority=1, labels=["first"], stopped=True)
        )
        await read(here, feed)
        await until(lambda: all(article.is_read for article in here.feeds.articles(feed)), what="all articles")
        labels = sorted(torrent.record.labels[0] for torrent in here.library.torrents.values())
        assert labels == ["first"] * 4 + ["second"] * 2
        assert here.feeds.rules[1].seen == ["1x1", "1x1-PROPER", "1x2", "1x2-PROPER"]


async def endless(request):
    response = web.StreamResponse()
    await response.prepare(request)
    with contextlib.suppress(ConnectionError):
        while True:
            await response.write(b"<" + b" " * 65536)
    return response


async def bomb(request):
    packed = zlib.compress(b" " * (100 << 20), 9)
    return web.Response(body=packed, headers={"Content-Encoding": "deflate"})


ENTITIES = (
    b'<!DOCTYPE r [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;">]><rss><channel><title>&b;</title></channel></rss>'
)


# Each of its elements gets an attribute of 100 kB, which it does not have in the document.
ATTRIBUTES = b"<!DOCTYPE rss [<!ATTLIST b a CDATA '" + b"x" * 100_000 + b"'>]><rss><channel>" + b"<b/>" * 10_000
HOSTILE = [
    (endless, "larger than 8 MiB"),
    (bomb, "larger than 8 MiB"),
    (ENTITIES, "has a document type"),
    (ATTRIBUTES, "has a document type"),
    (b"<a>" * 200_000, "more elements, attributes or levels"),
    (b"<html><body>log in</body></html>", "neither RSS 2.0 nor Atom"),
    (b"<!DOCTYPE html><br>", "a web page"),
    (b"\x00\xff", "no XML"),
    (b"", "no XML"),
    (b"<error code='100' description='Invalid API Key'/>", "Invalid API Key"),
    ("/rss", "redirects more than 5 times"),
    ("http://tracker.example/rss", "by http:// an exit"),
    ("http://127.0.0.1:9/other", "private network"),
    ("https://tracker.example:8443/", "port 443"),
    ("file:///etc/passwd", "not a URL"),
    ("https://jackett/rss", "can't look up this name"),
    (None, "answers 404"),
]


async def test_a_hostile_feed_is_refused_in_words_and_what_was_known_stays(tmp_path):
    async with own_feed(tmp_path, ("One", MAGNET.format(1))) as (here, server, feed):
        await read(here, feed)
        for page, why in HOSTILE:
            server.pages["/rss"] = page
            await read_again(here, feed)
            assert why in feed.problem, (page, why)
            assert [article.title for article in here.feeds.articles(feed)] == ["One"]
        server.pages["/rss"] = feed_of(("Two", MAGNET.format(2)))
        await read_again(here, feed)
        assert (feed.problem, feed.failures) == ("", 0)


def asked_for(server, path):
    return sum(asked == path for asked, _ in server.asked)


async def test_a_torrent_that_can_not_be_had_is_given_up_in_the_end_and_the_others_come(tmp_path):
    items = [("Gone", "/gone"), ("Not a torrent", "/page"), ("Elsewhere", "http://tracker.example/x.torrent"),
             ("Fine", MAGNET.format(1)), ("Nonsense", "magnet:?xt=urn:nothing")]  # fmt: skip
    async with own_feed(tmp_path, *items) as (here, server, feed):
        server.pages["/page"] = b"<html>log in</html>"
        await here.feeds.put_rule(Rule(name="all"))
        await read(here, feed)
        await until(lambda: names(here) == ["x"], what="the one that is fine")
        gone = next(article for article in here.feeds.articles(feed) if article.title == "Gone")
        for times in (2, 3, 4):
            await until(lambda times=times: gone.again_s and asked_for(server, "/gone") == times - 1)
            await until(lambda: not here.feeds.is_being_read(feed))
            for article in here.feeds.articles(feed):
                article.again_s = 0.0
            await here.feeds.put_rule(Rule(name="all"))
        await until(lambda: gone.is_read, what="the end of trying")
        await until(lambda: not here.feeds.is_being_read(feed))
        problems = {article.title: article.problem for article in here.feeds.articles(feed)}
        assert "answers 404" in problems["Gone"]
        assert "no torrent file" in problems["Not a torrent"]
        assert "by http:// an exit" in problems["Elsewhere"]
        assert "not a magnet link" in problems["Nonsense"]
        assert problems["Fine"] == ""
        assert gone.problem.startswith("given up: ")
        assert asked_for(server, "/gone") == 4
        server.pages["/gone"] = make_torrent(tmp_path, "back", {"a": 10})
        await read_again(here, feed)  # as its owner asks for
        (back,) = (article for article in here.feeds.articles(feed) if article.title == "Gone")
        assert (back.problem, back.added_by) == ("", "all")


async def test_a_pattern_that_takes_too_long_ends_and_the_other_rules_go_on(tmp_path):
    async with own_feed(tmp_path, ("a" * 400 + "!", MAGNET.format(1)), ("b", MAGNET.format(2))) as (here, _, feed):
        await here.feeds.put_rule(Rule(name="slow", must="(a|a|aa)+$", is_regex=True, priority=-1))
        await here.feeds.put_rule(Rule(name="all"))
        await read(here, feed)
        await until(lambda: len(names(here)) == 2, what="both torrents")


async def test_a_feed_that_is_removed_while_it_is_read_is_gone(tmp_path):
    async with own_feed(tmp_path) as (here, server, feed):
        begun = asyncio.Event()

        async def hanging(request):
            begun.set()
            await asyncio.sleep(60)

        await read(here, feed)
        server.pages["/rss"] = hanging
        here.feeds.refresh(feed)
        await begun.wait()
        await here.feeds.remove(feed)
        await until(lambda: not here.feeds.is_being_read(feed))
        assert here.feeds.feeds == []


async def test_a_feed_that_changes_and_goes_at_one_time_stops_no_others(tmp_path):
    async with own_feed(tmp_path, ("One", MAGNET.format(1))) as (here, server, feed):
        await read(here, feed)
        url = feed.url.replace("/rss", "/other")
        server.pages["/other"] = feed_of(("Two", MAGNET.format(2)))
        gone = asyncio.create_task(here.feeds.remove(feed))
        await asyncio.sleep(0)  # until it has begun
        with pytest.raises(RequestError, match="gone"):
            await here.feeds.change(feed, name="another")
        await gone
        other = await here.feeds.add(url)
        await read(here, other)
        assert [article.title for article in here.feeds.articles(other)] == ["Two"]


async def test_what_a_strangers_feed_named_is_judged_as_a_strangers_wherever_the_feed_is_now(tmp_path):
    async with own_feed(tmp_path) as (here, server, feed):
        await read(here, feed)
        own = "http://{}:{}".format(*server.address)
        article = Article(uid="1", title="evil", torrent_url=f"{own}/delete", source="https://evil.example/rss")
        here.feeds.articles(feed).append(article)
        await here.feeds.put_rule(Rule(name="all"))
        await until(lambda: "private network" in article.problem)
        assert "/delete" not in [path for path, _ in server.asked]


async def test_three_feeds_with_one_episode_add_it_once_whoever_edits_the_rule_meanwhile(tmp_path):
    async with feed_server(unused_host()) as server, daemon_here(tmp_path) as here:
        for number in range(3):
            server.pages[f"/{number}"] = feed_of((f"Show S01E01 {number}", MAGNET.format(number + 1)))
        urls = ["http://{}:{}/{}".format(*server.address, number) for number in range(3)]
        feeds = [await here.feeds.add(url, url) for url in urls]
        await until(lambda: all(here.feeds.articles(feed) for feed in feeds))
        await here.feeds.put_rule(Rule(name="shows", once=True))
        await here.feeds.put_rule(Rule(name="shows", once=True, labels=["tv"]))
        await until(lambda: here.feeds.rules[0].seen == ["1x1"])
        await here.feeds.put_rule(Rule(name="shows", once=True))
        await here.feeds.rename_rule("shows", "series")
        for feed in feeds:
            await read_again(here, feed)
        assert (len(names(here)), here.feeds.rules[0].seen) == (1, ["1x1"])


async def test_what_was_taken_is_kept_though_the_reading_never_ended(tmp_path):
    async with feed_server(unused_host()) as server:

        async def hanging(request):
            await asyncio.sleep(60)

        server.pages["/hangs"] = hanging
        server.pages["/rss"] = feed_of(("Show S01E01 720p", MAGNET.format(1)), ("Show S01E02", "/hangs"))
        async with daemon_here(tmp_path) as here:
            feed = await here.feeds.add("http://{}:{}/rss".format(*server.address))
            await here.feeds.put_rule(Rule(name="shows", once=True))
            await until(lambda: names(here) and "/hangs" in [path for path, _ in server.asked])
        async with daemon_here(tmp_path) as here:
            (feed,), (rule,) = here.feeds.feeds, here.feeds.rules
            assert rule.seen == ["1x1"]
            assert [article.is_read for article in here.feeds.articles(feed)] == [True, False]


async def test_one_damaged_row_costs_one_feed_or_rule(tmp_path):
    async with own_feed(tmp_path, ("One", MAGNET.format(1))) as (here, server, feed):
        await read(here, feed)
        await here.feeds.put_rule(Rule(name="good"))
        await here.feeds.put_rule(Rule(name="bad"))
        await until(lambda: names(here))
    with contextlib.closing(sqlite3.connect(tmp_path / STORE_FILE)) as connection, connection:
        ((kept,),) = connection.execute("SELECT value FROM settings WHERE name = 'feeds'").fetchall()
        damaged = kept.replace(b'"name":"bad","enabled":true', b'"name":"bad","enabled":7')
        assert damaged != kept
        connection.execute("UPDATE settings SET value = ? WHERE name = 'feeds'", (damaged,))
    async with daemon_here(tmp_path) as here:
        assert [rule.name for rule in here.feeds.rules] == ["good"]
        assert [feed.url for feed in here.feeds.feeds] == [feed.url]
    with contextlib.closing(sqlite3.connect(tmp_path / STORE_FILE)) as connection:
        assert connection.execute("SELECT value FROM settings WHERE name = 'feeds:damaged'").fetchall() == [(damaged,)]


async def test_without_a_way_out_a_torrent_is_not_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(client, "CIRCUIT_WITHIN_S", 0.2)
    async with own_feed(tmp_path, ("One", "https://tracker.example/1.torrent")) as (here, _, feed):
        await here.feeds.put_rule(Rule(name="all"))
        await read(here, feed)
        for _ in range(4):
            await read_again(here, feed)
        (article,) = here.feeds.articles(feed)
        assert (article.is_read, article.tries) == (False, 0)
        assert "no circuit carried HTTPS" in article.problem


# Over HTTP


async def test_our_own_api_has_feeds_and_rules(tmp_path):
    async with own_feed(tmp_path, ("One", MAGNET.format(1))) as (here, server, feed), aiohttp.ClientSession() as http:

        async def ask(method, path, body=None, status=200):
            async with http.request(method, f"http://{here.address}/api/{path}", json=body) as response:
                assert response.status == status, await response.text()
                return await response.json() if status != 204 else None

        await read(here, feed)
        (shown,) = await ask("GET", "feeds")
        assert (shown["name"], shown["articles"], shown["unread"]) == ("a tracker", 1, 1)
        refused = await ask("POST", "feeds", {"url": "http://tracker.example/rss"}, 400)
        assert "only https://" in refused["error"]
        added = await ask("POST", "feeds", {"url": "https://tracker.example/rss", "hops": 3, "interval_min": 60}, 201)
        assert (added["name"], added["hops"], added["interval_min"]) == ("tracker.example", 3, 60)
        await ask("PATCH", f"feeds/{added['number']}", {"name": "theirs"}, 204)
        await ask("PUT", "rules/my%20rule", {"must": "one", "feeds": [shown["number"]], "stopped": True}, 204)
        await until(lambda: names(here) == ["x"])
        (rule,) = await ask("GET", "rules")
        assert (rule["name"], rule["feeds"], rule["must"]) == ("my rule", [shown["number"]], "one")
        for wrong in (
            {"folder": "relative"},
            {"labels": ["hops:9"]},
            {"labels": ["hops:1"], "hops": 2},
            {"feeds": [99]},
        ):
            await ask("PUT", "rules/wrong", wrong, 400)
        assert (await ask("PUT", "rules/bad", {"must": "(", "is_regex": True}, 400))["error"].startswith("the pattern")
        (article,) = await ask("GET", f"feeds/{shown['number']}/articles")
        assert (article["title"], article["is_read"], article["problem"]) == ("One", True, "")
        await ask("POST", f"feeds/{shown['number']}/refresh", status=204)
        await ask("DELETE", f"feeds/{added['number']}", status=204)
        await ask("DELETE", f"feeds/{added['number']}", status=404)
        await ask("DELETE", "rules/my%20rule", status=204)
        assert await ask("GET", "rules") == []


async def test_qbittorrents_clients_drive_feeds_and_rules(tmp_path):
    async with own_feed(tmp_path, ("Show 1x01", MAGNET.format(1))) as (here, server, feed):
        await read(here, feed)
        await asyncio.to_thread(drive, f"http://{here.address}", feed.url)
        await until(lambda: names(here) == ["x"])
        (torrent,) = here.library.torrents.values()
        assert (torrent.record.hops, torrent.record.labels) == (2, ["tv", "mine"])


def drive(address, url):
    with Client(host=address, FORCE_SCHEME_FROM_HOST=True) as client:
        assert client.app_preferences().rss_processing_enabled
        (name,) = client.rss_items()
        client.rss_add_feed(url="https://tracker.example/rss", item_path="theirs")
        with pytest.raises(Conflict409Error):
            client.rss_add_folder("folder")
        with pytest.raises(InvalidRequest400Error, match="only https"):
            client.rss_add_feed(url="http://tracker.example/rss", item_path="plain")
        client.rss_move_item("theirs", "others")
        client.rss_set_feed_url(url="https://tracker.example/rss2", item_path="others")
        client.rss_refresh_item("others")
        assert client.rss_items()["others"]["url"] == "https://tracker.example/rss2"
        client.rss_remove_item("others")
        shown = client.rss_items(include_feed_data=True)[name]
        assert (shown["title"], [each["title"] for each in shown["articles"]]) == ("a tracker", ["Show 1x01"])
        definition = {
            "enabled": True, "mustContain": "show", "mustNotContain": "", "useRegex": False, "episodeFilter": "1x1-;",
            "smartFilter": True, "previouslyMatchedEpisodes": [], "affectedFeeds": [], "ignoreDays": 0,
            "torrentParams": {"category": "tv", "tags": ["hops:2", "mine"], "stopped": True, "unknown": 1},
        }  # fmt: skip
        client.rss_set_rule("shows", definition)
        assert client.rss_matching_articles("shows") == {}
        client.rss_set_rule("shows", {**definition, "affectedFeeds": [url]})
        client.rss_rename_rule("shows", "series")
        rule = client.rss_rules()["series"]
        assert (rule["mustContain"], rule["affectedFeeds"], rule["smartFilter"]) == ("show", [url], True)
        assert sorted(rule["torrentParams"]["tags"]) == ["hops:2", "mine", "tv"]
        client.rss_remove_rule("nobody")
        with pytest.raises(InvalidRequest400Error):
            client.rss_set_rule("bad", {"ignoreDays": "many"})
        lenient = {
            "lastMatch": None,
            "ignoreDays": None,
            "affectedFeeds": url,
            "addPaused": None,
            "torrentParams": None,
        }
        client.rss_set_rule("lenient", {**lenient, "mustContain": "nothing", "enabled": False})
        assert client.rss_rules()["lenient"]["affectedFeeds"] == [url]
        client.rss_set_rule("off", {**definition, "affectedFeeds": [url], "enabled": False, "smartFilter": False})
        assert list(client.rss_matching_articles("off").values()) == [["Show 1x01"]]
        client.rss_mark_as_read(item_path=name, article_id="nothing")


@pytest.mark.slow
async def test_the_commands_drive_feeds_and_rules(tmp_path):
    async with own_feed(tmp_path, ("One\u202egpj", MAGNET.format(1))) as (here, server, feed):
        await read(here, feed)

        async def run(*words):
            ran = await asyncio.create_subprocess_exec(
                *MODULE, *words, f"--rpc={here.address}", stdout=asyncio.subprocess.PIPE, cwd=ROOT
            )
            said, _ = await ran.communicate()
            return ran.returncode, said.decode().strip()

        assert (await run("feeds", "add", "http://tracker.example/rss"))[0] == 1
        assert (await run("feeds", "add", "https://tracker.example/rss", "--name=theirs", "--every=60"))[0] == 0
        code, shown = await run("feeds", "list")
        assert code == 0, shown
        assert "theirs" in shown
        assert "a tracker" in shown
        assert await run("feeds", "remove", "theirs") == (0, "removed: theirs")
        assert (await run("feeds", "remove", "theirs"))[0] == 1
        assert "One gpj" in (await run("feeds", "articles", "1"))[1]
        assert (await run("feeds", "set", "1", "--name=with blanks", "--every=7"))[0] == 0
        assert (feed.name, feed.interval_min) == ("with blanks", 7)
        assert (await run("rules", "set", "ones"))[0] == 2, "it has to say what it takes"
        said = await run("rules", "set", "ones", "--match=one", "--feed=1", "--paused", "--hops=3")
        assert said == (0, "saved: ones; of the articles that are known, it takes 1")
        await until(lambda: names(here) == ["x"])
        assert "added by ones" in (await run("feeds", "articles", "1"))[1]
        assert (await run("rules", "set", "ones", "--no-on", "--label=tv"))[0] == 0
        (rule,) = here.feeds.rules
        assert (rule.enabled, rule.must, rule.hops, rule.labels) == (False, "one", 3, ["tv"]), "the rest stays"
        assert await run("rules", "matches", "ones") == (0, "with blanks: One gpj")
        shown = (await run("rules", "list"))[1]
        assert "paused, 3 hops, label tv" in " ".join(shown.split())
        assert (await run("rules", "remove", "ones"))[0] == 0
        assert (await run("rules", "remove", "ones"))[0] == 1
        for name in ("", "..", "4", "a\\b"):
            assert (await run("rules", "set", name, "--match=x"))[0] == 1
        assert (await run("rules", "set", "bad", "--match=(", "--regex"))[0] == 1


# Through the tunnels


@needs_https
@pytest.mark.skipif(not is_built(), reason="only the native engine carries streams")
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
async def test_a_feed_by_https_comes_through_an_exit_and_what_its_torrent_becomes_is_told_so(workers, tmp_path):
    host = unused_host()
    trusted, tls = authority(tmp_path, host)
    environment, hook = {"SSL_CERT_FILE": str(trusted)}, f"--webhook-done=https://{host}/done"
    async with (
        LocalSwarm(1 << 20, seeders=1, exits=2, relays=1, log_level="error") as swarm,
        feed_server(host, HTTPS_PORT, tls) as server,
        daemon(
            tmp_path,
            "--hops=2",
            f"--workers={workers}",
            hook,
            *network_of(swarm),
            environment=environment,
        ) as (_, address),
        aiohttp.ClientSession(f"http://{address}") as http,
    ):
        server.pages["/rss"] = feed_of(
            ("Random by a file", f"https://{host}/other.torrent"), ("Random by a link", f"https://{host}/get")
        )
        server.pages["/other.torrent"] = make_torrent(tmp_path, "other", {"a": 10})
        server.pages["/get"] = magnet_of(swarm)
        async with http.put("/api/rules/all", json={"must": "random by"}) as response:
            assert response.status == 204
        async with http.post("/api/feeds", json={"url": f"https://{host}/rss?passkey=1"}) as response:
            assert response.status == 201

        async def progress():
            async with http.get("/api/torrents") as response:
                return sorted(torrent["progress"] for torrent in await response.json())

        async with asyncio.timeout(60):
            while await progress() != [0, 1]:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        (downloaded,) = tmp_path.rglob("downloads/random.bin")
        assert same_bytes(swarm.file, downloaded)
        await until(lambda: server.told, what="the webhook")
        assert [told["name"] for told in server.told] == ["random.bin"]
        assert [path for path, _ in server.asked] == ["/rss?passkey=1", "/other.torrent", "/get", "/done"]
        assert {remote for _, remote in server.asked} <= {exit_.host for exit_ in swarm.exits}
        usual = {"Host", "User-Agent", "Accept-Encoding", "Accept"}
        assert [set(headers) - usual for headers in server.headers] == [
            *3 * [set()],
            {"Content-Type", "Content-Length"},
        ]
