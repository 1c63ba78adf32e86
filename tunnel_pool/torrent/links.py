"""Finds magnet links (BEP 9, BEP 53) and infohashes in what people paste, files hold and feeds say. Pure."""

import html
import re
from urllib.parse import quote, unquote_to_bytes

_INFOHASH = re.compile(r"[0-9a-fA-F]{40}|[0-9a-fA-F]{64}")
_BEGIN = re.compile(r"magnet:(?://)?\?", re.IGNORECASE)
_TOPIC = re.compile(r"urn:(?:btih|btmh):", re.IGNORECASE)
_INVISIBLE = "\ufeff\u200b\u200e\u200f\u2060"  # byte order marks, and what text processors put around links


def links_in(text: str) -> list[str]:
    """Return the magnet links and the infohashes in a text, each as libtorrent reads it.

    A line may hold several links, an infohash has a line of its own. Schemes and topics are written small, blanks and
    names in other encodings than UTF-8 become percent-encoded, `&amp;` is `&`: libtorrent takes a link for none that
    has any of these.
    """
    found: list[str] = []
    for line in text.splitlines():
        words = line.strip().strip(_INVISIBLE).strip()
        begins = [match.start() for match in _BEGIN.finditer(words)]
        if begins:
            found += [_mended(words[start:end]) for start, end in zip(begins, [*begins[1:], len(words)], strict=True)]
        elif _INFOHASH.fullmatch(words):
            found.append(words)
    return found


def is_link(text: str) -> bool:
    """Return whether a text begins as a magnet link does."""
    return _BEGIN.match(text.strip().strip(_INVISIBLE).strip()) is not None


def text_of(data: bytes) -> str:
    """Return the text of a file in UTF-8 or UTF-16, as Windows' programs write it; what is neither becomes U+FFFD."""
    encoding = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    return data.decode(encoding, errors="replace")


def _mended(link: str) -> str:
    query = link.partition("?")[2].strip(_INVISIBLE + " \t\"'<>,;")
    if "&amp;" in query:
        query = html.unescape(query)
    return "magnet:?" + "&".join(map(_mended_field, filter(None, query.split("&"))))


def _mended_field(field: str) -> str:
    name, equals, value = field.partition("=")
    name = name.strip().lower()
    if name.partition(".")[0] == "xt":
        value = re.sub("%3a", ":", value.strip(), flags=re.IGNORECASE)
        value = _TOPIC.sub(lambda topic: topic[0].lower(), value)
    content = unquote_to_bytes(value.encode(errors="surrogateescape"))
    try:
        content.decode()
        value.encode()
    except UnicodeError:
        value = quote(content.decode(errors="replace"))
    return f"{name}{equals}{value}".replace(" ", "%20").replace("\t", "%20")
