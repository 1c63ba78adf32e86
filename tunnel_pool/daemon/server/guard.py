"""Who may ask the daemon: by password, by the name it was asked under, by the page that asks. Pure."""

import base64
import hmac
import ipaddress
from collections.abc import Collection
from dataclasses import dataclass
from urllib.parse import urlsplit

from tunnel_pool.overlay.pacing import TokenBucket
from tunnel_pool.overlay.serving.destinations import is_address

LOCAL_NAMES = ("localhost", "localhost.")
GUESSES_PER_S = 0.2  # wrong passwords that are looked at of one client, after the first GUESSES_AT_ONCE
GUESSES_OF_ALL_PER_S = 5.0
GUESSES_AT_ONCE = 10
MAX_GUESSERS = 1000


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
    """Limits how many wrong passwords each client, and all together, may try."""

    def __init__(self) -> None:
        self._clients: dict[str, TokenBucket] = {}
        self._all = TokenBucket()

    def wait_s(self, who: str, now_s: float) -> float:
        """Return how long this client has to wait until a password of it is looked at; 0 when it need not."""
        client = self._clients.get(who)
        return max(0.0, client.wait_s(now_s) if client is not None else 0.0, self._all.wait_s(now_s))

    def failed(self, who: str, now_s: float) -> None:
        """Count a wrong password."""
        if len(self._clients) >= MAX_GUESSERS and who not in self._clients:
            self._clients = {name: bucket for name, bucket in self._clients.items() if bucket.wait_s(now_s) > 0}
        if len(self._clients) < MAX_GUESSERS:
            self._clients.setdefault(who, TokenBucket()).take(GUESSES_PER_S, GUESSES_AT_ONCE / GUESSES_PER_S, now_s)
        self._all.take(GUESSES_OF_ALL_PER_S, GUESSES_AT_ONCE / GUESSES_OF_ALL_PER_S, now_s)


def is_known_host(header: str | None, names: Collection[str]) -> bool:
    """Return whether a Host header names us: by an address, as localhost, or by one of these names.

    Any other name is one that somebody else has pointed at our address (DNS rebinding).
    """
    if not header:
        return False
    try:
        host = urlsplit(f"//{header}").hostname or ""
        urlsplit(f"//{header}").port  # noqa: B018 - raises
    except ValueError:
        return False
    return host in LOCAL_NAMES or host in {name.lower() for name in names} or is_address(host)


def is_own_page(origin: str | None, host: str | None) -> bool:
    """Return whether a request comes from no page, or from one of ours: browsers say which in the Origin header."""
    try:
        return origin is None or urlsplit(origin).netloc.lower() == (host or "").lower()
    except ValueError:
        return False


def is_fetched_by_others(site: str | None, destination: str | None) -> bool:
    """Return whether another site's page loads something of ours, as browsers say (w3.org/TR/fetch-metadata).

    Such a page can't read the content, but learns whether there is any, and its size. Following a link is allowed.
    """
    return site in ("cross-site", "same-site") and destination != "document"


def may_listen(address: str, credentials: Credentials | None) -> bool:
    """Return whether it may listen there: beyond this machine with a password alone."""
    return credentials is not None or ipaddress.ip_address(address).is_loopback
