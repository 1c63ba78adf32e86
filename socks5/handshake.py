"""One client's TCP connection up to its association or its HTTP request, without I/O. Pure.

    GREETING --methods--> REQUEST --UDP ASSOCIATE--> ASSOCIATED: further bytes are passed over
        |  |                 ^   |
        |  |                 |   +--CONNECT--> CONNECTING --connected--> HTTP --request--> CLOSED
        |  +--> PASSWORD ----+   |                 |  |                   |
        |          |             |                 |  +-- handed_over     +-- no HTTP GET
        +-- bad version,         +-- BIND,         |      -> CLOSED           -> CLOSED
            no method, wrong         bad address   +-- refused
            password -> CLOSED       -> CLOSED         -> CLOSED

A server with a secret asks for it (PASSWORD, RFC 1929); one without asks for nothing.

`receive`, `connected` and `refused` return what the shell must do, in order.
"""

import hmac
from dataclasses import dataclass
from enum import Enum, auto

from tunnel_pool.socks5.address import ANY, Socks5Address, Socks5Error, address_length, decode_address, encode_address
from tunnel_pool.socks5.messages import (
    AUTHENTICATION_VERSION,
    VERSION,
    Command,
    Method,
    ReplyCode,
    Secret,
    authentication_status,
    method_selection,
    reply,
)

_NO_ADDRESS = encode_address(ANY.host, ANY.port)
MAX_HANDSHAKE_BYTES = 2 + 255 + 3 + 2 * 255 + 4 + 259  # a greeting, a password and a request sent at once

MAX_REQUEST_BYTES = 8192

_GET = b"GET "
_END_OF_HEADERS = b"\r\n\r\n"


class State(Enum):
    GREETING = auto()
    PASSWORD = auto()
    REQUEST = auto()
    ASSOCIATED = auto()
    CONNECTING = auto()
    HTTP = auto()
    CLOSED = auto()


@dataclass(frozen=True, slots=True)
class Send:
    data: bytes


@dataclass(frozen=True, slots=True)
class Associate:
    """Open a UDP association; `client` is where its datagrams come from, or ANY when not known yet."""

    client: Socks5Address


@dataclass(frozen=True, slots=True)
class Connect:
    """Say what becomes of a connection to this address: `connected` (for HTTP), `handed_over` or `refused`."""

    address: Socks5Address


@dataclass(frozen=True, slots=True)
class Request:
    """Make this HTTP request, give the client the answer, close."""

    address: Socks5Address
    request: bytes


@dataclass(frozen=True, slots=True)
class Close:
    """Send what was sent, then close; `why` is for the log."""

    why: str


Step = Send | Associate | Connect | Request | Close


class Handshake:
    """Answers one client's handshake: the server's side of sections 3 to 6."""

    def __init__(self, secret: Secret | None = None) -> None:
        """Serve only clients that have the `secret`, where there is one."""
        self._secret = secret
        self.state = State.GREETING
        self._buffer = b""
        self._target = ANY

    def receive(self, data: bytes) -> list[Step]:
        """Feed any piece of the stream. Never raises: bad input ends in Close."""
        if self.state in (State.ASSOCIATED, State.CLOSED):
            return []
        self._buffer += data
        steps: list[Step] = []
        try:
            if self.state is State.GREETING:
                steps += self._greeting()
            if self.state is State.PASSWORD:
                steps += self._password()
            if self.state is State.REQUEST:
                steps += self._request()
        except Socks5Error as error:
            steps += self._close(str(error))
        if self.state is State.HTTP:
            steps += self._http()
        shaking_hands = self.state in (State.GREETING, State.PASSWORD, State.REQUEST)
        limit = MAX_HANDSHAKE_BYTES if shaking_hands else MAX_REQUEST_BYTES
        if len(self._buffer) > limit:
            steps += self._close("too long")
        return steps

    def associated(self, host: str, port: int) -> list[Step]:
        """Answer that the association is open; its datagrams go to `host`, `port`."""
        return [Send(reply(ReplyCode.SUCCEEDED, encode_address(host, port)))]

    def connected(self) -> list[Step]:
        """Grant the connection: HTTP requests may follow."""
        self.state = State.HTTP
        return [Send(reply(ReplyCode.SUCCEEDED, _NO_ADDRESS)), *self._http()]

    def handed_over(self) -> bytes:
        """Leave the connection, its reply too, to somebody else; return what the client has sent after its request."""
        early, self._buffer = self._buffer, b""
        self.state = State.CLOSED
        return early

    def refused(self, code: ReplyCode, why: str) -> list[Step]:
        """Refuse the connection, for the reason given."""
        return self._refuse(code, why)

    def failed(self, why: str) -> list[Step]:
        """Answer that the association could not be opened."""
        return self._refuse(ReplyCode.GENERAL_FAILURE, why)

    def _greeting(self) -> list[Step]:
        if self._buffer and self._buffer[0] != VERSION:
            raise Socks5Error(f"SOCKS version {self._buffer[0]}")
        if len(self._buffer) < 2 or len(self._buffer) < 2 + self._buffer[1]:
            return []
        methods = self._take(2 + self._buffer[1])[2:]
        method = Method.NO_AUTHENTICATION if self._secret is None else Method.USER_AND_PASSWORD
        if method not in methods:
            return [Send(method_selection(Method.NONE_ACCEPTABLE)), *self._close("no acceptable method")]
        self.state = State.REQUEST if self._secret is None else State.PASSWORD
        return [Send(method_selection(method))]

    def _password(self) -> list[Step]:
        """Read VER (1), ULEN, UNAME, PLEN, PASSWD (RFC 1929 section 2), and judge them."""
        if self._buffer and self._buffer[0] != AUTHENTICATION_VERSION:
            raise Socks5Error(f"authentication version {self._buffer[0]}")
        if len(self._buffer) < 2 or len(self._buffer) < (password_at := 3 + self._buffer[1]):
            return []
        if len(self._buffer) < (end := password_at + self._buffer[password_at - 1]):
            return []
        given = self._take(end)
        user, password = given[2 : password_at - 1], given[password_at:]
        assert self._secret is not None
        # Both are compared, each in the same time whatever it is.
        right = hmac.compare_digest(user, self._secret.user.encode())
        right &= hmac.compare_digest(password, self._secret.password.encode())
        if not right:
            return [Send(authentication_status(False)), *self._close("wrong user or password")]
        self.state = State.REQUEST
        return [Send(authentication_status(True))]

    def _request(self) -> list[Step]:
        if len(self._buffer) < 4:
            return []
        version, command = self._buffer[:2]
        if version != VERSION:
            raise Socks5Error(f"SOCKS version {version}")
        try:
            length = address_length(self._buffer, 3)
            if length is None or len(self._buffer) < 3 + length:
                return []
            client = decode_address(self._take(3 + length)[3:])
        except Socks5Error as error:
            return self._refuse(ReplyCode.ADDRESS_TYPE_NOT_SUPPORTED, str(error))
        if command == Command.CONNECT:
            self.state, self._target = State.CONNECTING, client
            return [Connect(client)]
        if command != Command.UDP_ASSOCIATE:
            return self._refuse(ReplyCode.COMMAND_NOT_SUPPORTED, f"command {command} is not offered")
        self.state = State.ASSOCIATED
        self._buffer = b""
        return [Associate(client)]

    def _http(self) -> list[Step]:
        """Take the one GET request without a body that is all a tracker is asked (BEP 3)."""
        if not self._buffer.startswith(_GET[: len(self._buffer)]):
            return self._close("no HTTP GET request; TLS can't be carried")
        head, end, rest = self._buffer.partition(_END_OF_HEADERS)
        if not end:
            return []
        if rest:
            return self._close("more than one HTTP request")
        self.state, self._buffer = State.CLOSED, b""
        return [Request(self._target, head + end)]

    def _take(self, count: int) -> bytes:
        taken, self._buffer = self._buffer[:count], self._buffer[count:]
        return taken

    def _refuse(self, code: ReplyCode, why: str) -> list[Step]:
        return [Send(reply(code, _NO_ADDRESS)), *self._close(why)]

    def _close(self, why: str) -> list[Step]:
        self.state = State.CLOSED
        self._buffer = b""
        return [Close(why)]
