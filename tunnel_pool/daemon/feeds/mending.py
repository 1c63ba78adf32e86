"""Makes XML of what feeds send that is nearly XML: other encodings, names of HTML's characters, stray ampersands. Pure.

Nothing is added that could grow: a document type that defines entities stays, and is refused by whoever parses it.
"""

import codecs
import html.entities
import re
from collections.abc import Iterator

from tunnel_pool.torrent.links import text_of

# What is a single character in HTML, and in XML needs a document type.
_NAMED = html.entities.name2codepoint
_OF_XML = {"amp", "lt", "gt", "quot", "apos"}
# Encodings of text that feeds come in, as Python calls them; others could read one text as another.
_ENCODINGS = {
    "ascii", "big5", "cp1250", "cp1251", "cp1252", "cp1253", "cp1254", "cp1255", "cp1256", "cp1257", "cp1258", "cp866",
    "cp874", "cp932", "cp949", "euc_jp", "euc_kr", "gb18030", "gb2312", "gbk", "iso2022_jp", "iso8859-1", "iso8859-15",
    "iso8859-2", "iso8859-3", "iso8859-4", "iso8859-5", "iso8859-6", "iso8859-7", "iso8859-8", "iso8859-9", "koi8-r",
    "koi8-u", "shift_jis", "tis-620", "utf-16", "utf-8",
}  # fmt: skip
_DECLARED = re.compile(rb"<\?xml[^>]{0,200}?encoding\s*=\s*[\"']([A-Za-z0-9._:-]{1,40})[\"']")
_DECLARATION = re.compile(r"<\?xml[^>]{0,500}\?>")
_DOCUMENT_TYPE = re.compile(r"<!DOCTYPE[^\[\]<>]{0,1000}>", re.IGNORECASE)  # without entities of its own
_NOT_XML = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff\ud800-\udfff]")
_LITERAL = re.compile(r"<!\[CDATA\[|<!--")
_AMPERSAND = re.compile(r"&(?:(#[0-9]{1,7}|#x[0-9a-fA-F]{1,6}|[a-zA-Z][a-zA-Z0-9]{0,30});)?")


def mended(document: bytes, charset: str = "") -> str:
    """Return a feed's text as XML without a declaration; `charset` is the one that its server named."""
    text = _NOT_XML.sub("", _decoded(document, charset)).lstrip("\ufeff \t\r\n\xa0")
    text = _DECLARATION.sub("", text, count=1) if text.startswith("<?xml") else text
    head, rest = text[:4096], text[4096:]
    text = _DOCUMENT_TYPE.sub("", head, count=1) + rest
    parts, at = [], 0
    for begin, end in _literals(text):
        parts += [_AMPERSAND.sub(_character, text[at:begin]), text[begin:end]]
        at = end
    return "".join([*parts, _AMPERSAND.sub(_character, text[at:])]).lstrip()


def _literals(text: str) -> Iterator[tuple[int, int]]:
    """Yield where parts begin and end that mean what they say: comments, and CDATA. One that does not end is none."""
    at = 0
    while (begin := _LITERAL.search(text, at)) is not None:
        close = "-->" if begin[0] == "<!--" else "]]>"
        if (end := text.find(close, begin.end())) < 0:
            return
        at = end + len(close)
        yield begin.start(), at


def _decoded(document: bytes, charset: str) -> str:
    if document.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF8)):
        return text_of(document)
    declared = _DECLARED.search(document[:1024])
    names = [charset, declared[1].decode() if declared is not None else "", "utf-8", "cp1252"]
    for name in filter(None, map(_encoding, names)):
        try:
            return document.decode(name)
        except UnicodeDecodeError:
            continue
    return document.decode(errors="replace")


def _encoding(name: str) -> str:
    """Return Python's name of an encoding of text, empty for others."""
    try:
        found = codecs.lookup(name.strip()).name
    except (LookupError, ValueError):
        return ""
    return found if found in _ENCODINGS else ""


def _character(match: re.Match[str]) -> str:
    name = match[1] or ""
    if name.startswith("#") or name in _OF_XML:
        return match[0]
    return f"&#{_NAMED[name]};" if name in _NAMED else f"&amp;{match[0][1:]}"
