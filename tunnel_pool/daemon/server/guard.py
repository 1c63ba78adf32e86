"""Decides who may ask the daemon: by the password, and how often it may be guessed. Pure."""

import base64
import hmac
import ipaddress
from dataclasses import dataclass

from tunnel_pool.overlay.ground.pacing import Newest, TokenBucket

GUESSES_PER_S = 0.2  # wrong passwords that are looked at of one client, after the first GUESSES_AT_ONCE
GUESSES_OF_ALL_PER_S = 5.0
GUESSES_AT_ONCE = 10
MAX_GUESSERS = 1000
MAX_KNOWN = 100


@dataclass(frozen=True, slots=True)
class Credentials:
    user: str
    password: str


def is_authorized(header: str | None, key: str | None, credentials: Credentials | None) -> bool:
    """Return whether an Authorization header has them (RFC 7617), or the password alone as a bearer's (RFC 6750).

    A key may be the password, too.

    The comparison takes equally long for all wrong passwords, so that its time reveals nothing.
    """
    if credentials is None:
        return True
    has_key = hmac.compare_digest((key or "").encode(errors="replace"), credentials.password.encode())
    scheme, _, encoded = (header or "").partition(" ")
    if scheme.lower() == "bearer":
        return hmac.compare_digest(encoded.strip().encode(errors="replace"), credentials.password.encode())
    try:
        given = base64.b64decode(encoded.strip(), validate=True) if scheme.lower() == "basic" else b""
    except ValueError:
        given = b""
    return hmac.compare_digest(given, f"{credentials.user}:{credentials.password}".encode()) or has_key


class GuessLimit:
    """Limits how many wrong passwords each client, and all together, may try.

    Whoever is known waits for his own guesses alone: others would shut him out with theirs.
    """

    def __init__(self) -> None:
        self._clients: dict[str, TokenBucket] = {}
        self._all = TokenBucket()
        self._known = Newest[str, None](MAX_KNOWN)

    def wait_s(self, who: str, now_s: float) -> float:
        """Return how long this client has to wait until a password of it is looked at; 0 when it need not."""
        client = self._clients.get(who)
        of_client_s = client.wait_s(now_s) if client is not None else 0.0
        return of_client_s if who in self._known else max(of_client_s, self._all.wait_s(now_s))

    def know(self, who: str) -> None:
        """Remember a client that had the right password, or is the owner's."""
        self._known[who] = None

    def forget_known(self) -> None:
        """Forget who had a password that holds no more."""
        self._known.clear()

    def failed(self, who: str, now_s: float) -> None:
        """Count a wrong password."""
        if len(self._clients) >= MAX_GUESSERS and who not in self._clients:
            self._clients = {name: bucket for name, bucket in self._clients.items() if bucket.wait_s(now_s) > 0}
        if len(self._clients) < MAX_GUESSERS:
            self._clients.setdefault(who, TokenBucket()).take(GUESSES_PER_S, GUESSES_AT_ONCE / GUESSES_PER_S, now_s)
        self._all.take(GUESSES_OF_ALL_PER_S, GUESSES_AT_ONCE / GUESSES_OF_ALL_PER_S, now_s)


def may_listen(address: str, credentials: Credentials | None) -> bool:
    """Return whether it may listen there: beyond this machine with a password alone."""
    return credentials is not None or ipaddress.ip_address(address).is_loopback
