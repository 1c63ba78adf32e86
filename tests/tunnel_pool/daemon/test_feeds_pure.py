"""Tests how feeds are parsed, which addresses they may lead to, and which articles a rule adds."""

import argparse
import io
import threading
import time
import zlib

import libtorrent as lt
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tunnel_pool.cli.arguments.secret_text import _line_of_stdin, secret_text
from tunnel_pool.daemon.errors import RequestError
from tunnel_pool.daemon.feeds import matching
from tunnel_pool.daemon.feeds.feeds import merged
from tunnel_pool.daemon.feeds.model import Article, Rule
from tunnel_pool.daemon.feeds.reading import MAX_ARTICLES, MAX_TITLE, read_feed
from tunnel_pool.daemon.feeds.turns import AT_A_TIME, MOST_SLOW, SLOW_S, Turns
from tunnel_pool.daemon.outside import client
from tunnel_pool.daemon.outside.urls import NotAllowedError, OutsideError, Way, place_of
from tunnel_pool.torrent.metainfo import MAX_TOKENS_OF_STRANGERS, MAX_WEB_SEEDS, read_metainfo

RSS = """<?xml version="1.0" encoding="utf-8"?>
<rss version="2.0" xmlns:torrent="http://xmlns.ezrss.it/0.1/" xmlns:torznab="http://torznab.com/schemas/2015/feed">
 <channel><title>A tracker</title>
  <item><title>By an enclosure</title><link>https://t.example/1</link><guid>1</guid><category>TV</category>
   <pubDate>Thu, 26 Nov 2026 20:00:00 GMT</pubDate><description>&lt;b&gt;bold&lt;/b&gt;</description>
   <enclosure url="https://t.example/1.torrent" length="700" type="application/x-bittorrent"/></item>
  <item><title>By a link</title><link>https://t.example/2.torrent</link></item>
  <item><title>Of ezRSS</title><link>https://t.example/3</link><torrent:contentLength>900</torrent:contentLength>
   <torrent:magnetURI><![CDATA[magnet:?xt=urn:btih:abc]]></torrent:magnetURI></item>
  <item><title>Of Torznab</title><guid>https://t.example/4</guid><torznab:attr name="size" value="800"/>
   <torznab:attr name="magneturl" value="magnet:?xt=urn:btih:def"/><enclosure url="https://t.example/4.torrent"/></item>
  <item><title>Of nothing</title></item>
  <item><title>Again</title><guid>1</guid><link>https://t.example/5</link></item>
 </channel></rss>"""
ATOM = """<feed xmlns="http://www.w3.org/2005/Atom"><title>Another</title>
 <entry><title>An entry</title><id>urn:uuid:1</id><updated>2026-11-26T20:00:00Z</updated>
  <link href="https://t.example/page"/><link rel="enclosure" href="https://t.example/1.torrent"/></entry></feed>"""


def test_rss_with_what_trackers_add_to_it():
    title, articles = read_feed(RSS.encode())
    assert title == "A tracker"
    assert [(each.title, each.torrent_url, each.size_bytes) for each in articles] == [
        ("By an enclosure", "https://t.example/1.torrent", 700),
        ("By a link", "https://t.example/2.torrent", 0),
        ("Of ezRSS", "magnet:?xt=urn:btih:abc", 900),
        ("Of Torznab", "https://t.example/4.torrent", 800),
    ]
    first = articles[0]
    assert (first.uid, first.link, first.category) == ("1", "https://t.example/1", "TV")
    assert (first.published_s, first.description) == (1795723200, "<b>bold</b>")
    assert articles[3].magnet == "magnet:?xt=urn:btih:def", "for when the file can't be had"


def test_atom():
    title, (entry,) = read_feed(ATOM.encode())
    assert (title, entry.title, entry.uid) == ("Another", "An entry", "urn:uuid:1")
    assert (entry.torrent_url, entry.link) == ("https://t.example/1.torrent", "https://t.example/page")
    assert entry.published_s == 1795723200


def test_what_a_feed_says_is_cut_and_made_to_print():
    items = "".join(f"<item><title>\u202e{'x' * 9999}</title><link>l{n}</link></item>" for n in range(MAX_ARTICLES + 9))
    _, articles = read_feed(f"<rss><channel>{items}</channel></rss>".encode())
    assert len(articles) == MAX_ARTICLES
    assert articles[0].title == "x" * MAX_TITLE
    items = (
        f"<item><title>of a long URL</title><link>{'l' * 9000}</link></item><item><title>c</title><link>m</link></item>"
    )
    assert [each.title for each in read_feed(f"<rss><channel>{items}</channel></rss>".encode())[1]] == ["c"]


@pytest.mark.parametrize(
    "date", ["", "soon", "Thu, 99 Nov 2026 20:00:00 GMT", "9" * 400, "Fri, 31 Dec 9999 23:59:59 -2359"]
)
def test_a_date_that_means_nothing_is_none(date):
    item = f"<item><title>a</title><link>b</link><pubDate>{date}</pubDate></item>"
    assert read_feed(f"<rss><channel>{item}</channel></rss>".encode())[1][0].published_s == 0


def test_what_was_read_stays_as_it_is_known_and_the_newest_come_first():
    known = [Article(uid=uid, title=uid, torrent_url="old", published_s=5, is_read=uid != "c") for uid in "abc"]
    found = [Article(uid=uid, title=uid, torrent_url="new") for uid in "dcb"]
    now = merged(known, found, place_of("http://10.0.0.1/rss"), 9.0)
    assert [(each.uid, each.is_read, each.torrent_url, each.published_s) for each in now] == [
        ("d", False, "new", 9.0),
        ("c", False, "new", 5),
        ("b", True, "old", 5),
        ("a", True, "old", 5),
    ]
    assert {(each.source, each.is_direct) for each in now[:2]} == {("http://10.0.0.1/rss", True)}


# Where it may lead


@pytest.mark.parametrize(
    "url",
    ["https://[::ffff:192.168.1.5]/", "https://[64:ff9b::c0a8:105]/", "https://[2002:c0a8:105::1]/",
     "https://[2001:db8::1]/", "https://198.18.0.1/", "https://[::192.168.1.5]/", "https://192.0.0.8/"],
)  # fmt: skip
def test_no_exit_is_asked_for_an_address_that_none_reaches(url):
    """Some of them name an address of the owner's network."""
    with pytest.raises(NotAllowedError):
        place_of(url)


def test_feeds_that_take_their_time_hold_up_no_others():
    turns = Turns()
    for number in range(AT_A_TIME):
        assert turns.may_begin(number)
        turns.begins(number, 0.0)
    assert not turns.may_begin(9)
    for number in range(AT_A_TIME):
        turns.ends(number, SLOW_S + 1)
    for number in range(MOST_SLOW):
        assert turns.may_begin(number)
        turns.begins(number, 100.0)
    assert not turns.may_begin(MOST_SLOW)
    assert turns.may_begin(9)
    turns.ends(0, 101.0)
    assert turns.may_begin(MOST_SLOW)


def test_a_strangers_torrent_is_bounded_before_it_is_read():
    """libtorrent holds the interpreter's lock meanwhile, so that no thread helps."""
    torrent = {b"info": {b"name": b"a", b"length": 9, b"piece length": 16384, b"pieces": b"a" * 20}}
    urls = [b"http://a.example/%d" % number for number in range(MAX_TOKENS_OF_STRANGERS)]
    many = lt.bencode({**torrent, b"url-list": urls})
    with pytest.raises(RuntimeError, match="limit"):
        read_metainfo(many, MAX_TOKENS_OF_STRANGERS)
    assert len(read_metainfo(many).url_seeds) == MAX_WEB_SEEDS


async def test_what_a_server_packed_is_unpacked_in_a_thread(monkeypatch):
    """Deflate makes a thousand bytes of one."""
    threads = []

    def unpacked(body, encoding, most_bytes):
        threads.append(threading.current_thread())
        return unpack(body, encoding, most_bytes)

    async def answer(request):
        return web.Response(body=zlib.compress(bytes(1 << 20)), headers={"Content-Encoding": "Deflate"})

    unpack = client._unpacked
    monkeypatch.setattr(client, "_unpacked", unpacked)
    app = web.Application()
    app.router.add_get("/", answer)
    async with TestServer(app) as server, client.WebClient(None).session(1) as session:
        fetched, _ = await session.fetch(place_of(str(server.make_url("/"))), 2 << 20)
    assert fetched.body == bytes(1 << 20)
    assert threading.main_thread() not in threads
    assert len(threads) == 1


@pytest.mark.parametrize(
    ("url", "way", "is_at"),
    [
        ("https://Tracker.example/rss?a=b#c", Way.TUNNELS, "https://tracker.example/rss?a=b"),
        ("https://93.184.216.34:443/", Way.TUNNELS, "https://93.184.216.34/"),
        ("http://127.0.0.1:9117/jackett", Way.DIRECT, "http://127.0.0.1:9117/jackett"),
        ("http://localhost:9117/", Way.DIRECT, "http://127.0.0.1:9117/"),
        ("https://[fd00::5]/rss", Way.DIRECT, "https://[fd00::5]/rss"),
        ("https://192.168.1.5:8123/a?b=c", Way.DIRECT, "https://192.168.1.5:8123/a?b=c"),
        ("http://100.64.0.1/", Way.DIRECT, "http://100.64.0.1/"),
    ],
)
def test_which_way_a_feed_is_fetched(url, way, is_at):
    place = place_of(url)
    assert (place.way, str(place.url)) == (way, is_at)


@pytest.mark.parametrize(
    "url",
    [
        "", "rss", "http://", "http://tracker.example/", "ftp://127.0.0.1/", "https://tracker.example:444/",
        "https://user:password@tracker.example/", "https://prowlarr/", "https://nas.local/", "https://a.onion/",
        "https://8.8.8.8:80/", "http://8.8.8.8/", "http://[::ffff:8.8.8.8]/", "https://x.example:99999/", "https://[/",
        "http://localhost.example.org/", "http://0.0.0.0/", "http://224.0.0.1/", "http://2130706433/", "http://127.1/",
        "http://127.0.0.1@8.8.8.8/", "http://[2001:4860:4860::8888]/", "127.0.0.1:1", "http://127.0.0.1:99999/",
        "https://tracker.example/" + "a" * 3000, "http://127.0.0.1:0/", "javascript:alert(1)", "//tracker.example/",
    ],
)  # fmt: skip
def test_what_is_not_fetched(url):
    with pytest.raises(OutsideError):
        place_of(url)


def test_a_feed_from_elsewhere_leads_into_no_private_network():
    elsewhere, own = place_of("https://tracker.example/rss"), place_of("http://127.0.0.1:9117/rss")
    assert place_of("/x", elsewhere).url.path == "/x"
    assert place_of("/x", own).way is Way.DIRECT
    assert place_of("https://tracker.example/x", own).way is Way.TUNNELS
    for url in ("http://127.0.0.1:9117/rss", "http://[::1]/", "https://10.0.0.1/", "http://[::ffff:127.0.0.1]/"):
        with pytest.raises(OutsideError):
            place_of(url, elsewhere)
    for url in ("http://127.0.0.1:9091/transmission/rpc", "http://127.0.0.2:9117/", "https://127.0.0.1:9117/"):
        with pytest.raises(OutsideError):
            place_of(url, own)


def test_a_private_networks_https_goes_through_its_tunnels():
    assert place_of("https://10.0.0.1/", tunnel_all_tls=True).way is Way.TUNNELS
    assert place_of("http://10.0.0.1/", tunnel_all_tls=True).way is Way.DIRECT


# Rules


def takes(title, published_s=10 * matching.DAY_S, **rule):
    article = Article(uid="1", title=title, torrent_url="x", published_s=published_s)
    return matching.takes(Rule(name="r", **rule), article, "https://t.example/")


@pytest.mark.parametrize(
    ("rule", "taken", "left"),
    [
        ({}, ["anything"], []),
        ({"must": "some show"}, ["Some.Show", "show: some"], ["some", "awe"]),
        ({"must": "s*w 10?0p"}, ["show 1080p"], ["show 100p"]),
        ({"must": "one|two three"}, ["ONE", "three two"], ["two"]),
        ({"must": "(x)+[y]"}, ["a (x)+[y]"], ["xy"]),
        ({"must_not": "cam|ts"}, ["film"], ["film CAM", "film.ts"]),
        ({"must": "^show s\\d+$", "is_regex": True}, ["Show S01"], ["a show s01"]),
        ({"must": "   ", "must_not": " | "}, ["anything"], []),
        ({"episodes": "1x2;8-15;30-;"}, ["a S01E02", "a 1x08", "a s1.ep15", "a 1x31", "a 2x01"],
         ["a 1x1", "a S01E16", "a", "a S00E30"]),
        ({"feeds": []}, [], ["anything"]),
        ({"feeds": ["https://t.example/"]}, ["anything"], []),
        ({"enabled": False}, [], ["anything"]),
        ({"once": True, "seen": ["1x2", "2026.11.26", "1x3", "1x3-REPACK"]},
         ["a 1x4", "a 1x2 REPACK", "a", "a 1x3 PROPER", "2026.11.27.1920x1080"],
         ["a S01E02", "2026.11.26", "a 2026.11.26.1920x1080", "a 1x3 repack"]),
        ({"ignore_days": 2, "matched_s": 9.0 * matching.DAY_S}, [], ["anything"]),
        ({"ignore_days": 1, "matched_s": 9.0 * matching.DAY_S}, ["anything"], []),
        ({"ignore_days": 1}, ["anything"], []),
    ],
)  # fmt: skip
def test_what_a_rule_takes(rule, taken, left):
    assert [title for title in (*taken, *left) if takes(title, **rule)] == taken


@pytest.mark.parametrize(
    "rule", [{"must": "(", "is_regex": True}, {"episodes": "2"}, {"episodes": "1x"}, {"episodes": "1xa;"}]
)
def test_a_rule_that_means_nothing_is_refused(rule):
    with pytest.raises(RequestError):
        matching.check(Rule(name="r", **rule))
    matching.check(Rule(name="r", must="(", episodes="1x2"))


def test_a_pattern_that_takes_too_long_is_given_up():
    with pytest.raises(matching.TooSlowError):
        takes("a" * 400 + "!", must="(a|a|aa)+$", is_regex=True)


def test_a_secret_comes_from_a_file_or_standard_input(tmp_path, monkeypatch):
    """Other users of this machine see what a command line says."""
    file = tmp_path / "url"
    file.write_text("https://tracker.example/rss?passkey=1\nmore\n")
    assert secret_text(f"@{file}") == "https://tracker.example/rss?passkey=1"
    monkeypatch.setattr("sys.stdin", io.StringIO("https://b.example/\n"))
    _line_of_stdin.cache_clear()
    assert [secret_text("-"), secret_text("-")] == ["https://b.example/"] * 2  # each SIGHUP parses the options anew
    _line_of_stdin.cache_clear()
    assert secret_text("https://c.example/") == "https://c.example/"
    for wrong in ("-", f"@{tmp_path}/none", f"@{tmp_path}"):
        with pytest.raises(argparse.ArgumentTypeError, match=r"nothing in|cannot read"):
            secret_text(wrong)


def test_a_word_with_many_stars_takes_no_longer_for_it():
    """The texts between the stars are found one behind the other; nothing is tried twice."""

    def is_taken(must, title):
        article = Article(uid="1", title=title, torrent_url="x")
        return matching.takes(Rule(name="r", must=must), article, "feed")

    began_s = time.process_time()
    assert not any(is_taken("*a" * 50 + "*b", "a" * 500) for _ in range(100))
    assert time.process_time() - began_s < 1.0  # 50 ms each, before, and the rule was given up
    assert is_taken("show*s0?*720p", "Show.x.S01.720p")
    assert not is_taken("720p*show", "Show 720p")
