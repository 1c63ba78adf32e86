"""Tests feeds that are nearly XML, in other encodings than UTF-8, or with more enclosures than the torrent's."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunnel_pool.daemon.feeds.mending import mended
from tunnel_pool.daemon.feeds.reading import FeedError, read_feed

LINK = f"magnet:?xt=urn:btih:{'ab' * 20}"


def rss(title="t", item="", head='<?xml version="1.0"?>'):
    entry = f"<item><title>{title}</title><guid>1</guid>{item}<link>https://site.example/1</link></item>"
    return f'{head}<rss version="2.0"><channel><title>a tracker</title>{entry}</channel></rss>'


def title_of(document, charset=""):
    _, (article,) = read_feed(document, charset)
    return article.title


EZRSS = '<!DOCTYPE torrent PUBLIC "-//bitTorrent//DTD torrent 0.1//EN" "http://xmlns.ezrss.it/0.1/dtd/">'


@pytest.mark.parametrize(
    ("document", "title"),
    [
        (rss(head=f'<?xml version="1.0" encoding="UTF-8"?>\n{EZRSS}\n'), "t"),
        (f"\n  {rss()}", "t"),
        (f"\ufeff {rss()}", "t"),
        (rss("a&nbsp;b&hellip; c &amp; d &lt;e&gt; &#233; &#xe9;"), "a b\u2026 c & d <e> \u00e9 \u00e9"),
        (rss("Law & Order R&D &c; &;"), "Law & Order R&D &c; &;"),
        (rss("<![CDATA[a & b &nbsp; <i>]]>"), "a & b &nbsp; <i>"),
        (rss("a<!-- & --> b"), "a b"),
        (rss("a\x00b\x1fc\ufffed"), "abcd"),
        (rss("a&notanentity;b"), "a&notanentity;b"),
    ],
)
def test_what_is_nearly_xml_is_read(document, title):
    assert title_of(document.encode()) == title


@pytest.mark.parametrize(
    ("encoding", "title"),
    [("gbk", "\u7535\u89c6\u5267"), ("gb2312", "\u7535\u89c6\u5267"), ("big5", "\u96fb\u8996\u5287"),
     ("shift_jis", "\u30a2\u30cb\u30e1"), ("euc-jp", "\u30a2\u30cb\u30e1"), ("euc-kr", "\ub4dc\ub77c\ub9c8"),
     ("windows-1251", "\u0441\u0435\u0440\u0438\u0430\u043b"), ("koi8-r", "\u0441\u0435\u0440\u0438\u0430\u043b"),
     ("iso-8859-15", "s\u00e9rie \u20ac"), ("utf-16", "\u0441\u0435\u0440\u0438\u0430\u043b"),
     ("utf-8", "\u0441\u0435\u0440\u0438\u0430\u043b")],
)  # fmt: skip
def test_feeds_come_in_the_encodings_of_their_countries(encoding, title):
    declared = rss(title, head=f'<?xml version="1.0" encoding="{encoding}"?>').encode(encoding)
    assert title_of(declared) == title
    assert title_of(declared, "nonsense") == title
    if encoding not in ("utf-8", "utf-16"):
        assert title_of(rss(title).encode(encoding), encoding.upper()) == title  # as the server says


def test_an_encoding_that_is_none_of_a_text_is_passed_over():
    for name in ("unicode_escape", "utf-7", "idna", "rot13", "zlib", "x" * 99, "../../x"):
        document = rss("a", head=f'<?xml version="1.0" encoding="{name}"?>').encode()
        assert title_of(document, name) == "a"
    assert title_of(rss("caf\u00e9").encode("cp1252")) == "caf\u00e9"


@pytest.mark.parametrize(
    ("item", "url"),
    [
        ('<enclosure url="http://t/poster.jpg" type="image/jpeg"/><enclosure url="http://t/a" '
         'type="application/x-bittorrent"/>', "http://t/a"),
        ('<enclosure url="http://t/poster.jpg" type="image/jpeg"/><enclosure url="http://t/a.torrent?k=1"/>',
         "http://t/a.torrent?k=1"),
        ('<enclosure url="http://t/sample.mkv" type="video/x-matroska"/>', "https://site.example/1"),
        ('<m:content xmlns:m="http://search.yahoo.com/mrss/" url="http://t/a" type="application/x-bittorrent"/>',
         "http://t/a"),
        (f'<enclosure url="http://t/a.torrent"/><enclosure url="{LINK}"/>', LINK),
        (f'<torrent xmlns="http://xmlns.ezrss.it/0.1/"><magnetURI>{LINK}</magnetURI></torrent>', LINK),
        (f"<comments>{LINK}</comments>", LINK),
        ('<enclosure url="http://t/unknown"/>', "http://t/unknown"),
        ("", "https://site.example/1"),
        ('<link>https://t/a.torrent</link><m:content xmlns:m="http://search.yahoo.com/mrss/" url="http://t/a.jpg"/>',
         "https://t/a.torrent"),
        ('<m:content xmlns:m="http://search.yahoo.com/mrss/" url="http://t/a.jpg" medium="image"/>',
         "https://site.example/1"),
    ],
)  # fmt: skip
def test_the_torrent_is_taken_and_not_its_picture(item, url):
    _, (article,) = read_feed(rss(item=item).encode())
    assert article.torrent_url == url


def test_of_several_enclosures_of_atom_the_torrents_is_taken():
    document = (
        '<feed xmlns="http://www.w3.org/2005/Atom"><entry><title>a</title><id>1</id>'
        '<link rel="enclosure" type="image/png" href="http://t/poster.png"/>'
        '<link rel="enclosure" type="application/x-bittorrent" href="http://t/a"/></entry></feed>'
    )
    _, (article,) = read_feed(document.encode())
    assert article.torrent_url == "http://t/a"


@pytest.mark.parametrize(
    "head", ['<!DOCTYPE rss [<!ENTITY a "aaaa">]>', '<!DOCTYPE rss SYSTEM "x" [<!ENTITY % a SYSTEM "file:///etc">]>']
)
def test_a_document_type_that_defines_entities_is_refused(head):
    with pytest.raises(FeedError, match="document type"):
        read_feed(rss("&a;", head=head).encode())


def test_comments_without_an_end_take_no_time():
    assert "&amp;" in mended(b"<!--" * 200_000 + b" & ")


@given(st.binary(max_size=300), st.text(max_size=12))
def test_whatever_comes_is_mended_or_refused(document, charset):
    mended(document, charset)
    with contextlib.suppress(FeedError):
        read_feed(document, charset)
