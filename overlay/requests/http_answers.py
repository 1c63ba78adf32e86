"""What a tracker answers over HTTP: taken apart, and told from everything else. Pure; h11 reads it."""

import gzip
import io
import zlib
from typing import NamedTuple

import h11

from tunnel_pool.overlay.requests.bencode import is_bencoded

PART_BYTES = 1300  # bytes of an answer that go into a cell
MAX_RESPONSE_BYTES = 64 << 10  # unpacked, too
MAX_HEAD_BYTES = 16 << 10
MAX_CHUNKS = 1000  # each takes h11 some 30 microseconds of the loop's time
REDIRECTIONS = (301, 302, 303, 307, 308)
# h11 reads an answer only after a request; whatever was asked, this is one with a body in its answer.
_ASKED = h11.Request(method="GET", target="/", headers=[("Host", "tracker")])


class Answer(NamedTuple):
    """An HTTP response: its status code, its headers by lower-case name, its body as it was before any encoding."""

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
        self.is_whole = False

    def feed(self, data: bytes) -> None:
        """Take the next bytes, none when the connection was closed.

        Raises ValueError for what is no answer, too large, or closed before its end.
        """
        self._raw += data
        if len(self._raw) > MAX_RESPONSE_BYTES:
            raise ValueError("an answer too large")
        try:
            self._connection.receive_data(data)
            while not self.is_whole:
                event = self._connection.next_event()
                if event in (h11.NEED_DATA, h11.PAUSED):
                    break
                self._take(event)
        except h11.RemoteProtocolError as error:
            raise ValueError(f"not an HTTP response: {error}") from None

    def _take(self, event: object) -> None:
        if isinstance(event, h11.Response):
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
        """Return what the whole answer says; a body that can't be unpacked is empty."""
        assert self._head is not None
        headers = {bytes(name): bytes(value) for name, value in self._head.headers}
        body = bytes(self._body)
        if headers.get(b"content-encoding", b"").lower() in (b"gzip", b"x-gzip"):
            body = _gunzipped(body)
        return Answer(self._head.status_code, headers, body)


def parse_answer(response: bytes) -> Answer:
    """Return what a whole response says. Raises ValueError."""
    reader = AnswerReader()
    reader.feed(response)
    if not reader.is_whole:
        reader.feed(b"")
    return reader.answer()


def may_pass(response: bytes) -> bool:
    """Return whether an exit gives this answer back: a tracker's, or a redirection."""
    try:
        answer = parse_answer(response)
    except ValueError:
        return False
    return len(answer.body) < PART_BYTES if answer.status in REDIRECTIONS else is_bencoded(answer.body)


def _gunzipped(body: bytes) -> bytes:
    """Unpack gzip up to the size that an answer may have; return nothing when it is not gzip."""
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(body)) as file:
            return file.read(MAX_RESPONSE_BYTES)
    except (OSError, EOFError, zlib.error):
        return b""
