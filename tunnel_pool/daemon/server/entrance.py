"""Whom the daemon answers: who has the password; without one, processes of its own user, and root's."""

import hmac
import logging
import os
import socket
import time
from collections.abc import Callable, Mapping

from aiohttp import web

from tunnel_pool.daemon.server.guard import Credentials, GuessLimit, is_authorized
from tunnel_pool.daemon.server.logins import Logins
from tunnel_pool.sandbox import connections
from tunnel_pool.system.http_server import VISITOR, RefusedError, by_address
from tunnel_pool.system.proxies import Forwarded, is_forwarded
from tunnel_pool.system.shares import Visitor
from tunnel_pool.system.web_guard import FORWARDED
from tunnel_pool.system.web_rules import ALWAYS

KEY_HEADER = "X-Api-Key"  # Tribler's
ROOT = 0
logger = logging.getLogger(__name__)

_CHALLENGE = {"WWW-Authenticate": 'Basic realm="tunnel-pool"'}
_OTHERS_USER = (
    "Without a password, the daemon serves only processes of the user that runs it. To serve others, set one with "
    "--rpc-password-file.\n"
)
_BY_PROXY = (
    "A proxy has sent this on: without a password, that would let anybody in. Set one with --rpc-password-file, and "
    "name the proxy with --trusted-proxy.\n"
)


def refusal(text: str, headers: Mapping[str, str]) -> bytes:
    """Return an HTTP response of status 401, for who gets it whatever he asks."""
    body = text.encode()
    lines = {
        **ALWAYS,
        **headers,
        "Content-Type": "text/plain; charset=utf-8",
        "Content-Length": str(len(body)),
        "Connection": "close",
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"HTTP/1.1 401 Unauthorized\r\n{head}\r\n".encode() + body


_REFUSAL = refusal(_OTHERS_USER, _CHALLENGE)


class Entrance:
    """Decides once for each connection who has opened it, and for each request whether it is answered."""

    def __init__(self) -> None:
        self._guesses = GuessLimit()
        self._own_users = {os.geteuid(), ROOT}
        self.logins = Logins()
        self._credentials: Credentials | None = None  # those that the logins are of

    def visitor_of(self, credentials: Callable[[], Credentials | None], sock: socket.socket) -> Visitor:
        """Return who has opened a connection that was just accepted: a user of this machine, or an address.

        The user is looked up now: of a connection that its user has closed, nobody can say later whose it was. Raises
        RefusedError for other users than ours where there are no `credentials`, OSError when the connection is gone.
        """
        if not connections.is_supported():
            return by_address(sock) if credentials() is not None else Visitor("a user", is_owner=True)
        theirs, ours = connections.place_of(sock.getpeername()), connections.place_of(sock.getsockname())
        user = connections.user_of(theirs, ours) if theirs is not None and ours is not None else None
        if user in self._own_users:
            return Visitor(f"user {user}", is_owner=True)
        if credentials() is None:
            raise RefusedError(_REFUSAL)
        return by_address(sock) if user is None else Visitor(f"user {user}")

    def check(self, request: web.Request, credentials: Credentials | None) -> None:
        """Raises HTTPUnauthorized or HTTPTooManyRequests for who may not ask."""
        if credentials is None:
            self._check_user(request)
        else:
            self._forget_others(credentials)
            given, key = request.headers.get("Authorization"), request.headers.get(KEY_HEADER)
            is_right = is_authorized(given, key, credentials)
            self._check_guess(request, is_right, given is not None or key is not None)

    def check_login(self, request: web.Request, credentials: Credentials | None, cookie: str) -> None:
        """Check who asks by qBittorrent's API: by the cookie of this name, or as `check` does.

        Raises HTTPForbidden for who may not ask, which has qBittorrent's clients log in.
        """
        self._forget_others(credentials)
        if self.logins.goes_on(request.cookies.get(cookie, ""), time.monotonic()):
            return
        try:
            self.check(request, credentials)
        except (web.HTTPUnauthorized, web.HTTPTooManyRequests) as error:
            raise web.HTTPForbidden(text=error.text) from None

    def check_may_guess(self, request: web.Request, credentials: Credentials | None) -> None:
        """Raises HTTPUnauthorized or HTTPForbidden for whoever need not be read any further."""
        if credentials is None:
            self._check_user(request)
        elif self._guesses.wait_s(self._who_guesses(request), time.monotonic()) > 0:
            raise web.HTTPForbidden(text="Too many wrong passwords: try again later.\n")

    def log_in(self, request: web.Request, credentials: Credentials | None, user: str, password: str) -> str:
        """Return the content of a cookie by which this client may ask from now on.

        Raises HTTPUnauthorized for a wrong password, HTTPForbidden after too many.
        """
        self._forget_others(credentials)
        if credentials is not None:
            given = f"{user}:{password}".encode(errors="replace")
            is_right = hmac.compare_digest(given, f"{credentials.user}:{credentials.password}".encode())
            try:
                self._check_guess(request, is_right, True)
            except web.HTTPTooManyRequests as error:
                raise web.HTTPForbidden(text=error.text) from None
        else:
            self._check_user(request)
        return self.logins.begin(time.monotonic())

    def _forget_others(self, credentials: Credentials | None) -> None:
        """Forget who came in with a password that holds no more."""
        if credentials != self._credentials:
            self._credentials = credentials
            self.logins.end_all()
            self._guesses.forget_known()

    def _check_user(self, request: web.Request) -> None:
        """Raises HTTPUnauthorized unless a process of our own user asks, or of root, for itself."""
        visitor: Visitor | None = request.get(VISITOR)
        if is_forwarded(request.headers):
            raise web.HTTPUnauthorized(text=_BY_PROXY, headers=_CHALLENGE)
        if visitor is None or not visitor.is_owner:
            raise web.HTTPUnauthorized(text=_OTHERS_USER, headers=_CHALLENGE)

    def _check_guess(self, request: web.Request, is_right: bool, is_guess: bool) -> None:
        """Count a wrong password. Raises HTTPUnauthorized for it, HTTPTooManyRequests for any after too many."""
        who, now_s = self._who_guesses(request), time.monotonic()
        if (wait_s := self._guesses.wait_s(who, now_s)) > 0:
            raise web.HTTPTooManyRequests(
                text="Too many wrong passwords: try again later.\n", headers={"Retry-After": str(round(wait_s + 0.5))}
            )
        if not is_right:
            if is_guess:
                self._guesses.failed(who, now_s)
                logger.warning("A wrong user or password came from %s", who)
            raise web.HTTPUnauthorized(text="The daemon wants its user and password.\n", headers=_CHALLENGE)
        self._guesses.know(who)

    def _who_guesses(self, request: web.Request) -> str:
        """Return by what guesses are counted: the user of a connection on this machine, else the address.

        Of what a trusted proxy sends on, it is the address of who asked the proxy.
        """
        visitor: Visitor | None = request.get(VISITOR)
        said: Forwarded | None = request.get(FORWARDED)
        if visitor is None:
            return ""
        if said is not None:
            return f"{said.client or 'nobody that is named'}, by way of {visitor.name}"
        if visitor.is_owner:
            self._guesses.know(visitor.name)
        return visitor.name
