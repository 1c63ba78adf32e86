"""Reads feeds: RSS 2.0 with what trackers add to it (ezRSS, Torznab), and Atom. Pure.

A feed is a stranger's. XML whose document type defines entities is refused, as these could grow to any size; texts are
cut.
"""

import datetime
import email.utils
import hashlib
import itertools
from collections.abc import Iterator
from xml.etree.ElementTree import Element, ParseError, TreeBuilder

from defusedxml import DefusedXmlException
from defusedxml import ElementTree as SafeTree

from tunnel_pool.daemon.feeds.mending import mended
from tunnel_pool.daemon.feeds.model import Article
from tunnel_pool.daemon.outside.urls import MAX_URL_CHARACTERS
from tunnel_pool.torrent.links import is_link

MAX_ARTICLES = 500
MAX_ELEMENTS, MAX_ATTRIBUTES, MAX_DEPTH = 200_000, 200_000, 64
PIECE_BYTES = 1 << 16
MAX_UID, MAX_TITLE, MAX_TEXT, MAX_DESCRIPTION = 200, 500, 200, 1000
MAX_MAGNET_CHARACTERS = 8192
MOST_BYTES = 2**53
NO_TORRENTS = ("audio", "image", "text", "video")  # media types of enclosures
MAX_TIME_S = 2**32


class FeedError(Exception):
    """Says in one line why what came is no feed."""


class _BoundedBuilder(TreeBuilder):
    """Builds a tree of no more elements, attributes and levels than a feed has. Raises FeedError."""

    def __init__(self) -> None:
        super().__init__()
        self._elements = self._attributes = self._depth = 0

    def start(self, tag: str, attrs: dict[str, str]) -> Element:
        self._elements += 1
        self._attributes += len(attrs)
        self._depth += 1
        if self._elements > MAX_ELEMENTS or self._attributes > MAX_ATTRIBUTES or self._depth > MAX_DEPTH:
            raise FeedError("it has more elements, attributes or levels than a feed may")
        return super().start(tag, attrs)

    def end(self, tag: str) -> Element:
        self._depth -= 1
        return super().end(tag)


_TORZNAB = "{http://torznab.com/schemas/2015/feed}attr"


def read_feed(document: bytes, charset: str = "") -> tuple[str, list[Article]]:
    """Return a feed's own title, and its articles in its order, no more than MAX_ARTICLES. Raises FeedError.

    `charset` is the one that the feed's server named.
    """
    root = _parsed(document, charset)
    kind = _local(root.tag)
    if kind == "rss":
        parent = next(iter(_children(root, "channel")), None)
        found = _children(parent, "item") if parent is not None else iter(())
    elif kind == "feed":
        parent, found = root, _children(root, "entry")
    elif kind == "error":  # Torznab
        raise FeedError(f"it says: {_cut(root.get('description', 'error'), MAX_TEXT)}")
    else:
        parent = None
    if parent is None:
        raise FeedError("it is neither RSS 2.0 nor Atom")
    articles: dict[str, Article] = {}
    for item in itertools.islice(found, MAX_ARTICLES):
        article = _article_of(item)
        if article.torrent_url:
            articles.setdefault(article.uid, article)
    return _text(parent, "title", MAX_TITLE), list(articles.values())


def _parsed(document: bytes, charset: str) -> Element:
    """Raises FeedError."""
    parser = SafeTree.DefusedXMLParser(target=_BoundedBuilder(), forbid_dtd=True)
    try:
        text = mended(document, charset)
        for start in range(0, len(text), PIECE_BYTES):
            parser.feed(text[start : start + PIECE_BYTES])
        root: Element = parser.close()
    except (DefusedXmlException, ParseError, ValueError, LookupError) as error:
        if document[:512].lstrip().lower().startswith((b"<!doctype html", b"<html")):
            raise FeedError("it is a web page") from None
        if isinstance(error, DefusedXmlException):
            raise FeedError("it has a document type, which could make it grow without end") from None
        raise FeedError(f"it is no XML ({str(error)[:100]})") from None
    return root


def _local(tag: object) -> str:
    return str(tag).rpartition("}")[2].lower()


def _children(element: Element, name: str) -> Iterator[Element]:
    return (child for child in element if _local(child.tag) == name)


def _cut(text: str, most: int) -> str:
    """Return a text on one line, without what can't be printed, and with no more than `most` characters."""
    printable = "".join(character if character.isprintable() else " " for character in text[: 4 * most])
    return " ".join(printable.split())[:most]


def _text(element: Element, name: str, most: int) -> str:
    """Return the text of the first child of this name that has one, empty where there is none."""
    texts = (_cut("".join(itertools.islice(child.itertext(), 1000)), most) for child in _children(element, name))
    return next(filter(None, texts), "")


def _article_of(item: Element) -> Article:
    link = _text(item, "link", MAX_URL_CHARACTERS + 1) or _atom_link(item, "alternate")
    attributes = {child.get("name", "").lower(): child.get("value", "") for child in item if child.tag == _TORZNAB}
    enclosure, torrent_url, magnet = _torrent_url(item, attributes.get("magneturl", ""), link)
    title = _text(item, "title", MAX_TITLE)
    uid = _text(item, "guid", MAX_URL_CHARACTERS) or _text(item, "id", MAX_URL_CHARACTERS) or torrent_url or title
    sizes = (
        enclosure.get("length", enclosure.get("fileSize", "")) if enclosure is not None else "",
        _text(item, "contentlength", MAX_TEXT),
        attributes.get("size", ""),
    )
    return Article(
        uid=uid if len(uid) <= MAX_UID else hashlib.sha256(uid.encode(errors="replace")).hexdigest(),
        title=title,
        torrent_url=torrent_url,
        magnet=magnet,
        link=link if link.startswith(("https://", "http://")) and len(link) <= MAX_URL_CHARACTERS else "",
        description=_text(item, "description", MAX_DESCRIPTION) or _text(item, "summary", MAX_DESCRIPTION),
        author=_text(item, "author", MAX_TEXT),
        category=_text(item, "category", MAX_TEXT),
        published_s=_date(item),
        size_bytes=next(filter(None, map(_size, sizes)), 0),
    )


def _torrent_url(item: Element, magnet_url: str, link: str) -> tuple[Element | None, str, str]:
    """Return the enclosure that said where the torrent is, if one did; where; and a magnet link to take otherwise.

    A torrent file comes first where it is one for certain, and can be fetched: it says whether it is private, and
    until a magnet link's metadata has come, anybody may be asked for it. Then a magnet link, then what is said to be
    a torrent, then what may be one: a feed may have pictures, too.
    """
    enclosures = [
        (
            each,
            (each.get("url") or each.get("href") or "").strip(),
            (each.get("type") or each.get("medium") or "").lower(),
        )
        for each in item
        if _local(each.tag) in ("enclosure", "content") or each.get("rel") == "enclosure"
    ]
    nested = (_text(each, "magneturi", MAX_MAGNET_CHARACTERS) for each in (item, *_children(item, "torrent")))
    said = (_text(item, name, MAX_MAGNET_CHARACTERS) for name in ("guid", "comments"))
    named: list[tuple[Element | None, str]] = [(None, text) for text in (magnet_url, *nested)]
    named += [(each, url) for each, url, _ in enclosures]
    named += [(None, link), *((None, text) for text in said)]
    magnets = ((each, text.strip()) for each, text in named if is_link(text) and len(text) <= MAX_MAGNET_CHARACTERS)
    said_by, magnet = next(magnets, (None, ""))
    for each, url, kind in (*enclosures, (None, link, "")):
        if _is_torrent(url, kind) and url.startswith("https://") and len(url) <= MAX_URL_CHARACTERS:
            return each, url, magnet
    if magnet:
        return said_by, magnet, ""
    fetched: list[tuple[Element | None, str]] = [
        (each, url) for each, url, kind in enclosures if _is_torrent(url, kind)
    ]
    if _is_torrent(link, ""):
        fetched.append((None, link))
    fetched += [(each, url) for each, url, kind in enclosures if kind.partition("/")[0] not in NO_TORRENTS]
    fetched.append((None, link))
    return next(((each, url, "") for each, url in fetched if url and len(url) <= MAX_URL_CHARACTERS), (None, "", ""))


def _is_torrent(url: str, kind: str) -> bool:
    return kind == "application/x-bittorrent" or url.partition("?")[0].lower().endswith(".torrent")


def _atom_link(item: Element, relation: str) -> str:
    links = (child for child in _children(item, "link") if child.get("rel", "alternate") == relation)
    return next((child.get("href", "").strip()[: MAX_URL_CHARACTERS + 1] for child in links), "")


def _date(item: Element) -> float:
    """Return when it was published, in seconds since the epoch, 0 where the feed does not say."""
    for name, read in (
        ("pubdate", email.utils.parsedate_to_datetime),
        ("published", datetime.datetime.fromisoformat),
        ("updated", datetime.datetime.fromisoformat),
    ):
        if text := _text(item, name, MAX_TEXT):
            try:
                time_s = read(text).timestamp()
            except (ValueError, OverflowError, TypeError, IndexError):
                continue
            return time_s if 0 < time_s < MAX_TIME_S else 0.0
    return 0.0


def _size(text: str) -> int:
    text = text.strip()
    return min(int(text), MOST_BYTES) if text.isascii() and text.isdigit() and len(text) < 20 else 0
