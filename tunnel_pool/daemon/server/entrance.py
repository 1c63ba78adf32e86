"""Whom the daemon answers: who has the password; without one, processes of its own user, and root's."""

import logging
import os
import time
from weakref import WeakKeyDictionary

from aiohttp import web

from tunnel_pool.daemon.server.guard import Credentials, GuessLimit, is_authorized
from tunnel_pool.sandbox import connections

KEY_HEADER = "X-Api-Key"  # Tribler's
ROOT = 0
logger = logging.getLogger(__name__)

_CHALLENGE = {"WWW-Authenticate": 'Basic realm="tunnel-pool"'}


class Entrance:
    def __init__(self) -> None:
        self._users: WeakKeyDictionary[object, int | None] = WeakKeyDictionary()  # the user, by connection
        self._guesses = GuessLimit()
        self._own_users = {os.geteuid(), ROOT}

    def check(self, request: web.Request, credentials: Credentials | None) -> None:
        """Raises HTTPUnauthorized or HTTPTooManyRequests for who may not ask."""
        if credentials is None:
            if connections.is_supported() and self._user_of(request) not in self._own_users:
                raise web.HTTPUnauthorized(
                    text="Without a password, the daemon serves only processes of the user that runs it. To serve "
                    "others, set one with --rpc-password-file.\n",
                    headers=_CHALLENGE,
                )
            return
        given, key = request.headers.get("Authorization"), request.headers.get(KEY_HEADER)
        who, now_s = self._who_guesses(request), time.monotonic()
        if (wait_s := self._guesses.wait_s(who, now_s)) > 0:
            raise web.HTTPTooManyRequests(
                text="Too many wrong passwords: try again later.\n", headers={"Retry-After": str(round(wait_s + 0.5))}
            )
        if not is_authorized(given, key, credentials):
            if given is not None or key is not None:
                self._guesses.failed(who, now_s)
                logger.warning("A wrong user or password came from %s", who)
            raise web.HTTPUnauthorized(text="The daemon wants its user and password.\n", headers=_CHALLENGE)

    def _who_guesses(self, request: web.Request) -> str:
        """Return by what guesses are counted: the user of a connection on this machine, else the address."""
        address = request.remote or ""
        user = self._user_of(request) if connections.is_supported() else None
        return address if user is None else f"user {user}"

    def _user_of(self, request: web.Request) -> int | None:
        """Return the user of the process that asks; it is looked up once for each connection."""
        transport = request.transport
        if transport is None:
            return None
        if transport not in self._users:
            theirs = connections.place_of(transport.get_extra_info("peername"))
            ours = connections.place_of(transport.get_extra_info("sockname"))
            self._users[transport] = None if theirs is None or ours is None else connections.user_of(theirs, ours)
        return self._users[transport]
