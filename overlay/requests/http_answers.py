"""What a tracker answers over HTTP: taken apart, and told from everything else. Pure."""

import gzip
import io
import zlib
from typing import NamedTuple

from tunnel_pool.overlay.requests.bencode import is_bencoded

PART_BYTES = 1300  # bytes of an answer that go into a cell
MAX_RESPONSE_BYTES = 64 << 10  # unpacked, too
MAX_CHUNKS = 1000
REDIRECTIONS = (b"301", b"302", b"303", b"307", b"308")


def headers_of(head: bytes) -> dict[bytes, bytes]:
    lines = [line.partition(b":") for line in head.split(b"\r\n")[1:]]
    return {name.strip().lower(): value.strip() for name, _, value in lines}


def unchunked(body: bytes) -> bytes | None:
    """Return the content of a chunked body (RFC 9112 section 7.1), None while it is not whole."""
    parts: list[bytes] = []
    position = 0
    while len(parts) < MAX_CHUNKS:
        end = body.find(b"\r\n", position)
        if end < 0:
            return None
        try:
            size = int(body[position:end].partition(b";")[0], 16)
        except ValueError:
            return None
        if size <= 0:
            return b"".join(parts) if size == 0 and body.endswith(b"\r\n\r\n") else None
        if end + 2 + size + 2 > len(body):
            return None
        parts.append(body[end + 2 : end + 2 + size])
        position = end + 2 + size + 2
    return None


def may_pass(response: bytes) -> bool:
    """Return whether an exit gives this answer back: a tracker's, or a redirection."""
    try:
        answer = parse_answer(response)
    except ValueError:
        return False
    return len(answer.body) < PART_BYTES if answer.status in REDIRECTIONS else is_bencoded(answer.body)


class Answer(NamedTuple):
    """An HTTP response: its status code, its headers by lower-case name, its body as it was before any encoding."""

    status: bytes
    headers: dict[bytes, bytes]
    body: bytes


def parse_answer(response: bytes) -> Answer:
    """Return what a whole response says; a body that can't be decoded is empty. Raises ValueError."""
    head, _, body = response.partition(b"\r\n\r\n")
    status = head.split(b" ", 2)
    if len(status) < 2 or not head.startswith(b"HTTP/1."):
        raise ValueError("not an HTTP response")
    headers = headers_of(head)
    if status[1] not in REDIRECTIONS:
        if headers.get(b"transfer-encoding", b"").lower() == b"chunked":
            body = unchunked(body) or b""
        if headers.get(b"content-encoding", b"").lower() in (b"gzip", b"x-gzip"):
            body = _gunzipped(body)
    return Answer(status[1].strip(), headers, body)


def _gunzipped(body: bytes) -> bytes:
    """Unpack gzip up to the size that an answer may have; return nothing when it is not gzip."""
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(body)) as file:
            return file.read(MAX_RESPONSE_BYTES)
    except (OSError, EOFError, zlib.error):
        return b""
