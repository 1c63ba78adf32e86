"""Takes a tracker's answer over HTTP apart, and tells it from everything else; h11 reads it. Pure."""

import gzip
import io
import zlib
from typing import NamedTuple

import h11

from tunnel_pool.overlay.requests.bencode import is_bencoded

PAGE_BYTES = 1300  # a redirection has less of a page
MAX_RESPONSE_BYTES = 64 << 10  # unpacked, too
MAX_HEAD_BYTES = 16 << 10
MAX_CHUNKS = 1000  # each takes h11 some 30 microseconds of the loop's time
MAX_INTERIM = 8  # answers before the answer (1xx)
MAX_REDIRECTION_BYTES = 2 * PAGE_BYTES  # head and all
_PIECE_BYTES = 4 << 10
# h11 reads an answer only after a request; whatever was asked, this is one with a body in its answer.
_ASKED = h11.Request(method="GET", target="/", headers=[("Host", "tracker")])
REDIRECTIONS = (301, 302, 303, 307, 308)
LINE_END = b"\r\n"  # aquatic_http has one after its answer, counted in Content-Length


class Answer(NamedTuple):
    """An HTTP response: its status code, its headers by lower-case name, its body as it was before any encoding.

    A redirection's body is as it came.
    """

    status: int
    headers: dict[bytes, bytes]
    body: bytes


class AnswerReader:
    """Finds the end of an answer in the bytes of a connection, and takes the answer apart (RFC 9112)."""

    def __init__(self) -> None:
        self._connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD_BYTES)
        self._connection.send(_ASKED)
        self._connection.send(h11.EndOfMessage())
        self._raw = bytearray()
        self._head: h11.Response | None = None
        self._body = bytearray()
        self._chunks = 0
        self._interim = 0
        self.is_whole = False

    def feed(self, data: bytes) -> None:
        """Take the next bytes, none when the connection was closed.

        Raises ValueError for what is no answer, too large, or closed before its end.
        """
        if len(self._raw) + len(data) > MAX_RESPONSE_BYTES:
            raise ValueError("an answer too large")
        try:
            # h11 looks at the size of a head only while that is not whole, so it is not given all at once.
            for start in range(0, len(data) or 1, _PIECE_BYTES):
                self._feed_piece(data[start : start + _PIECE_BYTES])
        except h11.RemoteProtocolError as error:
            raise ValueError(f"not an HTTP response: {error}") from None

    def _feed_piece(self, piece: bytes) -> None:
        self._raw += piece
        self._connection.receive_data(piece)
        while not self.is_whole:
            event = self._connection.next_event()
            if event in (h11.NEED_DATA, h11.PAUSED):
                break
            self._take(event)
        if self._head is None and len(self._raw) > MAX_HEAD_BYTES:
            raise ValueError("a head too large")

    def _take(self, event: object) -> None:
        if isinstance(event, h11.InformationalResponse):
            self._interim += 1
            if self._interim > MAX_INTERIM:
                raise ValueError("an answer that does not come to an end")
        elif isinstance(event, h11.Response):
            self._head = event
        elif isinstance(event, h11.Data):
            self._body += event.data
            self._chunks += event.chunk_start
            if self._chunks > MAX_CHUNKS:
                raise ValueError("an answer of too many chunks")
        elif isinstance(event, h11.EndOfMessage):
            self.is_whole = True

    def raw(self) -> bytes:
        """Return the whole answer as it came, without what came after it."""
        return bytes(self._raw[: len(self._raw) - len(self._connection.trailing_data[0])])

    def answer(self) -> Answer:
        """Return what the whole answer says, without line ends after it; a body that can't be unpacked is empty."""
        assert self._head is not None
        headers = {bytes(name): bytes(value) for name, value in self._head.headers}
        body = bytes(self._body)
        is_packed = headers.get(b"content-encoding", b"").lower() in (b"gzip", b"x-gzip")
        if is_packed and self._head.status_code not in REDIRECTIONS:
            body = _gunzipped(body)
        return Answer(self._head.status_code, headers, body.rstrip(LINE_END))

    def may_pass(self) -> bool:
        """Return whether an exit gives the whole answer back: a tracker's, or a redirection."""
        answer = self.answer()
        if answer.status in REDIRECTIONS:
            return len(answer.body) < PAGE_BYTES and len(self.raw()) <= MAX_REDIRECTION_BYTES
        return is_bencoded(answer.body)


def read_whole(response: bytes) -> AnswerReader:
    """Read a response that came to its end, by itself or with the connection. Raises ValueError."""
    reader = AnswerReader()
    reader.feed(response)
    if not reader.is_whole:
        reader.feed(b"")
    return reader


def _gunzipped(body: bytes) -> bytes:
    """Unpack gzip up to the size that an answer may have; return nothing when it is not gzip."""
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(body)) as file:
            return file.read(MAX_RESPONSE_BYTES)
    except (OSError, EOFError, zlib.error):
        return b""
