"""Reading a tracker's answer from its connection, to the end and no further."""

import asyncio

from tunnel_pool.overlay.requests.http_answers import MAX_CHUNKS, MAX_RESPONSE_BYTES, headers_of


async def read_response(reader: asyncio.StreamReader) -> bytes:
    """Return a whole answer, as it came. Raises ValueError for one too large, IncompleteReadError, OSError."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        raise ValueError("headers without end") from None
    headers = headers_of(head)
    length = headers.get(b"content-length", b"")
    if length.isdigit() and len(length) < 10:
        if int(length) > MAX_RESPONSE_BYTES:
            raise ValueError("an answer too large")
        return head + await reader.readexactly(int(length))
    if headers.get(b"transfer-encoding", b"").lower() == b"chunked":
        return head + await _read_chunks(reader)
    body = b""
    while piece := await reader.read(MAX_RESPONSE_BYTES):
        body += piece
        if len(body) > MAX_RESPONSE_BYTES:
            raise ValueError("an answer too large")
    return head + body


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    """Return a chunked body as it came, without trailers (RFC 9112 section 7.1)."""
    parts: list[bytes] = []
    total = 0
    while len(parts) < MAX_CHUNKS:
        line = await reader.readuntil(b"\r\n")
        size = int(line.partition(b";")[0], 16)
        total += len(line) + size
        if size < 0 or total > MAX_RESPONSE_BYTES:
            raise ValueError("an answer too large")
        parts.append(line + await reader.readexactly(size + 2))
        if size == 0:
            return b"".join(parts)
    raise ValueError("an answer of too many chunks")
